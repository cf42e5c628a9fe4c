//! Chunks of this rank's segment, for bodies that do not fit into a slot.

use std::collections::VecDeque;

use super::segment::{CHUNK_LEN, ShmSegment};

/// Free chunks of this rank's segment.
///
/// Chunks are taken in turn, and only [`STEP`] of them as long as that is enough. A chunk that the peer has just read is in its
/// first-level cache; writing to it takes longer (by a sixth for 4 KiB) than writing to one that was read some time ago.
#[derive(Debug)]
pub(super) struct ChunkPool {
    segment: ShmSegment,
    free: VecDeque<u32>,
    /// Chunks below this number have pages.
    reserved: u32,
    /// Chunks from this number on will never have pages.
    limit: u32,
    /// Chunks that hold messages in named slots.
    in_slots: u32,
    /// By chunk: number of named slots that hold its message, plus one while it is the last message for named slots.
    uses: Vec<u32>,
    /// Chunks of the last message for named slots.
    last: Vec<u32>,
    last_len: usize,
    /// True if there were too few chunks for the last message for named slots.
    lacks: bool,
}

impl ChunkPool {
    /// Creates the pool and its first chunks, so that a sender that waits for a chunk always waits for one that exists.
    pub(super) fn new(segment: ShmSegment) -> std::io::Result<Self> {
        let free = VecDeque::with_capacity(segment.shape().chunks as usize);
        let limit = segment.shape().chunks;
        let mut pool = Self {
            segment,
            free,
            reserved: 0,
            limit,
            in_slots: 0,
            uses: vec![0; limit as usize],
            last: Vec::new(),
            last_len: 0,
            lacks: false,
        };
        pool.grow()?;
        Ok(pool)
    }

    /// Takes a chunk, or returns `None` if all are in flight. `reclaim` returns used chunks first, because they are still in the
    /// caches and new ones are not.
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

    /// Copies a message for named slots into chunks, unless it is the last one `again`. Returns how many bytes were copied,
    /// or `None` if there are too few chunks.
    pub(super) fn fill_for_slots(&mut self, bytes: &[u8], again: bool) -> Option<usize> {
        if again && bytes.len() == self.last_len {
            return Some(0);
        }
        self.forget_last();
        let chunks = self.in_slots as usize + bytes.len().div_ceil(CHUNK_LEN);
        self.lacks = !self.may_have_in_slots(chunks);
        if self.lacks {
            return None;
        }
        for piece in bytes.chunks(CHUNK_LEN) {
            let Some(chunk) = self.take(|_| {}) else {
                self.forget_last();
                self.lacks = true;
                return None;
            };
            self.in_slots += 1;
            self.uses[chunk as usize] = 1;
            self.last.push(chunk);
            self.fill(chunk, piece);
        }
        self.last_len = bytes.len();
        Some(self.last_len)
    }

    /// Returns true if messages in named slots may use this many chunks.
    ///
    /// The receiver does not notify the sender when a chunk in a named slot is free. Half of the chunks that have memory are
    /// therefore left to rings, so that a sender that waits for a chunk waits for one whose release is announced.
    fn may_have_in_slots(&mut self, chunks: usize) -> bool {
        while chunks > self.reserved as usize / 2 && chunks <= self.limit as usize / 2 {
            self.grow_or_stay();
        }
        chunks <= self.reserved as usize / 2
    }

    /// Returns true, once, if there were too few chunks for the last message for named slots.
    pub(super) const fn take_lack(&mut self) -> bool {
        std::mem::replace(&mut self.lacks, false)
    }

    /// Puts the chunks of the last message for named slots into one more named slot, and appends their numbers to
    /// `into`.
    pub(super) fn lend_last(&mut self, into: &mut Vec<u32>) {
        for &chunk in &self.last {
            self.uses[chunk as usize] += 1;
            into.push(chunk);
        }
    }

    fn forget_last(&mut self) {
        self.last_len = 0;
        while let Some(chunk) = self.last.pop() {
            self.give_from_slot(chunk);
        }
    }

    /// Releases a chunk of a named slot whose message was taken.
    #[inline]
    pub(super) fn give_from_slot(&mut self, chunk: u32) {
        let uses = &mut self.uses[chunk as usize];
        *uses -= 1;
        if *uses == 0 {
            self.in_slots -= 1;
            self.give(chunk);
        }
    }

    /// Returns how many chunks hold messages in named slots, or the last message, which may be put into more named
    /// slots.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) const fn count_in_slots(&self) -> u32 {
        self.in_slots
    }

    pub(super) fn is_dry(&self) -> bool {
        self.free.is_empty() && self.reserved == self.limit
    }

    /// Copies a body into a chunk that was taken from the pool.
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

    /// Makes more chunks. If there is no memory for more, the pool stays as it is, and senders wait for chunks in flight.
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

/// Bytes of bookkeeping per chunk: its place in the free list, and its uses.
pub(super) const LISTS_LEN: usize = 2 * size_of::<u32>();

/// Chunks made at a time (256 KiB).
pub(super) const STEP: u32 = 32;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::{
        super::{Board, segment::SegmentShape},
        CHUNK_LEN, ChunkPool, STEP, ShmSegment,
    };

    #[test]
    fn rings_keep_half_of_the_chunks_that_have_memory_also_when_there_is_no_more() {
        let (size, slots, chunks) = (1, 2, 8 * STEP);
        let board = Board::create(size).unwrap();
        let shape = SegmentShape {
            size,
            slots,
            chunks,
        };
        let mut pool = ChunkPool::new(ShmSegment::create(&board, 0, shape).unwrap()).unwrap();
        let mut slots = Vec::new();
        let mut fill = |pool: &mut ChunkPool, chunks: usize| {
            let bytes = vec![1; chunks * CHUNK_LEN];
            let fills = pool.fill_for_slots(&bytes, false).is_some();
            if fills {
                pool.lend_last(&mut slots);
            }
            assert!(pool.in_slots <= pool.reserved / 2, "{pool:?}");
            fills
        };
        for _ in 0..7 {
            assert!(fill(&mut pool, 5));
        }
        assert!(pool.reserved < chunks);
        pool.limit = pool.reserved; // as if the system had no more memory
        while fill(&mut pool, 3) {}
        assert!(pool.take_lack() && !pool.take_lack());
        let rings = (0..).take_while(|_| pool.take(|_| {}).is_some()).count();
        assert!(rings >= pool.reserved as usize / 2, "{rings}");
        slots
            .into_iter()
            .for_each(|chunk| pool.give_from_slot(chunk));
        assert_eq!(pool.in_slots, 0);
    }
}
