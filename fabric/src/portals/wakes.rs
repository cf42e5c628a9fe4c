//! The library's own descriptors to sleep on, where it has any.
#![expect(
    unsafe_code,
    reason = "calls C functions, and borrows descriptors of the library's"
)]

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use super::calls::Ni;

impl Ni {
    /// The library's own descriptors to sleep on, duplicated, or none.
    pub(super) fn wake_fds(&self) -> io::Result<Vec<OwnedFd>> {
        let mut fds = PollFds::default();
        let count = self.poll_fds(&mut fds);
        let fds = fds.0[..count].iter().map(|poll| {
            // SAFETY: open as long as the interface is, and duplicated at once.
            let fd = unsafe { BorrowedFd::borrow_raw(poll.fd) };
            fd.try_clone_to_owned()
        });
        fds.collect()
    }

    /// Has the descriptors become readable by what comes from now on. Whether there are any.
    pub(super) fn arm_fds(&self) -> bool {
        self.poll_fds(&mut PollFds::default()) > 0
    }

    /// Has them not readable any more. The library is told what `poll` has found, as it need not look at what is not readable.
    pub(super) fn disarm_fds(&self) {
        let Some(waking) = &self.library.waking else {
            return;
        };
        let mut fds = PollFds::default();
        let count = self.poll_fds(&mut fds);
        // SAFETY: so many entries were filled in. An interrupted look finds nothing, and the next one comes soon.
        let _ready = unsafe { libc::poll(fds.0.as_mut_ptr().cast(), count as libc::nfds_t, 0) };
        // SAFETY: a place for as many as there can be.
        let _events = unsafe { (waking.poll_events)(self.ni, fds.write()) };
    }

    fn poll_fds(&self, fds: &mut PollFds) -> usize {
        let Some(waking) = &self.library.waking else {
            return 0;
        };
        // SAFETY: takes a handle.
        let wanted = usize::try_from(unsafe { (waking.n_fds)(self.ni) }).unwrap_or(0);
        if wanted > FDS_MAX {
            return 0;
        }
        // SAFETY: a place for as many as it said.
        let given = unsafe { (waking.poll_fds)(self.ni, fds.write(), POLLIN) };
        usize::try_from(given).unwrap_or(0).min(wanted)
    }
}

/// `struct pollfd`s.
#[derive(Default)]
struct PollFds([PollFd; FDS_MAX]);

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

impl PollFds {
    const fn write(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

const FDS_MAX: usize = 8;
const POLLIN: c_int = 1;
