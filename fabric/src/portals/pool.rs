//! Memory in which messages wait until they are taken, in slots of three sizes.

use std::io;

use crate::{driver::LocalRange, memory::Region};

/// The slots.
#[derive(Debug)]
pub(super) struct Pool {
    region: Region,
    free: [Vec<u32>; CLASSES],
}

/// A slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) class: u8,
    at: u32,
}

impl Pool {
    /// # Errors
    /// When there is no memory for it.
    pub(super) fn new() -> io::Result<Self> {
        let len = (0..CLASSES).map(|class| SIZES[class] * COUNTS[class] as usize);
        Ok(Self {
            region: Region::vacant(len.sum())?,
            free: COUNTS.map(|count| (0..count).rev().collect()),
        })
    }

    /// The class of slots for so many bytes.
    pub(super) fn class(len: usize) -> u8 {
        let class = SIZES.iter().position(|size| len <= *size);
        let class = class.unwrap_or_else(|| panic!("a message of {len} bytes"));
        u8::try_from(class).unwrap_or(u8::MAX)
    }

    pub(super) fn take(&mut self, class: u8) -> Option<Slot> {
        let at = self.free[usize::from(class)].pop()?;
        Some(Slot { class, at })
    }

    pub(super) fn give_back(&mut self, slot: Slot) {
        self.free[usize::from(slot.class)].push(slot.at);
    }

    /// Where it is in the pool's memory.
    pub(super) fn offset(slot: Slot) -> usize {
        let class = usize::from(slot.class);
        let before: usize = (0..class)
            .map(|class| SIZES[class] * COUNTS[class] as usize)
            .sum();
        before + SIZES[class] * slot.at as usize
    }

    pub(super) fn fill(&self, slot: Slot, header: &[u8], body: &[u8]) {
        let at = Self::offset(slot);
        self.region.write(at, header);
        self.region.write(at + header.len(), body);
    }

    /// All of it, for a descriptor.
    pub(super) fn range(&self) -> LocalRange {
        self.region.range()
    }
}

/// The longest header.
pub(super) const HEADER_MAX: usize = 128;
/// The longest body.
pub(super) const BODY_MAX: usize = 64 << 10;
/// Room for a short message.
pub(super) const SHORT: usize = 256;
const CLASSES: usize = 3;
/// Short ones are most; long ones have room for a header and the longest body. 5.6 MiB, made as they are used.
const SIZES: [usize; CLASSES] = [SHORT, 8192 + HEADER_MAX, BODY_MAX + HEADER_MAX];
const COUNTS: [u32; CLASSES] = [1024, 128, 64];
/// What one peer may have of them, so that one that takes nothing leaves enough for others.
pub(super) const OF_ONE_PEER: [usize; CLASSES] = [256, 32, 16];

#[cfg(test)]
mod tests {
    use super::{BODY_MAX, COUNTS, HEADER_MAX, Pool, SIZES};

    #[test]
    fn slots_do_not_overlap_and_come_back() {
        let mut pool = Pool::new().expect("memory");
        let mut taken: Vec<_> = (0..3_u8)
            .flat_map(|class| std::iter::from_fn(|| pool.take(class)).collect::<Vec<_>>())
            .collect();
        assert_eq!(taken.len(), COUNTS.iter().sum::<u32>() as usize);
        taken.sort_by_key(|slot| Pool::offset(*slot));
        let mut end = 0;
        for slot in &taken {
            assert_eq!(Pool::offset(*slot), end);
            end += SIZES[usize::from(slot.class)];
        }
        assert!(end <= pool.range().len());
        pool.give_back(taken[0]);
        assert_eq!(pool.take(taken[0].class), Some(taken[0]));
    }

    #[test]
    fn the_longest_message_has_a_slot() {
        assert_eq!(Pool::class(HEADER_MAX + BODY_MAX), 2);
        assert_eq!((Pool::class(0), Pool::class(257)), (0, 1));
    }
}
