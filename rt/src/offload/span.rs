//! Bytes of a program's memory.

use std::{fmt, ops::Range};

/// One of a program's three pieces of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a program has these three pieces of memory"
)]
pub enum Buffer {
    /// What the caller gave; no step writes it.
    Input,
    /// What the caller gets; it may hold a contribution at the start.
    Output,
    /// Room for partial results, with anything in it at the start.
    Scratch,
}

/// Bytes of one buffer, in an order: runs of equal length at equal distances, of which the last may be shorter.
///
/// Byte `i` of the span is byte `start + (i / run) · stride + i % run` of the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_structs,
    reason = "five numbers, written out by who lowers a plan"
)]
pub struct Span {
    /// Where.
    pub buffer: Buffer,
    /// The first byte.
    pub start: usize,
    /// Bytes in all.
    pub len: usize,
    /// Bytes in a row; `len` when the span is contiguous.
    pub run: usize,
    /// From the start of one run to the start of the next, in bytes; it may go back.
    pub stride: isize,
}

impl Buffer {
    /// `len` bytes in a row from `start`.
    #[must_use]
    pub const fn span(self, start: usize, len: usize) -> Span {
        Span {
            buffer: self,
            start,
            len,
            run: len,
            stride: 0,
        }
    }
}

impl Span {
    /// No bytes: what a signal carries.
    pub const EMPTY: Self = Buffer::Input.span(0, 0);

    /// The same number of bytes in runs of `run`, a `stride` apart.
    #[must_use]
    pub const fn in_runs(self, run: usize, stride: isize) -> Self {
        Self {
            run,
            stride,
            ..self
        }
    }

    /// Whether all bytes are in one row.
    #[must_use]
    pub const fn is_contiguous(&self) -> bool {
        self.run >= self.len
    }

    /// The least range that all its bytes are in, or `None` when there is none in a buffer.
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
        // The run before the last may end after it: the last one may be short.
        let before_last = last - self.stride.unsigned_abs();
        let end = last.checked_add(self.last_run(runs))?;
        Some(first..end.max(before_last.checked_add(self.run)?))
    }

    /// Whether its runs do not touch each other.
    pub(super) fn is_disjoint(&self) -> bool {
        self.is_contiguous() || self.stride.unsigned_abs() >= self.run
    }

    /// Whether both name the same byte. Only for spans that have [`bounds`](Self::bounds).
    ///
    /// Costs nothing while the bounds are apart or both are contiguous, else O(runs).
    pub(crate) fn meets(&self, other: &Self) -> bool {
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

    /// Both spans, of one length, as pieces that are rows of both: where each begins in its buffer, and how long they are.
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

    /// Where position `at` of the span is, with the rest of its run.
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

    /// Its runs from the lowest address up; the bounds, when the runs touch each other.
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

    /// How many runs, `None` when bytes are asked for in runs of none.
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

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{};{}]", self.buffer, self.start, self.len)?;
        if self.is_contiguous() {
            return Ok(());
        }
        write!(f, " in runs of {} every {}", self.run, self.stride)
    }
}
