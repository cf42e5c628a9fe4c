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
#[derive(Clone, Debug)]
pub(crate) struct Notifier(Arc<Shared>);

struct Shared {
    state: AtomicU8,
    doorbell: Doorbell,
}

enum Doorbell {
    /// An eventfd that is only ever written: backends wait for *edges* on it, and its count says nothing.
    Eventfd(OwnedFd),
    /// Who schedules simulated hosts, whether they sleep or not, and which host this is.
    Call(Arc<dyn Fn(u32) + Send + Sync>, u32),
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
        Ok(Self(Arc::new(Shared {
            state: AtomicU8::new(AWAKE),
            doorbell: Doorbell::Eventfd(new_eventfd()?),
        })))
    }

    /// A notifier that calls `ring` with the host's number, for a runtime that never sleeps by itself.
    pub(crate) fn calling(ring: Arc<dyn Fn(u32) + Send + Sync>, host: u32) -> Self {
        Self(Arc::new(Shared {
            state: AtomicU8::new(ASLEEP),
            doorbell: Doorbell::Call(ring, host),
        }))
    }

    /// Ends the sleep. Never blocks.
    pub(crate) fn notify(&self) {
        match &self.0.doorbell {
            Doorbell::Eventfd(doorbell) => {
                if self.0.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
                    ring(doorbell);
                }
            }
            Doorbell::Call(ring, host) => ring(*host),
        }
    }

    /// The reactor's side: from now on `notify` rings the doorbell. `false`, and awake again, if it came before.
    pub(super) fn fall_asleep(&self) -> bool {
        let notified = self.0.state.swap(ASLEEP, Ordering::AcqRel) == NOTIFIED;
        if notified {
            self.wake_up();
        }
        !notified
    }

    /// The reactor's side: the sleep is over, and with it every notification so far is heard. `sleep` does it by itself;
    /// without it, one that ended a wait after `prepare` costs an empty turn more.
    pub(crate) fn wake_up(&self) {
        // A swap, not a store: it must see what the notifying thread wrote.
        let _ = self.0.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// The reactor's side: what becomes readable, with an edge for every ring.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        match &self.0.doorbell {
            Doorbell::Eventfd(doorbell) => doorbell.as_fd(),
            Doorbell::Call(..) => unreachable!("no backend is made with such a notifier"),
        }
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == ASLEEP
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier")
            .field("state", &self.state)
            .finish_non_exhaustive()
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
