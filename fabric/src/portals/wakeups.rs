//! The library's own descriptors for sleeping, if it has any.
#![expect(
    unsafe_code,
    reason = "calls C functions, and borrows descriptors of the library's"
)]

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use super::calls::PortalsNi;

impl PortalsNi {
    /// Returns duplicates of the library's descriptors for sleeping; empty if it has none.
    pub(super) fn wake_fds(&self) -> io::Result<Vec<OwnedFd>> {
        let mut fds = PollFdArray::default();
        let count = self.poll_fds(&mut fds);
        let fds = fds.0[..count].iter().map(|poll| {
            // SAFETY: the descriptor is open as long as the interface is, and duplicated at once.
            let fd = unsafe { BorrowedFd::borrow_raw(poll.fd) };
            fd.try_clone_to_owned()
        });
        fds.collect()
    }

    /// Makes the descriptors readable on later events. Returns false if there are none.
    pub(super) fn arm_fds(&self) -> bool {
        self.poll_fds(&mut PollFdArray::default()) > 0
    }

    /// Clears the readiness of the descriptors. The library learns what `poll` found, because it may ignore descriptors
    /// that are not readable.
    pub(super) fn disarm_fds(&self) {
        let Some(waking) = &self.library.waking else {
            return;
        };
        let mut fds = PollFdArray::default();
        let count = self.poll_fds(&mut fds);
        // SAFETY: `count` entries were filled in. An interrupted call finds nothing, and the next one follows soon.
        let _ready = unsafe { libc::poll(fds.0.as_mut_ptr().cast(), count as libc::nfds_t, 0) };
        // SAFETY: the array has room for the maximum number of entries.
        let _events = unsafe { (waking.poll_events)(self.ni, fds.write()) };
    }

    fn poll_fds(&self, fds: &mut PollFdArray) -> usize {
        let Some(waking) = &self.library.waking else {
            return 0;
        };
        // SAFETY: the function takes a handle.
        let wanted = usize::try_from(unsafe { (waking.n_fds)(self.ni) }).unwrap_or(0);
        if wanted > FDS_MAX {
            return 0;
        }
        // SAFETY: the array has room for the announced number of entries.
        let given = unsafe { (waking.poll_fds)(self.ni, fds.write(), POLLIN) };
        usize::try_from(given).unwrap_or(0).min(wanted)
    }
}

/// Array of `struct pollfd`.
#[derive(Default)]
struct PollFdArray([PollFd; FDS_MAX]);

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

impl PollFdArray {
    const fn write(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

const FDS_MAX: usize = 8;
const POLLIN: c_int = 1;
