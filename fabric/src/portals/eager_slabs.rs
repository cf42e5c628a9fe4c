//! Memory in which messages of all peers arrive, one after the other.
//!
//! The adapter fills a slab from its start without gaps, and unlinks it when the longest message no longer fits. No event says
//! that all messages of a slab have been reported, so this is computed. Nothing more will arrive once the reported messages have
//! no gap below the furthest end, and that end is where the adapter must have unlinked the slab.

use std::io;

use crate::{driver::LocalRange, driver::PayloadView, memory::MemoryRegion};

/// The slabs of a rail.
#[derive(Debug)]
pub(super) struct EagerSlabs {
    region: MemoryRegion,
    len: usize,
    min_free: usize,
    slabs: Vec<EagerSlab>,
    /// Free slabs that the adapter has not taken back yet.
    kept: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct EagerSlab {
    /// Bytes of reported messages.
    reported: usize,
    /// Furthest end of a reported message.
    end: usize,
}

/// Location of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabRange {
    pub(super) slab: usize,
    offset: usize,
    len: usize,
}

impl EagerSlabs {
    /// Allocates `count` slabs of `len` bytes. An adapter unlinks a slab with less than `min_free` bytes left, the size of the
    /// longest message.
    ///
    /// # Errors
    /// Fails if there is no memory for them.
    pub(super) fn new(count: usize, len: usize, min_free: usize) -> io::Result<Self> {
        Ok(Self {
            region: MemoryRegion::anonymous((count * len).max(1))?,
            len,
            min_free,
            slabs: vec![EagerSlab::default(); count],
            kept: Vec::new(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.slabs.len()
    }

    pub(super) const fn min_free(&self) -> usize {
        self.min_free
    }

    /// Keeps a free slab that the adapter cannot take back now.
    pub(super) fn keep(&mut self, slab: usize) {
        self.kept.push(slab);
    }

    /// Takes a free slab, to return it to the adapter.
    pub(super) fn take_kept(&mut self) -> Option<usize> {
        self.kept.pop()
    }

    /// Returns true if the adapter has no slab, so that nothing can arrive.
    pub(super) fn are_all_kept(&self) -> bool {
        !self.slabs.is_empty() && self.kept.len() == self.slabs.len()
    }

    pub(super) fn range(&self, slab: usize) -> LocalRange {
        self.region.range().slice(slab * self.len, self.len)
    }

    /// Returns the place that an event names, if it is inside a slab.
    pub(super) fn place(&self, start: u64, len: u64) -> Option<SlabRange> {
        let base = self.region.start().addr().get();
        let offset = usize::try_from(start).ok()?.checked_sub(base)?;
        let len = usize::try_from(len).ok()?;
        let slab = offset / self.len;
        let fits = slab < self.slabs.len() && offset % self.len + len <= self.len;
        fits.then_some(SlabRange { slab, offset, len })
    }

    /// Reads the first bytes of a message.
    pub(super) fn read(&self, place: SlabRange, into: &mut [u8]) {
        self.region.read(place.offset, into);
    }

    /// Returns the bytes of a message after the first `after`.
    pub(super) fn payload(&self, place: SlabRange, after: usize) -> PayloadView<'_> {
        self.region.payload(place.offset + after, place.len - after)
    }

    /// Accounts for an admitted message of `len` bytes that failed in transit. Its event need not say where it was, but its room
    /// is used up. Returns true if that frees the slab, which must then be returned to the adapter.
    pub(super) fn lost(&mut self, slab: usize, len: u64) -> bool {
        let Some(place) = self.slabs.get_mut(slab) else {
            return false;
        };
        place.reported += usize::try_from(len).unwrap_or(self.len).min(self.len);
        self.is_free(slab)
    }

    /// Accounts for a message that was handled. Returns true if that frees the slab, which must then be returned to the adapter.
    pub(super) fn done(&mut self, place: SlabRange) -> bool {
        let slab = &mut self.slabs[place.slab];
        slab.reported += place.len;
        slab.end = slab.end.max(place.offset % self.len + place.len);
        self.is_free(place.slab)
    }

    /// Returns true if a slab is free, and resets it. Failed messages have no known place, so they may lie behind the furthest
    /// end.
    fn is_free(&mut self, slab: usize) -> bool {
        let limit = self.len - self.min_free;
        let slab = &mut self.slabs[slab];
        let free = slab.reported >= slab.end && slab.reported > limit;
        if free {
            *slab = EagerSlab::default();
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::EagerSlabs;

    #[test]
    fn a_slab_is_free_when_all_of_its_messages_are_done() {
        let mut slabs = EagerSlabs::new(2, 4096, 1000).expect("memory");
        let base = slabs.range(0).start().addr().get() as u64;
        let mut done = |at: u64, len| {
            let place = slabs.place(base + at, len).expect("inside");
            slabs.done(place)
        };
        assert!(!done(0, 2000));
        assert!(!done(2500, 900), "one before it is not told of yet");
        assert!(done(2000, 500));
        assert!(!done(0, 3096), "the longest message still fits");
        assert!(done(3096, 1));
        assert!(!done(4096, 3000), "another slab");
    }

    #[test]
    fn what_has_failed_uses_up_its_place_wherever_that_is() {
        let mut slabs = EagerSlabs::new(2, 4096, 1000).expect("memory");
        let base = slabs.range(0).start().addr().get() as u64;
        let done = |slabs: &mut EagerSlabs, at: u64, len| {
            let place = slabs.place(base + at, len).expect("inside");
            slabs.done(place)
        };
        assert!(!slabs.lost(0, 1000), "there is room behind it");
        assert!(!done(&mut slabs, 1000, 2096));
        assert!(slabs.lost(0, 1), "the last one");
        assert!(
            !done(&mut slabs, 1000, 3000),
            "one before it is not told of"
        );
        assert!(slabs.lost(0, 1000));
        assert!(slabs.lost(0, u64::MAX) && !slabs.lost(2, 1));
    }

    #[test]
    fn what_is_not_inside_a_slab_is_nowhere() {
        let slabs = EagerSlabs::new(2, 4096, 1000).expect("memory");
        let base = slabs.range(0).start().addr().get() as u64;
        for (start, len) in [
            (base - 1, 1),
            (base + 4095, 2),
            (base + 8192, 1),
            (0, 8),
            (base, u64::MAX),
        ] {
            assert_eq!(slabs.place(start, len), None);
        }
    }
}
