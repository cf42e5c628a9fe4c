//! Descriptors that this process has published by number. Only these may be handed over.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::memory::{MemoryRegion, WeakRegion};

#[derive(Debug)]
enum PublishedFd {
    Memory(WeakRegion),
    /// The read end and the write end.
    Pipe(Weak<OwnedFd>, Weak<OwnedFd>),
}

/// Published descriptors by number. A closed one may stay here until its number is reused.
static PUBLISHED: Mutex<BTreeMap<u32, PublishedFd>> = Mutex::new(BTreeMap::new());

pub(in super::super) fn publish_memory(region: &MemoryRegion) {
    lend(&region.as_fd(), PublishedFd::Memory(region.downgrade()));
}

pub(in super::super) fn publish_pipe(read: &Arc<OwnedFd>, write: &Arc<OwnedFd>) {
    let ends = PublishedFd::Pipe(Arc::downgrade(read), Arc::downgrade(write));
    lend(read, ends);
}

/// Returns the memory published by this number.
pub(super) fn memory(number: u32) -> Option<MemoryRegion> {
    match lock().get(&number)? {
        PublishedFd::Memory(region) => region.upgrade(),
        PublishedFd::Pipe(..) => None,
    }
}

/// Returns the pipe published by this number.
pub(super) fn pipe(number: u32) -> Option<[Arc<OwnedFd>; 2]> {
    match lock().get(&number)? {
        PublishedFd::Pipe(read, write) => Some([read.upgrade()?, write.upgrade()?]),
        PublishedFd::Memory(_) => None,
    }
}

fn lend(fd: &impl AsRawFd, lent: PublishedFd) {
    if let Ok(number) = u32::try_from(fd.as_raw_fd()) {
        lock().insert(number, lent);
    }
}

fn lock() -> MutexGuard<'static, BTreeMap<u32, PublishedFd>> {
    PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner)
}
