//! A descriptor to give up where a process has no other: who is to be woken through a pipe, and is not, sleeps for ever.

use std::{
    fs::File,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

static SPARE: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Has one ready, from now on.
pub(super) fn keep() {
    let spare = &mut *place();
    if spare.is_none() {
        *spare = open();
    }
}

/// Does what needs one more descriptor, and closes it again.
pub(super) fn instead<R>(work: impl FnOnce() -> R) -> R {
    let spare = &mut *place();
    drop(spare.take());
    let done = work();
    *spare = open();
    done
}

fn open() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

fn place() -> MutexGuard<'static, Option<OwnedFd>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}
