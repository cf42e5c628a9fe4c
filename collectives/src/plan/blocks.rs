//! Divides a buffer into one block for each rank.

use std::ops::Range;

use super::{BufferSpan, ProgramBuffer};

/// Blocks that follow each other without gaps, the block of rank 0 first. All lengths are in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPartition {
    layout: BlockDivision,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BlockDivision {
    Each(usize),
    Split { len: usize, parts: usize },
    Starts(Vec<usize>),
}

impl BlockPartition {
    /// Returns blocks of `len` elements each, for any number of ranks.
    #[must_use]
    pub const fn each(len: usize) -> Self {
        Self {
            layout: BlockDivision::Each(len),
        }
    }

    /// Divides `len` elements into `parts` blocks whose lengths differ by at most one, the longer ones first.
    #[must_use]
    pub const fn split(len: usize, parts: usize) -> Self {
        Self {
            layout: BlockDivision::Split { len, parts },
        }
    }

    /// Returns a block of `counts[i]` elements for each `i`; zeros are allowed. Takes O(`counts`) memory, other blocks take
    /// none.
    #[must_use]
    pub fn counts(counts: &[usize]) -> Self {
        let ends = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        Self {
            layout: BlockDivision::Starts([0].into_iter().chain(ends).collect()),
        }
    }

    /// Returns the start of block `i`. If `i` is the number of blocks, this is the length of all.
    #[must_use]
    pub fn start(&self, i: usize) -> usize {
        match &self.layout {
            BlockDivision::Each(len) => i * len,
            BlockDivision::Split { len, parts } => i * (len / parts) + i.min(len % parts),
            BlockDivision::Starts(starts) => starts[i],
        }
    }

    /// Returns the length of block `i`.
    #[must_use]
    pub fn len(&self, i: usize) -> usize {
        self.start(i + 1) - self.start(i)
    }

    /// Returns the length of every block if the blocks were made with [`each`](Self::each).
    #[must_use]
    pub const fn even(&self) -> Option<usize> {
        match self.layout {
            BlockDivision::Each(len) => Some(len),
            BlockDivision::Split { .. } | BlockDivision::Starts(_) => None,
        }
    }

    /// Returns true if the lengths were given one by one.
    pub(crate) const fn has_counts(&self) -> bool {
        matches!(self.layout, BlockDivision::Starts(_))
    }

    /// Returns the longest of the first `count` blocks.
    pub(crate) fn longest(&self, count: usize) -> usize {
        match self.layout {
            BlockDivision::Each(len) => len,
            BlockDivision::Split { len, parts } => len.div_ceil(parts),
            BlockDivision::Starts(_) => (0..count).map(|i| self.len(i)).max().unwrap_or(0),
        }
    }

    /// Returns block `i` of `buffer`.
    pub(crate) fn block_span(&self, buffer: ProgramBuffer, i: usize) -> BufferSpan {
        self.range_span(buffer, i..i + 1)
    }

    /// Returns these blocks of `buffer`.
    pub(crate) fn range_span(&self, buffer: ProgramBuffer, range: Range<usize>) -> BufferSpan {
        let start = self.start(range.start);
        buffer.span(start, self.start(range.end) - start)
    }

    /// Returns these blocks of a span that holds the blocks from `first` on.
    pub(crate) fn within(&self, span: BufferSpan, first: usize, range: Range<usize>) -> BufferSpan {
        let start = self.start(range.start);
        span.part(start - self.start(first), self.start(range.end) - start)
    }
}

#[cfg(test)]
mod tests {
    use super::BlockPartition;

    #[test]
    fn blocks_follow_each_other_and_cover_all() {
        let split = BlockPartition::split(11, 4);
        let lens: Vec<usize> = (0..4).map(|i| split.len(i)).collect();
        assert_eq!((lens.as_slice(), split.start(4)), (&[3, 3, 3, 2][..], 11));
        let ragged = BlockPartition::counts(&[0, 5, 0, 2]);
        assert_eq!(
            (ragged.start(3), ragged.start(4), ragged.longest(4)),
            (5, 7, 5)
        );
        assert_eq!(
            (
                BlockPartition::each(3).start(2),
                BlockPartition::each(3).len(9)
            ),
            (6, 3)
        );
    }
}
