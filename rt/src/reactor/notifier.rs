//! Wakes a backend from another thread.
//!
//! Budget of `notify`: one atomic swap when the reactor is awake or has been notified already, else one more system call.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use rustix::event::EventfdFlags;

/// Ends the sleep of one backend, or the next one if it is awake. Clones wake the same backend, and may outlive it.
///
/// What was written before `notify` is seen by the reactor when that sleep is over.
#[derive(Clone)]
pub(crate) struct Notifier(Bell);

#[derive(Clone)]
enum Bell {
    Doorbell(Arc<Shared>),
    /// Who schedules simulated hosts, whether they sleep or not, and which host this is.
    Host(Arc<dyn Fn(u32) + Send + Sync>, u32),
}

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    /// An eventfd that is only ever written: backends wait for *edges* on it, and its count says nothing.
    doorbell: OwnedFd,
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

impl Notifier {
    /// A notifier whose reactor is awake.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Bell::Doorbell(Arc::new(Shared {
            state: AtomicU8::new(AWAKE),
            doorbell: new_eventfd()?,
        }))))
    }

    /// A notifier that calls `ring` with the host's number, for a runtime that never sleeps by itself.
    pub(crate) fn calling(ring: Arc<dyn Fn(u32) + Send + Sync>, host: u32) -> Self {
        Self(Bell::Host(ring, host))
    }

    /// Ends the sleep. Never blocks.
    pub(crate) fn notify(&self) {
        match &self.0 {
            Bell::Doorbell(shared) => {
                if shared.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
                    ring(&shared.doorbell);
                }
            }
            Bell::Host(ring, host) => ring(*host),
        }
    }

    /// The reactor's side: from now on `notify` rings the doorbell. `false`, and awake again, if it came before.
    pub(super) fn fall_asleep(&self) -> bool {
        let notified = self.shared().state.swap(ASLEEP, Ordering::AcqRel) == NOTIFIED;
        if notified {
            self.wake_up();
        }
        !notified
    }

    /// The reactor's side: the sleep is over, and with it every notification so far is heard. `sleep` does it by itself;
    /// without it, one that ended a wait after `prepare` costs an empty turn more.
    pub(crate) fn wake_up(&self) {
        // A swap, not a store: it must see what the notifying thread wrote.
        let _ = self.shared().state.swap(AWAKE, Ordering::AcqRel);
    }

    /// The reactor's side: what becomes readable, with an edge for every ring.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared().doorbell.as_fd()
    }

    fn shared(&self) -> &Shared {
        match &self.0 {
            Bell::Doorbell(shared) => shared,
            Bell::Host(..) => unreachable!("a simulated host has no reactor"),
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
            Bell::Doorbell(shared) => shared.fmt(f),
            Bell::Host(_, host) => write!(f, "Notifier of host {host}"),
        }
    }
}

/// A counter of rings, not blocking.
pub(super) fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?)
}

/// Makes an eventfd readable.
pub(super) fn ring(eventfd: impl AsFd) {
    // It can only fail with EAGAIN, at a count of 2^64 - 2: then it is readable already.
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub(super) fn silence(eventfd: impl AsFd) {
    // It can only fail with EAGAIN: nobody rang.
    let _ = rustix::io::read(eventfd, &mut [0_u8; 8]);
}
