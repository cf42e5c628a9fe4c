//! The backends that sleep on all events, and the choice between them.
//!
//! io_uring is the faster backend, and the only one that sleeps on futex words. epoll works on every Linux, while
//! enterprise distributions and container runtimes often forbid io_uring.

use std::{fmt::Debug, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use ripstop_fabric::driver::WakeSource;

use super::{
    epoll::EpollBackend,
    uring::{self, UringBackend},
    uring_refusal::UringRefusal,
};

pub(crate) use super::notifier::Notifier;

/// Sleeps on all watched events at once.
///
/// The caller arms its drivers before each sleep. The backend forgets events that fired while the caller was awake,
/// because a word that differs from its armed value, or a descriptor that is still readable, ends the sleep
/// immediately. Several threads may use one backend, one after the other.
pub(crate) trait SleepBackend: Send + Debug {
    /// Returns `uring` or `epoll`.
    fn name(&self) -> &'static str;

    /// Returns true if [`WakeSource::Futex`] can be watched. If not, drivers must be opened with descriptors.
    fn futex(&self) -> bool;

    /// Adds events to sleep on. Call this at start only, because it may create a new ring.
    ///
    /// # Errors
    /// `Unsupported` for a futex word if there is only epoll or an old kernel; otherwise the system's error.
    fn watch(&mut self, waits: &[WakeSource]) -> io::Result<()>;

    /// Sleeps until a watched event fires, [`Notifier::notify`] is called, or the timeout passes. The sleep may end
    /// early without a cause, but a timeout is never shortened by rounding.
    ///
    /// # Errors
    /// The system's error: out of memory, or a watched descriptor is invalid.
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Prepares a wait on [`readable_fd`](Self::readable_fd), which becomes readable when an event fires or has fired.
    ///
    /// Call this before every wait for that descriptor, and [`Notifier::wake_up`] after it.
    ///
    /// # Errors
    /// Same as for `sleep`.
    #[cfg_attr(
        not(any(test, feature = "tokio")),
        expect(dead_code, reason = "only tokio sleeps this way")
    )]
    fn prepare(&mut self) -> io::Result<()>;

    /// Returns a descriptor on which another event loop can wait after `prepare`, edge- or level-triggered.
    #[cfg_attr(
        not(any(test, feature = "tokio")),
        expect(dead_code, reason = "only tokio sleeps this way")
    )]
    fn readable_fd(&self) -> Arc<OwnedFd>;

    /// Returns the notifier with which other threads end the sleep.
    fn notifier(&self) -> Notifier;
}

const _: Option<&dyn SleepBackend> = None; // must stay dyn-compatible

/// Capabilities of this machine.
#[derive(Debug)]
pub(crate) struct ReactorProbe {
    /// Capabilities of io_uring, or the reason why it does not work.
    pub(crate) uring: Result<UringCaps, UringRefusal>,
}

/// Capabilities of io_uring on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UringCaps {
    /// True if the kernel's io_uring can wait on futex words (Linux 6.7 or newer).
    pub(crate) futex: bool,
    /// True if the kernel's io_uring can sleep without being counted as waiting for a disk (Linux 6.15 or newer).
    pub(crate) no_iowait: bool,
}

/// Returns the capabilities of this machine. Creates one ring, which takes about 50 µs.
pub(crate) fn probe() -> ReactorProbe {
    ReactorProbe {
        uring: UringBackend::open(uring::set_up).map(|ring| ring.caps()),
    }
}

/// Value of `RIPSTOP_REACTOR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BackendChoice {
    /// Use io_uring if the system permits it, otherwise epoll.
    #[default]
    Auto,
    /// io_uring, or an error if it does not work.
    Uring,
    /// Always epoll.
    Epoll,
}

/// Opens a backend. Also returns a text that says why it is this one.
///
/// # Errors
/// `Unsupported` if io_uring was requested and does not work; the system's error if no descriptors are left.
pub(crate) fn open(choice: BackendChoice) -> io::Result<(Box<dyn SleepBackend>, String)> {
    open_with(choice, uring::set_up)
}

/// Opens a backend like [`open`], with `set_up` to create rings.
pub(super) fn open_with(
    choice: BackendChoice,
    set_up: uring::UringSetup,
) -> io::Result<(Box<dyn SleepBackend>, String)> {
    match choice {
        BackendChoice::Epoll => Ok((
            Box::new(EpollBackend::open()?),
            "epoll, because RIPSTOP_REACTOR=epoll".to_owned(),
        )),
        BackendChoice::Uring => UringBackend::open(set_up)
            .map_err(refused)
            .map(|ring| with_reason(ring, "because RIPSTOP_REACTOR=uring")),
        BackendChoice::Auto => match UringBackend::open(set_up) {
            Ok(ring) => Ok(with_reason(ring, "because it works here")),
            Err(why) => Ok((
                Box::new(EpollBackend::open()?),
                format!("epoll, because {why}"),
            )),
        },
    }
}

fn with_reason(ring: UringBackend, because: &str) -> (Box<dyn SleepBackend>, String) {
    let waits = if ring.caps().futex {
        "futex words and descriptors"
    } else {
        "descriptors (futex words need Linux 6.7)"
    };
    (Box::new(ring), format!("io_uring on {waits}, {because}"))
}

fn refused(why: UringRefusal) -> io::Error {
    let message = format!(
        "RIPSTOP_REACTOR=uring is not available ({why}): set RIPSTOP_REACTOR=epoll, or unset it"
    );
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// Returns the error for a futex word that cannot be watched.
pub(super) fn no_futex(caller: &str) -> io::Error {
    let message = format!(
        "{caller} cannot sleep on a futex word: open the driver with a descriptor as its doorbell"
    );
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// Longest sleep; longer ones end early. The oldest `epoll_wait` takes at most 24 days in milliseconds.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
