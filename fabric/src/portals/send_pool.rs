//! Memory for outgoing messages until they are accepted, in slots of three sizes.

use std::io;

use crate::{driver::LocalRange, memory::MemoryRegion};

/// Pool of slots.
#[derive(Debug)]
pub(super) struct PortalsSendPool {
    /// Memory for all slots, plus as much again whenever that many slots were lost.
    parts: Vec<MemoryRegion>,
    free: [Vec<u32>; CLASSES],
    /// Slots made so far, including lost ones.
    made: [u32; CLASSES],
}

/// A slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortalsSendSlot {
    pub(super) class: u8,
    at: u32,
}

impl PortalsSendPool {
    /// Allocates the pool.
    ///
    /// # Errors
    /// Fails if there is no memory for it.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            parts: vec![MemoryRegion::vacant(start_of(CLASSES))?],
            free: COUNTS.map(|count| (0..count).rev().collect()),
            made: COUNTS,
        })
    }

    /// Returns the class of slots for this many bytes.
    pub(super) fn class(len: usize) -> u8 {
        let class = SIZES.iter().position(|size| len <= *size);
        let class = class.unwrap_or_else(|| panic!("a message of {len} bytes"));
        u8::try_from(class).unwrap_or(u8::MAX)
    }

    pub(super) fn take(&mut self, class: u8) -> Option<PortalsSendSlot> {
        let at = self.free[usize::from(class)].pop()?;
        Some(PortalsSendSlot { class, at })
    }

    pub(super) fn give_back(&mut self, slot: PortalsSendSlot) {
        self.free[usize::from(slot.class)].push(slot.at);
    }

    /// Replaces a slot that the library may still read. Its memory is never reused, because the last read is unknown.
    pub(super) fn lose(&mut self, slot: PortalsSendSlot) {
        let class = usize::from(slot.class);
        let new = self.made[class];
        if (new / COUNTS[class]) as usize == self.parts.len() {
            let Ok(part) = MemoryRegion::vacant(start_of(CLASSES)) else {
                return; // the pool has one slot less
            };
            self.parts.push(part);
        }
        self.made[class] += 1;
        self.free[class].push(new);
    }

    /// Returns the part with a slot, and the offset in it.
    fn place(&self, slot: PortalsSendSlot) -> (&MemoryRegion, usize) {
        let class = usize::from(slot.class);
        let (part, nth) = (slot.at / COUNTS[class], slot.at % COUNTS[class]);
        let at = start_of(class) + SIZES[class] * nth as usize;
        (&self.parts[part as usize], at)
    }

    pub(super) fn fill(&self, slot: PortalsSendSlot, header: &[u8], body: &[u8]) {
        let (part, at) = self.place(slot);
        part.write(at, header);
        part.write(at + header.len(), body);
    }

    /// Returns the first bytes of a slot; without a slot, an empty range.
    pub(super) fn range(&self, slot: Option<PortalsSendSlot>, len: usize) -> LocalRange {
        let (part, at) = slot.map_or((&self.parts[0], 0), |slot| self.place(slot));
        part.range().slice(at, len)
    }
}

/// Returns the offset of the first slot of a class.
fn start_of(class: usize) -> usize {
    let before = (0..class).map(|class| SIZES[class] * COUNTS[class] as usize);
    before.sum()
}

/// Bytes of the longest header.
pub(super) const HEADER_MAX: usize = 128;
/// Bytes of the longest body.
pub(super) const BODY_MAX: usize = 64 << 10;
/// Bytes of a slot for a short message.
pub(super) const SHORT: usize = 256;
const CLASSES: usize = 3;
/// Bytes of the slots of each class: most are for short messages, and the longest fit a header and the longest body. 5.6 MiB in
/// all, backed by pages as they are used.
const SIZES: [usize; CLASSES] = [SHORT, 8192 + HEADER_MAX, BODY_MAX + HEADER_MAX];
const COUNTS: [u32; CLASSES] = [1024, 128, 64];
/// Slots of each class that one peer may use, so that a peer that accepts nothing leaves enough for others.
pub(super) const OF_ONE_PEER: [usize; CLASSES] = [256, 32, 16];

#[cfg(test)]
mod tests {
    use super::{BODY_MAX, COUNTS, HEADER_MAX, PortalsSendPool, PortalsSendSlot, SIZES};

    fn take_all(pool: &mut PortalsSendPool) -> Vec<PortalsSendSlot> {
        (0..3_u8)
            .flat_map(|class| std::iter::from_fn(|| pool.take(class)).collect::<Vec<_>>())
            .collect()
    }

    /// Returns the sorted start addresses of slots, and asserts that no two overlap.
    fn starts(pool: &PortalsSendPool, slots: &[PortalsSendSlot]) -> Vec<usize> {
        let ends = |slot: &PortalsSendSlot| {
            let len = SIZES[usize::from(slot.class)];
            let start = pool.range(Some(*slot), len).start().addr().get();
            (start, start + len)
        };
        let mut all: Vec<_> = slots.iter().map(ends).collect();
        all.sort_unstable();
        assert!(all.is_sorted_by(|one, next| one.1 <= next.0));
        all.into_iter().map(|(start, _)| start).collect()
    }

    #[test]
    fn slots_do_not_overlap_and_come_back() {
        let mut pool = PortalsSendPool::new().expect("memory");
        let taken = take_all(&mut pool);
        assert_eq!(taken.len(), COUNTS.iter().sum::<u32>() as usize);
        starts(&pool, &taken);
        pool.give_back(taken[0]);
        assert_eq!(pool.take(taken[0].class), Some(taken[0]));
    }

    #[test]
    fn what_is_lost_is_never_used_again_and_there_are_as_many_as_before() {
        let mut pool = PortalsSendPool::new().expect("memory");
        let mut ever = Vec::new();
        for _ in 0..3 {
            let taken = take_all(&mut pool);
            assert_eq!(taken.len(), COUNTS.iter().sum::<u32>() as usize);
            taken.iter().for_each(|slot| pool.lose(*slot));
            ever.extend(taken);
        }
        starts(&pool, &ever);
    }

    #[test]
    fn the_longest_message_has_a_slot() {
        assert_eq!(PortalsSendPool::class(HEADER_MAX + BODY_MAX), 2);
        assert_eq!(
            (PortalsSendPool::class(0), PortalsSendPool::class(257)),
            (0, 1)
        );
    }
}
