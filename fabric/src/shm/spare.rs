//! Descriptors to give up where a process has no others: who is to be woken through a pipe, and is not, sleeps for ever.

use std::{
    fs::File,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// One for the pipe, and one to see whose it is; nothing where they could not be had again.
#[derive(Debug)]
pub(super) struct Spare(Mutex<Option<[OwnedFd; 2]>>);

/// Those of this process, as long as somebody keeps them.
static KEPT: Mutex<Weak<Spare>> = Mutex::new(Weak::new());

/// Has them ready for as long as this is kept.
pub(super) fn keep() -> Arc<Spare> {
    let mut kept = lock(&KEPT);
    if let Some(spare) = kept.upgrade() {
        return spare;
    }
    let spare = Arc::new(Spare(Mutex::new(open())));
    *kept = Arc::downgrade(&spare);
    spare
}

/// Does what needs two more descriptors, and closes them again.
pub(super) fn instead<R>(work: impl FnOnce() -> R) -> R {
    let Some(spare) = lock(&KEPT).upgrade() else {
        return work();
    };
    let mut place = lock(&spare.0);
    drop(place.take());
    let done = work();
    *place = open();
    done
}

fn open() -> Option<[OwnedFd; 2]> {
    let one = || File::open("/dev/null").ok().map(OwnedFd::from);
    Some([one()?, one()?])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
