//! Registered buffers from a driver.
#![expect(unsafe_code, reason = "claims a fresh region for one buffer")]

use std::io;

use ripstop_fabric::{
    driver::{Driver, LocalRange},
    memory::Region,
};

use super::{RegBuf, Wire};

impl<T: Wire> RegBuf<T> {
    /// A zeroed buffer in a region of its own.
    pub(crate) fn allocate(driver: &mut dyn Driver, len: usize) -> io::Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let region = driver.allocate(bytes)?;
        // SAFETY: the region is new, so nobody has a key to it; keys are made only for operations that own the buffer.
        Ok(unsafe { Self::over(region, len) })
    }

    /// The memory of a window: a zeroed buffer, and the region for the engine to make a key of. Whoever holds the buffer looks
    /// into it only while no neighbour may access the window.
    ///
    /// There is a line behind it. Copies by string instructions look so far, and a get of a page takes 160 ns instead of 40 where
    /// the window ends with a page and the next one is not mapped.
    pub(crate) fn for_window(driver: &mut dyn Driver, len: usize) -> io::Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(LINE))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let region = driver.allocate(bytes)?;
        // SAFETY: the only holder of the buffer is an `onesided::Port`, which lends it only while its window is closed: then no
        // neighbour has been let in, and this process uses the region for nothing else.
        Ok(unsafe { Self::over(region, len) })
    }
}

/// Bytes.
const LINE: usize = 64;

/// `len` bytes of a window's region, for the driver to make a key of; no command gets this range.
pub(crate) fn range_of(region: &Region, start: usize, len: usize) -> LocalRange {
    // SAFETY: nothing is read or written through it.
    unsafe { LocalRange::new(region.at(start, len), len) }
}

/// The word at `offset` of a region, for the driver to make a key of; no command gets this range.
pub(crate) fn word_of(region: &Region, offset: usize) -> LocalRange {
    // SAFETY: nothing is read or written through it: a key is an address, and who holds the key goes through atomics.
    unsafe { LocalRange::new(region.at(offset, size_of::<u64>()), size_of::<u64>()) }
}
