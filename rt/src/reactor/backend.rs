//! The one place that sleeps, in two makes, and the choice between them.
//!
//! io_uring is the faster one, and the only one that sleeps on futex words. epoll is there on every Linux: enterprise
//! distributions and container runtimes forbid io_uring more often than not.

use std::{fmt::Debug, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use ripstop_fabric::driver::WaitOn;

use super::{
    epoll::Epoll,
    uring::{self, Uring},
};

pub(crate) use super::notifier::Notifier;

/// Sleeps on everything at once.
///
/// Before each sleep the caller has armed its drivers; what fired while it was awake is forgotten, because a word that
/// differs from its armed value, or a descriptor that is still readable, ends the sleep at once. Threads may take turns
/// with one backend.
pub(crate) trait Backend: Send + Debug {
    /// `uring` or `epoll`.
    fn name(&self) -> &'static str;

    /// [`WaitOn::Futex`] can be watched; otherwise drivers must be opened with descriptors.
    fn futex(&self) -> bool;

    /// Adds to what is slept on. For the start: it may make a new ring.
    ///
    /// # Errors
    /// `Unsupported` for a futex word where there is only epoll or an old kernel; else what the system said.
    fn watch(&mut self, waits: &[WaitOn]) -> io::Result<()>;

    /// Sleeps until something watched fires, [`Notifier::notify`], or the timeout. It may end early for no cause, but a
    /// timeout is never cut short by rounding.
    ///
    /// # Errors
    /// What the system said: memory ran out, or a watched descriptor is none.
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Does what `sleep` does before it sleeps: from now on [`readable_fd`](Self::readable_fd) becomes readable when
    /// something fires or has fired. Call it before every wait for that descriptor, and [`Notifier::wake_up`] after it.
    ///
    /// # Errors
    /// As for `sleep`.
    #[cfg_attr(
        not(any(test, feature = "tokio")),
        expect(dead_code, reason = "only tokio sleeps this way")
    )]
    fn prepare(&mut self) -> io::Result<()>;

    /// A descriptor that an event loop of somebody else's can wait for, edge- or level-triggered, after `prepare`.
    #[cfg_attr(
        not(any(test, feature = "tokio")),
        expect(dead_code, reason = "only tokio sleeps this way")
    )]
    fn readable_fd(&self) -> Arc<OwnedFd>;

    /// What other threads end the sleep with.
    fn notifier(&self) -> Notifier;
}

const _: Option<&dyn Backend> = None; // stays dyn-compatible

/// What this machine allows.
#[derive(Debug)]
pub(crate) struct Probe {
    /// What io_uring can do here, or a sentence that says why there is none and what would help.
    pub(crate) uring: Result<UringCaps, String>,
}

/// What io_uring can do here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UringCaps {
    /// Waiting on futex words, since Linux 6.7.
    pub(crate) futex: bool,
    /// Sleeping without being counted as waiting for a disk, since Linux 6.15.
    pub(crate) no_iowait: bool,
}

/// Looks what this machine allows. Costs the making of one ring, about 50 µs.
pub(crate) fn probe() -> Probe {
    Probe {
        uring: Uring::open(uring::set_up).map(|ring| ring.caps()),
    }
}

/// The value of `RIPSTOP_REACTOR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// io_uring where it works, else epoll.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// epoll.
    Epoll,
}

/// A backend, and a sentence that says why it is this one.
///
/// # Errors
/// `Unsupported` when io_uring was asked for and there is none; what the system said when it has no descriptors left.
pub(crate) fn open(choice: Choice) -> io::Result<(Box<dyn Backend>, String)> {
    open_with(choice, uring::set_up)
}

/// [`open`] on a machine where making a ring ends as `set_up` says.
pub(super) fn open_with(
    choice: Choice,
    set_up: uring::SetUp,
) -> io::Result<(Box<dyn Backend>, String)> {
    match choice {
        Choice::Epoll => Ok((
            Box::new(Epoll::open()?),
            "epoll, because RIPSTOP_REACTOR=epoll".to_owned(),
        )),
        Choice::Uring => Uring::open(set_up)
            .map_err(refused)
            .map(|ring| with_reason(ring, "because RIPSTOP_REACTOR=uring")),
        Choice::Auto => match Uring::open(set_up) {
            Ok(ring) => Ok(with_reason(ring, "because it works here")),
            Err(why) => Ok((Box::new(Epoll::open()?), format!("epoll, because {why}"))),
        },
    }
}

fn with_reason(ring: Uring, because: &str) -> (Box<dyn Backend>, String) {
    let waits = if ring.caps().futex {
        "futex words and descriptors"
    } else {
        "descriptors (futex words need Linux 6.7)"
    };
    (Box::new(ring), format!("io_uring on {waits}, {because}"))
}

fn refused(why: String) -> io::Error {
    let message = format!(
        "RIPSTOP_REACTOR=uring cannot be had: {why}; set RIPSTOP_REACTOR=epoll or leave it unset"
    );
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// The answer to a futex word that cannot be watched.
pub(super) fn no_futex(who: &str) -> io::Error {
    let message = format!(
        "{who} cannot sleep on a futex word: open the driver with a descriptor as its doorbell"
    );
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// The longest sleep; longer ones end early. More milliseconds than 24 days have do not fit the oldest `epoll_wait`.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
