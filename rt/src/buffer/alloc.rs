//! Allocation of registered buffers from a driver.
#![expect(unsafe_code, reason = "claims a fresh region for one buffer")]

use std::{io, sync::Arc};

use ripstop_fabric::{
    driver::{Driver, LocalRange},
    memory::MemoryRegion,
};

use super::{RegBuf, Wire};
use crate::engine::PackingBlock;

impl<T: Wire> RegBuf<T> {
    /// Allocates a zeroed buffer in its own region.
    pub(crate) fn allocate(driver: &mut dyn Driver, len: usize) -> io::Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let region = driver.allocate(bytes)?;
        // SAFETY: the region is new, so no peer has a key to it. Keys are made only for operations that own the buffer.
        Ok(unsafe { Self::over(region, len) })
    }

    /// Allocates the memory of a window: a zeroed buffer, and its region, for which the engine makes keys. The holder
    /// of the buffer reads and writes it only while no neighbor may access the window.
    ///
    /// One cache line ([`LINE`]) is added at the end. The lock of the window's numbers lies in that line. String
    /// instructions prefetch that far, too: a get of a page takes 160 ns instead of 40 ns if the window ends with a page
    /// and the next page is not mapped.
    pub(crate) fn for_window(driver: &mut dyn Driver, len: usize) -> io::Result<Self> {
        Self::of_window(len, |bytes| driver.allocate(bytes))
    }

    /// Like [`for_window`](Self::for_window), in memory that the ranks of this node can map, if the driver has such memory.
    pub(crate) fn for_node_window(driver: &mut dyn Driver, len: usize) -> io::Result<Self> {
        Self::of_window(len, |bytes| match driver.node_memory() {
            Some(node) => node.allocate_on_node(bytes),
            None => driver.allocate(bytes),
        })
    }

    /// Returns a buffer over the start of a packing block, to be read only. The caller packs the elements by another handle
    /// before any code looks at them.
    pub(crate) fn in_block(block: Arc<PackingBlock>, len: usize) -> Self {
        let region = block.region().clone();
        // SAFETY: the elements are packed before their operation reads them or returns the buffer. No other code of this rank
        // writes to the block while there is a handle of it, and a receiver only reads it.
        unsafe { Self::over_returning(region, len, move |_| drop(block)) }
    }

    fn of_window(
        len: usize,
        allocate: impl FnOnce(usize) -> io::Result<MemoryRegion>,
    ) -> io::Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(LINE))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let region = allocate(bytes)?;
        // SAFETY: the only holder of the buffer is an `onesided::WindowEnd`, which lends it only while its window is
        // closed. Then no neighbor has access, and this process uses the region for nothing else.
        Ok(unsafe { Self::over(region, len) })
    }
}

/// Length of a cache line, in bytes. The memory of a window has one more line than its elements need, and the lock of the
/// window's numbers lies in that line (rt/src/engine/window/update_lock.rs).
pub(crate) const LINE: usize = 64;

/// Returns `len` bytes of a window's region, for the driver to make a key. No command gets this range.
pub(crate) fn range_of(region: &MemoryRegion, start: usize, len: usize) -> LocalRange {
    // SAFETY: no data is read or written through this range.
    unsafe { LocalRange::new(region.at(start, len), len) }
}

/// Returns the word at `offset` of a region, for the driver to make a key. No command gets this range.
pub(crate) fn word_of(region: &MemoryRegion, offset: usize) -> LocalRange {
    // SAFETY: no data is read or written through this range: a key is an address, and the holder of the key accesses
    // the word by atomics.
    unsafe { LocalRange::new(region.at(offset, size_of::<u64>()), size_of::<u64>()) }
}
