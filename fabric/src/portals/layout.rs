//! Bytes of a C structure whose layout is known when the program runs.

use std::ffi::c_void;

/// Room for any structure of any family, all zero at first: fields that a family does not know stay so.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(super) struct Bytes([[u8; 16]; 8]);

impl Bytes {
    /// Where it shows what is written.
    pub(super) const fn marked() -> Self {
        Self([[MARK; 16]; 8])
    }

    /// How many bytes were written from the start on, if all of them differ from what they were.
    pub(super) fn written(&self) -> usize {
        let all = self.0.as_flattened();
        all.iter()
            .rposition(|byte| *byte != MARK)
            .map_or(0, |last| last + 1)
    }

    /// A number of 1, 2, 4 or 8 bytes.
    pub(super) fn get(&self, at: usize, len: usize) -> u64 {
        let mut number = [0; 8];
        number[..len].copy_from_slice(&self.0.as_flattened()[at..][..len]);
        u64::from_le_bytes(number)
    }

    /// Its low bytes.
    pub(super) fn put(&mut self, at: usize, len: usize, number: u64) {
        let number = number.to_le_bytes();
        self.0.as_flattened_mut()[at..][..len].copy_from_slice(&number[..len]);
    }

    /// For the library to read.
    pub(super) const fn read(&self) -> *const c_void {
        (&raw const self.0).cast()
    }

    /// For the library to write.
    pub(super) const fn write(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }
}

/// No handle ends with it: those that are numbers are small, and processes have no such addresses.
const MARK: u8 = 0xa5;

// Numbers of C lie in memory as this reads them.
const _: () = assert!(cfg!(target_endian = "little"), "all BXI machines are");
