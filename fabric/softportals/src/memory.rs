//! The application's memory, as the interface sees it.

use std::sync::Arc;

/// Memory by address. A real one is the process's own; tests use a vector.
pub trait Memory {
    /// Fills `into` from what is at `at`.
    ///
    /// # Errors
    /// When some of it cannot be read.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// Writes `from` to what is at `at`.
    ///
    /// # Errors
    /// When some of it cannot be written; what was before that may have been.
    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Fault>;

    /// Has `change` replace the word at `at`, in one step for all other threads where the word's length and place allow it: 1, 2,
    /// 4 or 8 bytes, aligned. `before` is as long as the word, and takes what was there; `change` may be called more than once.
    ///
    /// # Errors
    /// When the word cannot be read or written.
    fn update(
        &mut self,
        at: u64,
        before: &mut [u8],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Fault> {
        self.read(at, before)?;
        let mut after = before.to_vec();
        change(&mut after);
        self.write(at, &after)
    }

    /// What [`update`](Self::update) has changed is seen by all threads from now on, where it is not at once.
    fn publish(&mut self) {}

    /// [`Self::read`] of what may not be there: a peer chose the address.
    ///
    /// # Errors
    /// When some of it cannot be read.
    fn read_unsure(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.read(at, into)
    }

    /// [`Self::write`] of what may not be there: a peer chose the address.
    ///
    /// # Errors
    /// When some of it cannot be written; what was before that may have been.
    fn write_unsure(&mut self, at: u64, from: &[u8]) -> Result<(), Fault> {
        self.write(at, from)
    }
}

/// Memory that is not there, or not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// What a descriptor or a list entry is about: one range, or several that count as one.
#[derive(Clone, Debug)]
pub struct Region {
    parts: Parts,
    len: u64,
    /// No peer chooses an address in it.
    trusted: bool,
}

#[derive(Clone, Debug)]
enum Parts {
    One(u64),
    /// Each with its offset in the whole.
    Many(Arc<[(u64, Segment)]>),
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

impl Region {
    /// `len` bytes from `start` on; all of the address space is `flat(0, u64::MAX)`.
    #[must_use]
    pub const fn flat(start: u64, len: u64) -> Self {
        Self {
            parts: Parts::One(start),
            len,
            trusted: false,
        }
    }

    /// Several ranges, one after the other. `None` when they are longer than can be counted.
    #[must_use]
    pub fn vector(segments: &[Segment]) -> Option<Self> {
        let mut len = 0_u64;
        let mut parts = Vec::with_capacity(segments.len());
        for segment in segments {
            parts.push((len, *segment));
            len = len.checked_add(segment.len)?;
        }
        let parts = Parts::Many(parts.into());
        Some(Self {
            parts,
            len,
            trusted: false,
        })
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many ranges it was made of, or `None` if it is plain.
    #[must_use]
    pub fn segments(&self) -> Option<usize> {
        match &self.parts {
            Parts::One(_) => None,
            Parts::Many(parts) => Some(parts.len()),
        }
    }

    /// Whether `len` bytes from `offset` on are inside.
    #[must_use]
    pub const fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// Where `offset` is. Behind the end: where it would be.
    #[must_use]
    pub fn address(&self, offset: u64) -> u64 {
        match &self.parts {
            Parts::One(start) => start.wrapping_add(offset),
            Parts::Many(parts) => {
                let at = parts.partition_point(|(before, _)| *before <= offset);
                let part = at.checked_sub(1).map(|at| parts[at]);
                part.map_or(0, |(before, segment)| {
                    segment.start.wrapping_add(offset - before)
                })
            }
        }
    }

    pub(crate) fn read<M: Memory>(
        &self,
        memory: &mut M,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Fault> {
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

    pub(crate) fn write<M: Memory>(
        &self,
        memory: &mut M,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Fault> {
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

    /// Replaces elements of `size` bytes, each in one step where it lies in one piece that is there: `change` gets the place of
    /// each and what is there, which `before` takes.
    pub(crate) fn update<M: Memory>(
        &self,
        memory: &mut M,
        offset: u64,
        size: usize,
        before: &mut [u8],
        mut change: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), Fault> {
        if !self.holds(offset, before.len() as u64) {
            return Err(Fault);
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

    /// Where `len` bytes from `offset` on are, if they are there for sure and in one piece.
    fn piece(&self, offset: u64, len: u64) -> Option<u64> {
        let first = self.address(offset);
        let last = self.address(offset + len - 1);
        (!self.is_unsure() && last.wrapping_sub(first) == len - 1).then_some(first)
    }

    /// The same memory for its owner, whose addresses are right.
    pub(crate) fn trusted(self) -> Self {
        Self {
            trusted: true,
            ..self
        }
    }

    /// Longer than any mapping can be: it was given to stand for all memory, not for memory that is there.
    const fn is_unsure(&self) -> bool {
        !self.trusted && self.len > 1 << 46
    }

    /// Calls `touch` for each piece of the range, in order.
    fn each(
        &self,
        offset: u64,
        len: usize,
        mut touch: impl FnMut(u64, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if !self.holds(offset, len as u64) {
            return Err(Fault);
        }
        let parts = match &self.parts {
            Parts::One(_) if len == 0 => return Ok(()),
            Parts::One(start) => return touch(start.checked_add(offset).ok_or(Fault)?, len),
            Parts::Many(parts) => parts,
        };
        let end = offset + len as u64;
        let first = parts.partition_point(|(before, part)| before + part.len <= offset);
        let touched = parts[first..]
            .iter()
            .take_while(|(before, _)| *before < end);
        for (before, part) in touched {
            let from = offset.max(*before);
            let len = end.min(before + part.len) - from;
            let at = part.start.checked_add(from - before).ok_or(Fault)?;
            if len > 0 {
                touch(at, usize::try_from(len).map_err(|_| Fault)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, Memory, Region, Segment};

    impl Memory for Vec<u8> {
        fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
            let at = usize::try_from(at).map_err(|_| Fault)?;
            let from = self.get(at..).and_then(|rest| rest.get(..into.len()));
            into.copy_from_slice(from.ok_or(Fault)?);
            Ok(())
        }
        fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Fault> {
            let at = usize::try_from(at).map_err(|_| Fault)?;
            let into = self
                .get_mut(at..)
                .and_then(|rest| rest.get_mut(..from.len()));
            into.ok_or(Fault)?.copy_from_slice(from);
            Ok(())
        }
    }

    fn vector(segments: &[(u64, u64)]) -> Region {
        let segments: Vec<Segment> = segments
            .iter()
            .map(|&(start, len)| Segment { start, len })
            .collect();
        Region::vector(&segments).expect("short")
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
        for region in [Region::flat(4, 4), vector(&[(4, 2), (6, 2)])] {
            assert_eq!(region.read(&mut memory, 2, &mut [0; 3]), Err(Fault));
            assert_eq!(region.read(&mut memory, u64::MAX, &mut [0; 3]), Err(Fault));
            assert_eq!(region.read(&mut memory, 4, &mut []), Ok(()));
        }
        let everything = Region::flat(0, u64::MAX);
        assert_eq!(everything.write(&mut memory, 6, &[0; 4]), Err(Fault));
        assert_eq!(everything.write(&mut memory, 4, &[0; 4]), Ok(()));
        assert_eq!(
            Region::flat(u64::MAX, 8).read(&mut memory, 4, &mut [0]),
            Err(Fault)
        );
        let endless = Segment {
            start: 0,
            len: u64::MAX,
        };
        assert!(Region::vector(&[endless, endless]).is_none());
    }
}
