//! The own chunks: where bodies wait that do not fit into a slot.

use super::segment::{CHUNK_LEN, Segment};

/// Free chunks of the own segment. The one that came back last is taken first, because it is still in the caches.
#[derive(Debug)]
pub(super) struct Pool {
    segment: Segment,
    free: Vec<u32>,
    /// Chunks below this have their pages.
    reserved: u32,
}

impl Pool {
    /// Makes the first chunks, so that there is always one to wait for.
    pub(super) fn new(segment: Segment) -> std::io::Result<Self> {
        let free = Vec::with_capacity(segment.shape().chunks as usize);
        let mut pool = Self { segment, free, reserved: 0 };
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
            // No memory for more is the same as none left: those under way come back.
            self.grow().ok()?;
        }
        self.free.pop()
    }

    pub(super) fn is_dry(&self) -> bool {
        self.free.is_empty() && self.reserved == self.segment.shape().chunks
    }

    /// Copies a body into a chunk that was taken.
    #[inline]
    pub(super) fn fill(&self, chunk: u32, body: &[u8]) {
        assert!(body.len() <= CHUNK_LEN, "a body of {} bytes in a chunk", body.len());
        self.segment.region().write(self.segment.shape().chunk(chunk), body);
    }

    #[inline]
    pub(super) fn give(&mut self, chunk: u32) {
        self.free.push(chunk);
    }

    #[cold]
    fn grow(&mut self) -> std::io::Result<()> {
        let count = STEP.min(self.segment.shape().chunks - self.reserved);
        if count > 0 {
            self.segment.reserve_chunks(self.reserved, count)?;
            self.free.extend((self.reserved..self.reserved + count).rev());
            self.reserved += count;
        }
        Ok(())
    }
}

/// Chunks made at a time: 64 KiB.
const STEP: u32 = 8;
