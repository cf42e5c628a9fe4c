//! Spare descriptors, closed temporarily when a process has run out of them. Otherwise a peer that sleeps on a pipe could not be
//! woken and would sleep forever.

use std::{
    fs::File,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Two spare descriptors: one for the pipe, and one to check whose it is. `None` if they could not be opened again.
#[derive(Debug)]
pub(super) struct SpareFds(Mutex<Option<[OwnedFd; 2]>>);

/// The spare descriptors of this process, as long as they are held.
static KEPT: Mutex<Weak<SpareFds>> = Mutex::new(Weak::new());

/// Opens the spare descriptors, and keeps them as long as the result is held.
pub(super) fn keep() -> Arc<SpareFds> {
    let mut kept = lock(&KEPT);
    if let Some(spare) = kept.upgrade() {
        return spare;
    }
    let spare = Arc::new(SpareFds(Mutex::new(open())));
    *kept = Arc::downgrade(&spare);
    spare
}

/// Runs `work` with two more descriptors available, by closing the spare ones meanwhile.
pub(super) fn with_spares_closed<R>(work: impl FnOnce() -> R) -> R {
    let Some(spare) = lock(&KEPT).upgrade() else {
        return work();
    };
    // The lock is held until the spare descriptors are open again, so that two threads do not use the same ones.
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
