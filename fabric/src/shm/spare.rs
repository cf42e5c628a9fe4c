//! Descriptors to give up where a process has no others: who is to be woken through a pipe, and is not, sleeps for ever.

use std::{
    fs::File,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// One for the pipe, and one to see whose it is.
type Spare = [OwnedFd; 2];

static SPARE: Mutex<Option<Spare>> = Mutex::new(None);

/// Has them ready, from now on.
pub(super) fn keep() {
    let spare = &mut *place();
    if spare.is_none() {
        *spare = open();
    }
}

/// Does what needs two more descriptors, and closes them again.
pub(super) fn instead<R>(work: impl FnOnce() -> R) -> R {
    let spare = &mut *place();
    drop(spare.take());
    let done = work();
    *spare = open();
    done
}

fn open() -> Option<Spare> {
    let one = || File::open("/dev/null").ok().map(OwnedFd::from);
    Some([one()?, one()?])
}

fn place() -> MutexGuard<'static, Option<Spare>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}
