//! Steps of a plan, and the memory that they touch.

use std::{fmt, ops::Range};

/// One of a rank's three pieces of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PlanMemory {
    /// The caller's input; no step writes it.
    Input,
    /// The caller's output. Collectives in place find the contribution here.
    Output,
    /// Room for partial results, of [`Plan::scratch`](super::Plan::scratch) elements; undefined at the start.
    Scratch,
}

/// Elements of one buffer, in an order: runs of equal length at equal distances, of which the last may be shorter.
///
/// Position `i` of the span is element `start + (i / run) · stride + i % run`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElementSpan {
    /// The buffer.
    pub buffer: PlanMemory,
    /// The first element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// Elements in a run; `len` if the span is contiguous.
    pub run: usize,
    /// Distance from the start of one run to the start of the next, in elements; it may be negative.
    pub stride: isize,
}

/// The number of a step: its position in the list of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(u32);

/// Action of a step.
///
/// A send completes when its span may be written again, a receive when the data is there. The k-th send of a plan to a rank, in
/// the order of the list, matches the k-th receive from it there, whenever the two run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanAction {
    /// Sends a message. Without elements, it is a signal.
    Send {
        /// The receiver.
        to: usize,
        /// The elements.
        from: ElementSpan,
    },
    /// Receives the message of `into.len` elements that `from` sends to this rank.
    Recv {
        /// The sender.
        from: usize,
        /// Span that the message is received into.
        into: ElementSpan,
    },
    /// Copies between spans of one length that do not overlap.
    Copy {
        /// The source.
        from: ElementSpan,
        /// The destination.
        into: ElementSpan,
    },
    /// Combines, element by element, spans of one length that do not overlap.
    Reduce {
        /// The operand that is left as it is.
        from: ElementSpan,
        /// The operand that becomes the result.
        into: ElementSpan,
        /// The side of the operation on which `from` stands.
        side: PlanSide,
    },
    /// Does nothing; it completes when all steps it waits for have. Many steps can wait for it instead.
    Join,
}

/// The side of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanSide {
    /// `into = from ⊕ into`.
    Left,
    /// `into = into ⊕ from`.
    Right,
}

impl PlanMemory {
    /// Returns `len` consecutive elements from `start`.
    #[must_use]
    pub const fn span(self, start: usize, len: usize) -> ElementSpan {
        ElementSpan {
            buffer: self,
            start,
            len,
            run: len,
            stride: 0,
        }
    }
}

impl ElementSpan {
    /// The span without elements: what a signal carries.
    pub const EMPTY: Self = PlanMemory::Input.span(0, 0);

    /// Returns the same number of elements in runs of `run`, a `stride` apart.
    #[must_use]
    pub const fn in_runs(self, run: usize, stride: isize) -> Self {
        Self {
            run,
            stride,
            ..self
        }
    }

    /// Returns `len` elements from position `start` of a contiguous span.
    ///
    /// # Panics
    /// Panics if they are not inside, or the span has several runs.
    #[must_use]
    pub fn part(self, start: usize, len: usize) -> Self {
        assert!(self.is_contiguous(), "{self:?} has several runs");
        assert!(start + len <= self.len, "{start}+{len} in {self:?}");
        self.buffer.span(self.start + start, len)
    }

    /// Returns true if all elements are consecutive.
    #[must_use]
    pub const fn is_contiguous(&self) -> bool {
        self.run >= self.len
    }

    /// Returns the runs, in order: the elements of the buffer that each covers.
    ///
    /// # Panics
    /// Panics during iteration if a run begins before the buffer or does not fit a `usize`.
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let count = self.len.div_ceil(self.run.max(1));
        (0..count).map(move |i| {
            let back = self.stride.unsigned_abs() * i;
            let start = if self.stride < 0 {
                self.start.checked_sub(back)
            } else {
                self.start.checked_add(back)
            };
            let start = start.expect("a run begins inside its buffer");
            start..start + self.run.min(self.len - i * self.run)
        })
    }
}

impl fmt::Debug for ElementSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{};{}]", self.buffer, self.start, self.len)?;
        if self.is_contiguous() {
            return Ok(());
        }
        write!(f, " in runs of {} every {}", self.run, self.stride)
    }
}

impl StepId {
    /// Returns the step at `index` of the list.
    ///
    /// # Panics
    /// Panics from 2³² on.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a plan has less than 2^32 steps"))
    }

    /// Returns the step's position in the list.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl PlanAction {
    /// Returns the span that the step reads.
    pub fn reads(&self) -> impl Iterator<Item = ElementSpan> {
        let spans = match *self {
            Self::Send { from, .. } | Self::Copy { from, .. } => [Some(from), None],
            Self::Reduce { from, into, .. } => [Some(from), Some(into)],
            Self::Recv { .. } | Self::Join => [None, None],
        };
        spans.into_iter().flatten()
    }

    /// Returns the span that the step writes.
    #[must_use]
    pub const fn writes(&self) -> Option<ElementSpan> {
        match *self {
            Self::Recv { into, .. } | Self::Copy { into, .. } | Self::Reduce { into, .. } => {
                Some(into)
            }
            Self::Send { .. } | Self::Join => None,
        }
    }

    /// Returns true for a receive that lands in the caller's own buffer, with no copy after it. The sender must be
    /// notified that the buffer is exposed, as for any receive that a peer writes into.
    #[must_use]
    pub fn lands_in_user_buffer(&self) -> bool {
        matches!(self, Self::Recv { into, .. } if into.buffer == PlanMemory::Output && into.len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::PlanMemory::Scratch;

    #[test]
    fn runs_follow_each_other_forwards_and_backwards() {
        let forward: Vec<_> = Scratch.span(2, 5).in_runs(2, 4).runs().collect();
        assert_eq!(forward, [2..4, 6..8, 10..11]);
        let backward: Vec<_> = Scratch.span(4, 6).in_runs(2, -2).runs().collect();
        assert_eq!(backward, [4..6, 2..4, 0..2]);
        assert_eq!(Scratch.span(7, 0).runs().count(), 0);
    }
}
