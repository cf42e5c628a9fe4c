//! The own chunks: where bodies wait that do not fit into a slot.

use std::collections::VecDeque;

use super::segment::{CHUNK_LEN, Segment};

/// Free chunks of the own segment. They are taken in turn, [`STEP`] of them as long as that many do: a chunk that the peer has
/// just read is in its first-level cache, and writing to it takes longer (by a sixth for 4 KiB) than to one read some time ago.
#[derive(Debug)]
pub(super) struct Pool {
    segment: Segment,
    free: VecDeque<u32>,
    /// Chunks below this have their pages.
    reserved: u32,
    /// Chunks from this on will never have them.
    limit: u32,
    /// Chunks with messages in cells.
    in_cells: u32,
    /// By chunk: in how many cells its message lies, and one more while that is the last one.
    uses: Vec<u32>,
    /// The chunks of the last message for cells, and its length.
    last: Vec<u32>,
    last_len: usize,
    /// There were too few for the last one.
    lacks: bool,
}

impl Pool {
    /// Makes the first chunks, so that there is always one to wait for.
    pub(super) fn new(segment: Segment) -> std::io::Result<Self> {
        let free = VecDeque::with_capacity(segment.shape().chunks as usize);
        let limit = segment.shape().chunks;
        let mut pool = Self {
            segment,
            free,
            reserved: 0,
            limit,
            in_cells: 0,
            uses: vec![0; limit as usize],
            last: Vec::new(),
            last_len: 0,
            lacks: false,
        };
        pool.grow()?;
        Ok(pool)
    }

    /// A chunk, or `None` when all are on their way. `reclaim` gives some back: better those, which are still in the caches,
    /// than new ones.
    #[inline]
    pub(super) fn take(&mut self, reclaim: impl FnOnce(&mut Self)) -> Option<u32> {
        if self.free.is_empty() {
            reclaim(self);
        }
        if self.free.is_empty() {
            self.grow_or_stay();
        }
        self.free.pop_front()
    }

    /// Copies a message for cells into chunks, unless it is the last one `again`: how many bytes. `None`: there are not enough.
    pub(super) fn fill_for_cells(&mut self, bytes: &[u8], again: bool) -> Option<usize> {
        if again && bytes.len() == self.last_len {
            return Some(0);
        }
        self.forget_last();
        let chunks = self.in_cells as usize + bytes.len().div_ceil(CHUNK_LEN);
        self.lacks = !self.may_have_in_cells(chunks);
        if self.lacks {
            return None;
        }
        for piece in bytes.chunks(CHUNK_LEN) {
            let Some(chunk) = self.take(|_| {}) else {
                self.forget_last();
                self.lacks = true;
                return None;
            };
            self.in_cells += 1;
            self.uses[chunk as usize] = 1;
            self.last.push(chunk);
            self.fill(chunk, piece);
        }
        self.last_len = bytes.len();
        Some(self.last_len)
    }

    /// Nobody says when a chunk in a cell is free: half of those that have memory are left to rings, so that who waits for a
    /// chunk always waits for one that comes back with a word.
    fn may_have_in_cells(&mut self, chunks: usize) -> bool {
        while chunks > self.reserved as usize / 2 && chunks <= self.limit as usize / 2 {
            self.grow_or_stay();
        }
        chunks <= self.reserved as usize / 2
    }

    /// Whether there were too few chunks for the last message for cells that was to be filled. It is said once.
    pub(super) const fn take_lack(&mut self) -> bool {
        std::mem::replace(&mut self.lacks, false)
    }

    /// Puts the chunks of the last message for cells into one more cell: `into` names them.
    pub(super) fn lend_last(&mut self, into: &mut Vec<u32>) {
        for &chunk in &self.last {
            self.uses[chunk as usize] += 1;
            into.push(chunk);
        }
    }

    fn forget_last(&mut self) {
        self.last_len = 0;
        while let Some(chunk) = self.last.pop() {
            self.give_from_cell(chunk);
        }
    }

    /// The message in a cell was taken.
    #[inline]
    pub(super) fn give_from_cell(&mut self, chunk: u32) {
        let uses = &mut self.uses[chunk as usize];
        *uses -= 1;
        if *uses == 0 {
            self.in_cells -= 1;
            self.give(chunk);
        }
    }

    /// Chunks with messages in cells, or the last one that may be put into more.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) const fn in_cells(&self) -> u32 {
        self.in_cells
    }

    pub(super) fn is_dry(&self) -> bool {
        self.free.is_empty() && self.reserved == self.limit
    }

    /// Copies a body into a chunk that was taken.
    #[inline]
    pub(super) fn fill(&self, chunk: u32, body: &[u8]) {
        assert!(
            body.len() <= CHUNK_LEN,
            "a body of {} bytes in a chunk",
            body.len()
        );
        let (region, at) = (self.segment.region(), self.segment.shape().chunk(chunk));
        region.prefetch(at, body.len());
        region.write(at, body);
    }

    #[inline]
    pub(super) fn give(&mut self, chunk: u32) {
        self.free.push_back(chunk);
    }

    /// No memory for more is the same as none left: those under way come back.
    #[cold]
    fn grow_or_stay(&mut self) {
        self.grow()
            .unwrap_or_else(|_no_memory| self.limit = self.reserved);
    }

    #[cold]
    fn grow(&mut self) -> std::io::Result<()> {
        let count = STEP.min(self.limit - self.reserved);
        if count > 0 {
            self.segment.reserve_chunks(self.reserved, count)?;
            self.free.extend(self.reserved..self.reserved + count);
            self.reserved += count;
        }
        Ok(())
    }
}

/// Bytes that are kept of a chunk: when it is free, and its uses.
pub(super) const LISTS_LEN: usize = 2 * size_of::<u32>();

/// Chunks made at a time: 256 KiB.
pub(super) const STEP: u32 = 32;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::{
        super::{Board, segment::Shape},
        CHUNK_LEN, Pool, STEP, Segment,
    };

    #[test]
    fn rings_keep_half_of_the_chunks_that_have_memory_also_when_there_is_no_more() {
        let (size, slots, chunks) = (1, 2, 8 * STEP);
        let board = Board::create(size).unwrap();
        let shape = Shape {
            size,
            slots,
            chunks,
        };
        let mut pool = Pool::new(Segment::create(&board, 0, shape).unwrap()).unwrap();
        let mut cells = Vec::new();
        let mut fill = |pool: &mut Pool, chunks: usize| {
            let bytes = vec![1; chunks * CHUNK_LEN];
            let fills = pool.fill_for_cells(&bytes, false).is_some();
            if fills {
                pool.lend_last(&mut cells);
            }
            assert!(pool.in_cells <= pool.reserved / 2, "{pool:?}");
            fills
        };
        for _ in 0..7 {
            assert!(fill(&mut pool, 5));
        }
        assert!(pool.reserved < chunks);
        pool.limit = pool.reserved; // the system says that there is no more
        while fill(&mut pool, 3) {}
        assert!(pool.take_lack() && !pool.take_lack());
        let rings = (0..).take_while(|_| pool.take(|_| {}).is_some()).count();
        assert!(rings >= pool.reserved as usize / 2, "{rings}");
        cells
            .into_iter()
            .for_each(|chunk| pool.give_from_cell(chunk));
        assert_eq!(pool.in_cells, 0);
    }
}
