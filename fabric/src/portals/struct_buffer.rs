//! Bytes of a C structure whose layout is known only at run time.

use std::ffi::c_void;

/// Buffer for any structure of any family. Starts as zeros, so fields unknown to a family stay zero.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(super) struct StructBuffer([[u8; 16]; 8]);

impl StructBuffer {
    /// Returns a buffer filled with a mark, which shows what the library has written.
    pub(super) const fn marked() -> Self {
        Self([[MARK; 16]; 8])
    }

    /// Returns the bytes written since [`Self::marked`], counted from the start. Assumes that the last written byte differs from
    /// the mark.
    pub(super) fn written(&self) -> usize {
        let all = self.0.as_flattened();
        all.iter()
            .rposition(|byte| *byte != MARK)
            .map_or(0, |last| last + 1)
    }

    /// Reads a number of 1, 2, 4 or 8 bytes.
    pub(super) fn get(&self, at: usize, len: usize) -> u64 {
        let mut number = [0; 8];
        number[..len].copy_from_slice(&self.0.as_flattened()[at..][..len]);
        u64::from_le_bytes(number)
    }

    /// Writes the low bytes of a number.
    pub(super) fn put(&mut self, at: usize, len: usize, number: u64) {
        let number = number.to_le_bytes();
        self.0.as_flattened_mut()[at..][..len].copy_from_slice(&number[..len]);
    }

    /// Returns a pointer for the library to read from.
    pub(super) const fn read(&self) -> *const c_void {
        (&raw const self.0).cast()
    }

    /// Returns a pointer for the library to write to.
    pub(super) const fn write(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }
}

/// A byte that ends no handle: numeric handles are small, and processes have no addresses that end so.
const MARK: u8 = 0xa5;

// Numbers are accessed as little-endian, which must be the native byte order.
const _: () = assert!(cfg!(target_endian = "little"), "all BXI machines are");
