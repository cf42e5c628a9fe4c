//! Memory that messages of all peers arrive in, one after the other.
//!
//! The adapter fills a slab from its start, without gaps, and lets go of it when less than the longest message fits. Nobody says
//! when the last of its messages has been told of, so that is reckoned: when what was told of has no gap below the furthest end,
//! and that end is where the adapter must have let go, nothing is left to come.

use std::io;

use crate::{driver::LocalRange, driver::Payload, memory::Region};

/// The slabs.
#[derive(Debug)]
pub(super) struct Slabs {
    region: Region,
    len: usize,
    min_free: usize,
    slabs: Vec<Slab>,
    /// Free ones that the adapter has not taken back yet.
    kept: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slab {
    /// Bytes of messages that were told of.
    told: usize,
    /// The furthest end of one.
    end: usize,
}

/// Where a message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slab: usize,
    offset: usize,
    len: usize,
}

impl Slabs {
    /// `count` slabs of `len` bytes, of which the last `min_free` are for the longest message.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub(super) fn new(count: usize, len: usize, min_free: usize) -> io::Result<Self> {
        Ok(Self {
            region: Region::anonymous((count * len).max(1))?,
            len,
            min_free,
            slabs: vec![Slab::default(); count],
            kept: Vec::new(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.slabs.len()
    }

    pub(super) const fn min_free(&self) -> usize {
        self.min_free
    }

    /// Keeps one that the adapter does not take back now.
    pub(super) fn keep(&mut self, slab: usize) {
        self.kept.push(slab);
    }

    /// One to be given to the adapter again.
    pub(super) fn take_kept(&mut self) -> Option<usize> {
        self.kept.pop()
    }

    /// Whether the adapter has none at all, so that nothing can come.
    pub(super) fn are_all_kept(&self) -> bool {
        !self.slabs.is_empty() && self.kept.len() == self.slabs.len()
    }

    pub(super) fn range(&self, slab: usize) -> LocalRange {
        self.region.range().slice(slab * self.len, self.len)
    }

    /// The place that an event names, if it is inside a slab.
    pub(super) fn place(&self, start: u64, len: u64) -> Option<Place> {
        let base = self.region.start().addr().get();
        let offset = usize::try_from(start).ok()?.checked_sub(base)?;
        let len = usize::try_from(len).ok()?;
        let slab = offset / self.len;
        let fits = slab < self.slabs.len() && offset % self.len + len <= self.len;
        fits.then_some(Place { slab, offset, len })
    }

    /// The first bytes of a message.
    pub(super) fn read(&self, place: Place, into: &mut [u8]) {
        self.region.read(place.offset, into);
    }

    /// What follows them.
    pub(super) fn payload(&self, place: Place, after: usize) -> Payload<'_> {
        self.region.payload(place.offset + after, place.len - after)
    }

    /// A message of so many bytes, which the adapter had let in, has failed on its way, and its event need not say where it is.
    /// Its place is used up. Whether the slab is free by that, to be given to the adapter again.
    pub(super) fn lost(&mut self, slab: usize, len: u64) -> bool {
        let Some(place) = self.slabs.get_mut(slab) else {
            return false;
        };
        place.told += usize::try_from(len).unwrap_or(self.len).min(self.len);
        self.is_free(slab)
    }

    /// A message is done with. Whether the slab is free by that, to be given to the adapter again.
    pub(super) fn done(&mut self, place: Place) -> bool {
        let slab = &mut self.slabs[place.slab];
        slab.told += place.len;
        slab.end = slab.end.max(place.offset % self.len + place.len);
        self.is_free(place.slab)
    }

    /// Bytes that were told of without a place may lie behind the furthest end.
    fn is_free(&mut self, slab: usize) -> bool {
        let limit = self.len - self.min_free;
        let slab = &mut self.slabs[slab];
        let free = slab.told >= slab.end && slab.told > limit;
        if free {
            *slab = Slab::default();
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::Slabs;

    #[test]
    fn a_slab_is_free_when_all_of_its_messages_are_done() {
        let mut slabs = Slabs::new(2, 4096, 1000).expect("memory");
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
        let mut slabs = Slabs::new(2, 4096, 1000).expect("memory");
        let base = slabs.range(0).start().addr().get() as u64;
        let done = |slabs: &mut Slabs, at: u64, len| {
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
        let slabs = Slabs::new(2, 4096, 1000).expect("memory");
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
