//! Spans: parts of the memory of a program, in bytes, or of a plan, in elements.

use std::{fmt, ops::Range};

/// One of a program's three memory areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a program has these three pieces of memory"
)]
pub enum ProgramBuffer {
    /// Input of the caller, which no step writes.
    Input,
    /// Output for the caller. It may hold a contribution at the start.
    Output,
    /// Room for partial results, with arbitrary content at the start.
    Scratch,
}

/// Bytes of one buffer, in an order: runs of equal length at equal distances. The last run may be shorter.
///
/// Byte `i` of the span is byte `start + (i / run) · stride + i % run` of the buffer. The spans of plans count elements instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_structs,
    reason = "five numbers, written out by the code that makes a plan"
)]
pub struct BufferSpan {
    /// Memory area of the bytes.
    pub buffer: ProgramBuffer,
    /// Index of the first byte.
    pub start: usize,
    /// Total number of bytes.
    pub len: usize,
    /// Bytes in a run; `len` if the span is contiguous.
    pub run: usize,
    /// Distance from the start of one run to the start of the next, in bytes; it may be negative.
    pub stride: isize,
}

impl ProgramBuffer {
    /// Returns `len` contiguous bytes from `start`.
    #[must_use]
    pub const fn span(self, start: usize, len: usize) -> BufferSpan {
        BufferSpan {
            buffer: self,
            start,
            len,
            run: len,
            stride: 0,
        }
    }
}

impl BufferSpan {
    /// A span without bytes, as in a signal.
    pub const EMPTY: Self = ProgramBuffer::Input.span(0, 0);

    /// Returns the same number of bytes in runs of `run` bytes at the distance `stride`.
    #[must_use]
    pub const fn in_runs(self, run: usize, stride: isize) -> Self {
        Self {
            run,
            stride,
            ..self
        }
    }

    /// Returns `len` bytes from position `start` of a contiguous span.
    ///
    /// # Panics
    /// Panics if they are not inside, or the span has several runs.
    #[must_use]
    pub fn part(self, start: usize, len: usize) -> Self {
        assert!(self.is_contiguous(), "{self:?} has several runs");
        assert!(start + len <= self.len, "{start}+{len} in {self:?}");
        self.buffer.span(self.start + start, len)
    }

    /// Returns the runs, in order: the bytes of the buffer that each covers.
    ///
    /// # Panics
    /// Panics during iteration if a run begins before the buffer or does not fit a `usize`.
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let count = self.len.div_ceil(self.run.max(1));
        (0..count).map(move |nth| {
            let away = self.stride.unsigned_abs() * nth;
            let start = if self.stride < 0 {
                self.start.checked_sub(away)
            } else {
                self.start.checked_add(away)
            };
            let start = start.expect("a run begins inside its buffer");
            start..start + self.run.min(self.len - nth * self.run)
        })
    }

    /// Returns the bytes of a span that counts elements of `size` bytes.
    pub(super) fn scaled(self, size: usize) -> Self {
        let row = self
            .buffer
            .span(bytes_of(self.start, size), bytes_of(self.len, size));
        if self.is_contiguous() {
            return row;
        }
        let stride = bytes_of(self.stride.unsigned_abs(), size).cast_signed();
        row.in_runs(bytes_of(self.run, size), stride * self.stride.signum())
    }

    /// Returns true if all bytes are contiguous.
    #[must_use]
    pub const fn is_contiguous(&self) -> bool {
        self.run >= self.len
    }

    /// Returns the smallest range that contains all bytes, or `None` if it cannot lie in any buffer.
    pub(super) fn bounds(&self) -> Option<Range<usize>> {
        if self.is_contiguous() {
            return Some(self.start..self.start.checked_add(self.len)?);
        }
        let runs = self.count()?;
        let away = self.stride.unsigned_abs().checked_mul(runs - 1)?;
        let (first, last) = if self.stride < 0 {
            (self.start.checked_sub(away)?, self.start)
        } else {
            (self.start, self.start.checked_add(away)?)
        };
        if self.stride <= 0 {
            return Some(first..last.checked_add(self.run)?);
        }
        // The last run may be short, so the run before it may end after it.
        let before_last = last - self.stride.unsigned_abs();
        let end = last.checked_add(self.last_run(runs))?;
        Some(first..end.max(before_last.checked_add(self.run)?))
    }

    /// Returns true if the runs of the span do not overlap.
    pub(super) fn is_disjoint(&self) -> bool {
        self.is_contiguous() || self.stride.unsigned_abs() >= self.run
    }

    /// Returns true if both contain a common byte. Call only for spans that have [`bounds`](Self::bounds).
    ///
    /// Takes constant time if the bounds are apart or both are contiguous, otherwise O(runs).
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        if self.buffer != other.buffer || self.len == 0 || other.len == 0 {
            return false;
        }
        let (Some(mine), Some(theirs)) = (self.bounds(), other.bounds()) else {
            return true;
        };
        if mine.end <= theirs.start || theirs.end <= mine.start {
            return false;
        }
        let solid = |span: &Self| span.is_contiguous() || !span.is_disjoint();
        if solid(self) && solid(other) {
            return true;
        }
        let (mut mine, mut theirs) = (self.ascending().peekable(), other.ascending().peekable());
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            if a.end <= b.start {
                mine.next();
            } else if b.end <= a.start {
                theirs.next();
            } else {
                return true;
            }
        }
        false
    }

    /// Cuts both spans, of the same length, into pieces that are contiguous in both. Returns where each begins in its
    /// buffer, and its length.
    pub(crate) fn pieces(self, other: Self) -> impl Iterator<Item = (usize, usize, usize)> {
        let len = self.len.min(other.len);
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = len - done;
            if left == 0 {
                return None;
            }
            let (mine, theirs) = (self.row_at(done), other.row_at(done));
            let piece = mine.len().min(theirs.len()).min(left);
            done += piece;
            Some((mine.start, theirs.start, piece))
        })
    }

    /// Returns the range from position `at` of the span to the end of its run.
    fn row_at(&self, at: usize) -> Range<usize> {
        if self.is_contiguous() {
            return self.start + at..self.start + self.len;
        }
        let start = self.run_start(at / self.run);
        start + at % self.run..start + self.run
    }

    fn run_start(&self, run: usize) -> usize {
        let away = self.stride.unsigned_abs() * run;
        if self.stride < 0 {
            self.start - away
        } else {
            self.start + away
        }
    }

    /// Returns the runs of the span in ascending order of addresses; if runs overlap, returns the bounds.
    fn ascending(self) -> impl Iterator<Item = Range<usize>> {
        let runs = if self.is_disjoint() {
            self.count().unwrap_or(0)
        } else {
            1
        };
        (0..runs).map(move |nth| {
            if self.is_contiguous() || !self.is_disjoint() {
                return self.bounds().unwrap_or(0..usize::MAX);
            }
            let nth = if self.stride < 0 { runs - 1 - nth } else { nth };
            let start = self.run_start(nth);
            start
                ..start
                    + if nth == runs - 1 {
                        self.last_run(runs)
                    } else {
                        self.run
                    }
        })
    }

    /// Returns the number of runs, or `None` if the runs have no bytes.
    fn count(&self) -> Option<usize> {
        if self.is_contiguous() {
            return Some(1);
        }
        (self.run > 0).then(|| self.len.div_ceil(self.run))
    }

    fn last_run(&self, runs: usize) -> usize {
        self.len - (runs - 1) * self.run
    }
}

/// Returns the bytes of `count` elements.
pub(super) fn bytes_of(count: usize, size: usize) -> usize {
    let bytes = count.checked_mul(size);
    bytes.expect("buffers and scratch that memory has room for")
}

impl fmt::Debug for BufferSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{};{}]", self.buffer, self.start, self.len)?;
        if self.is_contiguous() {
            return Ok(());
        }
        write!(f, " in runs of {} every {}", self.run, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::ProgramBuffer::Scratch;

    #[test]
    fn runs_follow_each_other_forwards_and_backwards() {
        let forward: Vec<_> = Scratch.span(2, 5).in_runs(2, 4).runs().collect();
        assert_eq!(forward, [2..4, 6..8, 10..11]);
        let backward: Vec<_> = Scratch.span(4, 6).in_runs(2, -2).runs().collect();
        assert_eq!(backward, [4..6, 2..4, 0..2]);
        assert_eq!(Scratch.span(7, 0).runs().count(), 0);
        let scaled = Scratch.span(4, 6).in_runs(2, -2).scaled(8);
        assert_eq!(scaled, Scratch.span(32, 48).in_runs(16, -16));
    }
}
