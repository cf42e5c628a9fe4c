//! Words of a region that are checked once, and then looked at without a further check.
#![expect(unsafe_code, reason = "lends atomics of a mapping that it keeps")]

use std::{
    fmt,
    ops::Deref,
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU32, AtomicU64},
};

use super::MemoryRegion;

/// Words of a region, checked once to be inside it.
#[derive(Clone)]
pub struct RegionWords {
    start: NonNull<AtomicU64>,
    len: usize,
    /// Keeps the words mapped.
    region: MemoryRegion,
}

// SAFETY: atomics, which stay mapped as long as the region is held.
unsafe impl Send for RegionWords {}
// SAFETY: as above.
unsafe impl Sync for RegionWords {}

/// One word of a region, checked once to be inside it.
#[derive(Clone)]
pub struct RegionWord {
    word: NonNull<AtomicU32>,
    /// Keeps the word mapped.
    region: MemoryRegion,
}

// SAFETY: an atomic, which stays mapped as long as the region is held.
unsafe impl Send for RegionWord {}
// SAFETY: as above.
unsafe impl Sync for RegionWord {}

impl MemoryRegion {
    /// Returns `len` words from `offset` on.
    ///
    /// # Panics
    /// Panics if they are not inside the region, not aligned, or the region is mapped read-only.
    #[must_use]
    pub fn words(&self, offset: usize, len: usize) -> RegionWords {
        self.check_word(offset, 8);
        // More bytes than an address can name would be few after an overflow.
        let bytes = len.saturating_mul(8);
        RegionWords {
            start: self.at(offset, bytes).cast(),
            len,
            region: self.clone(),
        }
    }

    /// Returns the word at `offset` bytes, to be looked at without a further check.
    ///
    /// # Panics
    /// Panics if it is not inside the region, not aligned, or the region is mapped read-only.
    #[must_use]
    pub fn word(&self, offset: usize) -> RegionWord {
        RegionWord {
            word: NonNull::from(self.atomic_u32(offset)),
            region: self.clone(),
        }
    }
}

impl Deref for RegionWord {
    type Target = AtomicU32;

    #[inline]
    fn deref(&self) -> &AtomicU32 {
        // SAFETY: checked by `MemoryRegion::word` to be inside the mapping, aligned and writable; all access to it is atomic.
        unsafe { self.word.as_ref() }
    }
}

impl fmt::Debug for RegionWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a word of {:?}", self.region)
    }
}

impl Deref for RegionWords {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: checked by `MemoryRegion::words` to be inside the mapping, aligned and writable; all access to them is atomic.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for RegionWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} words of {:?}", self.len, self.region)
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryRegion;

    #[test]
    #[should_panic(expected = "bytes at 0 of a region")]
    fn words_of_more_bytes_than_an_address_names_are_refused() {
        let region = MemoryRegion::create("words", 64, false).unwrap();
        let _words = region.words(0, 1 << (usize::BITS - 3));
    }
}
