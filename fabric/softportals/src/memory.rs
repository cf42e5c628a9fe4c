//! Memory of the application, as the interface accesses it.

use std::sync::Arc;

/// Memory accessed by address: the process's own memory, or a vector in tests.
pub trait AppMemory {
    /// Reads memory at `at` into `into`.
    ///
    /// # Errors
    /// Fails if some of the memory cannot be read.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), AccessFault>;

    /// Writes `from` to memory at `at`.
    ///
    /// # Errors
    /// Fails if some of the memory cannot be written. The bytes before that may have been written.
    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), AccessFault>;

    /// Replaces the word at `at` by the result of `change`.
    ///
    /// The step is atomic for all other threads if the word is aligned and has 1, 2, 4 or 8 bytes. `before` has the length of the
    /// word, and receives the previous value. `change` may be called more than once.
    ///
    /// # Errors
    /// Fails if the word cannot be read or written.
    fn update(
        &mut self,
        at: u64,
        before: &mut [u8],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessFault> {
        self.read(at, before)?;
        let mut after = before.to_vec();
        change(&mut after);
        self.write(at, &after)
    }

    /// Makes changes by [`update`](Self::update) visible to all threads, if they are not visible immediately.
    fn publish(&mut self) {}

    /// Like [`Self::read`], for memory that may not exist because a peer chose the address.
    ///
    /// # Errors
    /// Fails if some of the memory cannot be read.
    fn read_unsure(&mut self, at: u64, into: &mut [u8]) -> Result<(), AccessFault> {
        self.read(at, into)
    }

    /// Like [`Self::write`], for memory that may not exist because a peer chose the address.
    ///
    /// # Errors
    /// Fails if some of the memory cannot be written. The bytes before that may have been written.
    fn write_unsure(&mut self, at: u64, from: &[u8]) -> Result<(), AccessFault> {
        self.write(at, from)
    }
}

/// Memory does not exist, or does not permit the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault;

/// Memory of a descriptor or a list entry: one range, or several that form one.
#[derive(Clone, Debug)]
pub struct SoftRegion {
    parts: RegionRanges,
    len: u64,
    /// True if no peer chooses addresses in the region.
    trusted: bool,
}

#[derive(Clone, Debug)]
enum RegionRanges {
    One(u64),
    /// Ranges, each with its offset in the region.
    Many(Arc<[(u64, IovecSegment)]>),
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IovecSegment {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl SoftRegion {
    /// Returns a region of `len` bytes from `start` on. All of the address space is `flat(0, u64::MAX)`.
    #[must_use]
    pub const fn flat(start: u64, len: u64) -> Self {
        Self {
            parts: RegionRanges::One(start),
            len,
            trusted: false,
        }
    }

    /// Returns a region of several ranges, one after the other. Returns `None` if their total length overflows.
    #[must_use]
    pub fn vector(segments: &[IovecSegment]) -> Option<Self> {
        let mut len = 0_u64;
        let mut parts = Vec::with_capacity(segments.len());
        for segment in segments {
            parts.push((len, *segment));
            len = len.checked_add(segment.len)?;
        }
        let parts = RegionRanges::Many(parts.into());
        Some(Self {
            parts,
            len,
            trusted: false,
        })
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the region has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of ranges, or `None` if the region was made by [`Self::flat`].
    #[must_use]
    pub fn segments(&self) -> Option<usize> {
        match &self.parts {
            RegionRanges::One(_) => None,
            RegionRanges::Many(parts) => Some(parts.len()),
        }
    }

    /// Returns true if `len` bytes from `offset` on are inside the region.
    #[must_use]
    pub const fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// Returns the address of `offset`. Past the end, the last range is extended.
    #[must_use]
    pub fn address(&self, offset: u64) -> u64 {
        match &self.parts {
            RegionRanges::One(start) => start.wrapping_add(offset),
            RegionRanges::Many(parts) => {
                let at = parts.partition_point(|(before, _)| *before <= offset);
                let part = at.checked_sub(1).map(|at| parts[at]);
                part.map_or(0, |(before, segment)| {
                    segment.start.wrapping_add(offset - before)
                })
            }
        }
    }

    pub(crate) fn read<M: AppMemory>(
        &self,
        memory: &mut M,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), AccessFault> {
        let mut done = 0;
        self.each(offset, into.len(), |at, len| {
            let piece = &mut into[done..][..len];
            if self.is_unsure() {
                memory.read_unsure(at, piece)?;
            } else {
                memory.read(at, piece)?;
            }
            done += len;
            Ok(())
        })
    }

    pub(crate) fn write<M: AppMemory>(
        &self,
        memory: &mut M,
        offset: u64,
        from: &[u8],
    ) -> Result<(), AccessFault> {
        let mut done = 0;
        self.each(offset, from.len(), |at, len| {
            let piece = &from[done..][..len];
            if self.is_unsure() {
                memory.write_unsure(at, piece)?;
            } else {
                memory.write(at, piece)?;
            }
            done += len;
            Ok(())
        })
    }

    /// Replaces elements of `size` bytes.
    ///
    /// An element that is in one piece of memory that certainly exists is replaced in one atomic step. `change` gets the offset
    /// and the contents of each element, and `before` receives the previous contents.
    pub(crate) fn update<M: AppMemory>(
        &self,
        memory: &mut M,
        offset: u64,
        size: usize,
        before: &mut [u8],
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), AccessFault> {
        if !self.holds(offset, before.len() as u64) {
            return Err(AccessFault);
        }
        for (index, element) in before.chunks_mut(size).enumerate() {
            let at = index * size;
            let offset = offset + at as u64;
            let mut change = |word: &mut [u8]| change(at, word);
            if let Some(address) = self.piece(offset, element.len() as u64) {
                memory.update(address, element, &mut change)?;
            } else {
                self.read(memory, offset, element)?;
                let mut after = element.to_vec();
                change(&mut after);
                self.write(memory, offset, &after)?;
            }
        }
        Ok(())
    }

    /// Returns the address of `len` bytes from `offset` on, if they certainly exist and are in one piece.
    fn piece(&self, offset: u64, len: u64) -> Option<u64> {
        let first = self.address(offset);
        let last = self.address(offset + len - 1);
        (!self.is_unsure() && last.wrapping_sub(first) == len - 1).then_some(first)
    }

    /// Returns the same region for use by its owner, whose addresses are trusted.
    pub(crate) fn trusted(self) -> Self {
        Self {
            trusted: true,
            ..self
        }
    }

    /// Returns true if the region is longer than any mapping: it stands for all of the address space, and an address in it may
    /// not exist.
    const fn is_unsure(&self) -> bool {
        !self.trusted && self.len > 1 << 46
    }

    /// Calls `touch` for each piece of the range, in order.
    fn each(
        &self,
        offset: u64,
        len: usize,
        mut touch: impl FnMut(u64, usize) -> Result<(), AccessFault>,
    ) -> Result<(), AccessFault> {
        if !self.holds(offset, len as u64) {
            return Err(AccessFault);
        }
        let parts = match &self.parts {
            RegionRanges::One(_) if len == 0 => return Ok(()),
            RegionRanges::One(start) => {
                return touch(start.checked_add(offset).ok_or(AccessFault)?, len);
            }
            RegionRanges::Many(parts) => parts,
        };
        let end = offset + len as u64;
        let first = parts.partition_point(|(before, part)| before + part.len <= offset);
        let touched = parts[first..]
            .iter()
            .take_while(|(before, _)| *before < end);
        for (before, part) in touched {
            let from = offset.max(*before);
            let len = end.min(before + part.len) - from;
            let at = part.start.checked_add(from - before).ok_or(AccessFault)?;
            if len > 0 {
                touch(at, usize::try_from(len).map_err(|_| AccessFault)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{AccessFault, AppMemory, IovecSegment, SoftRegion};

    impl AppMemory for Vec<u8> {
        fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), AccessFault> {
            let at = usize::try_from(at).map_err(|_| AccessFault)?;
            let from = self.get(at..).and_then(|rest| rest.get(..into.len()));
            into.copy_from_slice(from.ok_or(AccessFault)?);
            Ok(())
        }
        fn write(&mut self, at: u64, from: &[u8]) -> Result<(), AccessFault> {
            let at = usize::try_from(at).map_err(|_| AccessFault)?;
            let into = self
                .get_mut(at..)
                .and_then(|rest| rest.get_mut(..from.len()));
            into.ok_or(AccessFault)?.copy_from_slice(from);
            Ok(())
        }
    }

    fn vector(segments: &[(u64, u64)]) -> SoftRegion {
        let segments: Vec<IovecSegment> = segments
            .iter()
            .map(|&(start, len)| IovecSegment { start, len })
            .collect();
        SoftRegion::vector(&segments).expect("short")
    }

    #[test]
    fn several_ranges_count_as_one() {
        let mut memory: Vec<u8> = (0..32).collect();
        let region = vector(&[(4, 2), (9, 0), (20, 3), (0, 1)]);
        let mut all = [0; 6];
        region.read(&mut memory, 0, &mut all).expect("inside");
        assert_eq!(all, [4, 5, 20, 21, 22, 0]);
        region.write(&mut memory, 1, &[91, 92]).expect("inside");
        assert_eq!((memory[5], memory[20]), (91, 92));
        assert_eq!((region.len(), region.segments()), (6, Some(4)));
        assert_eq!((region.address(0), region.address(3)), (4, 21));
    }

    #[test]
    fn what_is_outside_is_a_fault_and_not_a_panic() {
        let mut memory = vec![0; 8];
        for region in [SoftRegion::flat(4, 4), vector(&[(4, 2), (6, 2)])] {
            assert_eq!(region.read(&mut memory, 2, &mut [0; 3]), Err(AccessFault));
            assert_eq!(
                region.read(&mut memory, u64::MAX, &mut [0; 3]),
                Err(AccessFault)
            );
            assert_eq!(region.read(&mut memory, 4, &mut []), Ok(()));
        }
        let everything = SoftRegion::flat(0, u64::MAX);
        assert_eq!(everything.write(&mut memory, 6, &[0; 4]), Err(AccessFault));
        assert_eq!(everything.write(&mut memory, 4, &[0; 4]), Ok(()));
        assert_eq!(
            SoftRegion::flat(u64::MAX, 8).read(&mut memory, 4, &mut [0]),
            Err(AccessFault)
        );
        let endless = IovecSegment {
            start: 0,
            len: u64::MAX,
        };
        assert!(SoftRegion::vector(&[endless, endless]).is_none());
    }
}
