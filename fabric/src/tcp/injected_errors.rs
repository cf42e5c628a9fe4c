//! Errors of the kernel that a test cannot provoke: the next calls of this thread fail with them.

use std::{cell::RefCell, collections::VecDeque, io};

/// A call that a test can have fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailingCall {
    Socket,
    Accept,
    Send,
    /// Memory for a copy of what a get has asked for.
    Copy,
}

thread_local! {
    static NEXT: RefCell<VecDeque<(FailingCall, i32)>> = const { RefCell::new(VecDeque::new()) };
}

/// Has the next calls of this kind fail, each with one of these errors.
pub(super) fn inject(call: FailingCall, errors: &[i32]) {
    NEXT.with_borrow_mut(|next| next.extend(errors.iter().map(|errno| (call, *errno))));
}

/// Returns the number of errors that no call has met yet.
pub(super) fn left() -> usize {
    NEXT.with_borrow(VecDeque::len)
}

/// Fails if a test wants the next call of this kind to.
pub(super) fn meet(call: FailingCall) -> io::Result<()> {
    NEXT.with_borrow_mut(|next| {
        let found = next.iter().position(|(other, _)| *other == call);
        match found.and_then(|at| next.remove(at)) {
            Some((_, errno)) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    })
}
