//! Objects of libibverbs as owned values. Each keeps alive the objects it was made from, so all of them are released, whatever
//! the order in which they are dropped.

mod context;
mod memory;
mod queue_pair;
mod queues;

use std::{fmt, io, ptr::NonNull};

pub(super) use context::{DeviceLimits, PortState, VerbsContext, VerbsPd};
pub(super) use memory::{LocalSge, MrAccess, RemoteAddress, VerbsMr};
pub(super) use queue_pair::{
    CHAIN_MAX, DatagramBytes, PortRoute, QpConnectParams, STEP_MAX, TRIES, VerbsAh, VerbsQp,
    WorkOp, WorkRequest,
};
pub(super) use queues::{VerbsChannel, VerbsCq, VerbsSrq};

/// A pointer from the library.
struct RawHandle<T>(NonNull<T>);

#[expect(
    unsafe_code,
    reason = "libibverbs promises that its objects may be used by any thread"
)]
// SAFETY: libibverbs locks inside; a value is given back once, by its owner.
unsafe impl<T> Send for RawHandle<T> {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl<T> Sync for RawHandle<T> {}

impl<T> RawHandle<T> {
    /// Wraps the pointer that a function returned. If it is null, returns the system's error.
    fn new(made: *mut T, what: &str) -> io::Result<Self> {
        NonNull::new(made).map(Self).ok_or_else(|| last_error(what))
    }

    const fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> fmt::Debug for RawHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

/// Checks the result of a function that returns an error number, or 0 on success.
fn check(result: i32, what: &str) -> io::Result<()> {
    match result {
        0 => Ok(()),
        // Some functions return -1 and set `errno` instead.
        negative if negative < 0 => Err(last_error(what)),
        number => Err(named(io::Error::from_raw_os_error(number), what)),
    }
}

fn last_error(what: &str) -> io::Error {
    named(io::Error::last_os_error(), what)
}

fn named(why: io::Error, what: &str) -> io::Error {
    let advice = match why.raw_os_error() {
        Some(libc::EAGAIN) => {
            ": the cgroup of this job has reached its limit for the device (`rdma.max`), or the device has no more of them"
        }
        Some(libc::ENOMEM) => {
            ": the device has no more of them, or memory is short: `rdma resource` shows what is in use, `ibv_devinfo -v` \
             shows the limits"
        }
        _ => "",
    };
    io::Error::new(
        why.kind(),
        format!("InfiniBand verbs: {what}: {why}{advice}"),
    )
}

#[cfg(test)]
mod tests {
    use super::{io, named};

    #[test]
    fn a_reached_device_limit_is_reported_with_the_limits_that_exist() {
        let said = |error| named(io::Error::from_raw_os_error(error), "a queue pair").to_string();
        assert!(said(libc::EAGAIN).contains("rdma.max"));
        assert!(said(libc::ENOMEM).contains("rdma resource"));
        assert!(
            said(libc::EINVAL).ends_with(&io::Error::from_raw_os_error(libc::EINVAL).to_string())
        );
    }
}
