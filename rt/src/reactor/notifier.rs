//! Wakes the sleeping backend from another thread.
//!
//! Budget of `notify`: one atomic swap if the reactor is awake or already notified, otherwise one additional system
//! call.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use rustix::event::EventfdFlags;

/// Ends the sleep of one backend, or its next sleep if it is awake. Clones wake the same backend, and may outlive it.
///
/// The reactor sees everything written before `notify` when that sleep has ended.
#[derive(Clone)]
pub(crate) struct Notifier(NotifierTarget);

#[derive(Clone)]
enum NotifierTarget {
    Doorbell(Arc<DoorbellState>),
    /// Callback that schedules a simulated host, whether it sleeps or not, and the number of the host.
    Host(Arc<dyn Fn(u32) + Send + Sync>, u32),
}

#[derive(Debug)]
struct DoorbellState {
    state: AtomicU8,
    /// An eventfd that is written but never read for its count: backends wait for *edges* on it.
    doorbell: OwnedFd,
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

impl Notifier {
    /// Creates a notifier whose reactor is awake.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(NotifierTarget::Doorbell(Arc::new(DoorbellState {
            state: AtomicU8::new(AWAKE),
            doorbell: new_eventfd()?,
        }))))
    }

    /// Creates a notifier that calls `ring` with the host's number, for a runtime that never sleeps by itself.
    pub(crate) fn for_host(ring: Arc<dyn Fn(u32) + Send + Sync>, host: u32) -> Self {
        Self(NotifierTarget::Host(ring, host))
    }

    /// Ends the sleep. Never blocks.
    pub(crate) fn notify(&self) {
        match &self.0 {
            NotifierTarget::Doorbell(shared) => {
                if shared.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
                    ring(&shared.doorbell);
                }
            }
            NotifierTarget::Host(ring, host) => ring(*host),
        }
    }

    /// Called by the reactor before it sleeps: from now on `notify` rings the doorbell. Returns false, and stays awake,
    /// if a notification has arrived already.
    pub(super) fn fall_asleep(&self) -> bool {
        let notified = self.shared().state.swap(ASLEEP, Ordering::AcqRel) == NOTIFIED;
        if notified {
            self.wake_up();
        }
        !notified
    }

    /// Called by the reactor after a sleep, which handles all notifications so far. `sleep` calls this itself. If it is
    /// not called after a wait that followed `prepare`, the next turn is an unnecessary empty one.
    pub(crate) fn wake_up(&self) {
        // A swap, not a store, because this must synchronize with the writes of the notifying thread.
        let _ = self.shared().state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Returns the descriptor that becomes readable, with an edge for every ring.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared().doorbell.as_fd()
    }

    fn shared(&self) -> &DoorbellState {
        match &self.0 {
            NotifierTarget::Doorbell(shared) => shared,
            NotifierTarget::Host(..) => unreachable!("a simulated host has no reactor"),
        }
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.shared().state.load(Ordering::Acquire) == ASLEEP
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NotifierTarget::Doorbell(shared) => shared.fmt(f),
            NotifierTarget::Host(_, host) => write!(f, "Notifier of host {host}"),
        }
    }
}

/// Creates a non-blocking eventfd.
pub(super) fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?)
}

/// Makes an eventfd readable.
pub(super) fn ring(eventfd: impl AsFd) {
    // This can only fail with EAGAIN, at a count of 2^64 - 2, and then the eventfd is readable anyway.
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub(super) fn silence(eventfd: impl AsFd) {
    // This can only fail with EAGAIN, and then the eventfd was not readable.
    let _ = rustix::io::read(eventfd, &mut [0_u8; 8]);
}
