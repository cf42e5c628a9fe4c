//! Descriptors that this process has published by number. Only these may be handed over.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::memory::{Region, WeakRegion};

#[derive(Debug)]
enum Lent {
    Memory(WeakRegion),
    /// The read end and the write end.
    Pipe(Weak<OwnedFd>, Weak<OwnedFd>),
}

/// Published descriptors by number. A closed one may stay here until its number is reused.
static LENT: Mutex<BTreeMap<u32, Lent>> = Mutex::new(BTreeMap::new());

pub(in super::super) fn lend_memory(region: &Region) {
    lend(&region.as_fd(), Lent::Memory(region.downgrade()));
}

pub(in super::super) fn lend_pipe(read: &Arc<OwnedFd>, write: &Arc<OwnedFd>) {
    let ends = Lent::Pipe(Arc::downgrade(read), Arc::downgrade(write));
    lend(read, ends);
}

/// Returns the memory published by this number.
pub(super) fn memory(number: u32) -> Option<Region> {
    match lock().get(&number)? {
        Lent::Memory(region) => region.upgrade(),
        Lent::Pipe(..) => None,
    }
}

/// Returns the pipe published by this number.
pub(super) fn pipe(number: u32) -> Option<[Arc<OwnedFd>; 2]> {
    match lock().get(&number)? {
        Lent::Pipe(read, write) => Some([read.upgrade()?, write.upgrade()?]),
        Lent::Memory(_) => None,
    }
}

fn lend(fd: &impl AsRawFd, lent: Lent) {
    if let Ok(number) = u32::try_from(fd.as_raw_fd()) {
        lock().insert(number, lent);
    }
}

fn lock() -> MutexGuard<'static, BTreeMap<u32, Lent>> {
    LENT.lock().unwrap_or_else(PoisonError::into_inner)
}
