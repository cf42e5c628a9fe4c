//! A neighbor's memory, as this process loads and stores it.

use ripstop_fabric::memory::MemoryRegion;

use super::{PeerEndMemory, UpdateLock};
use crate::group::WorldRank;

/// A neighbor's memory in this process.
#[derive(Clone, Debug)]
pub(crate) struct MappedEnd {
    pub(crate) region: MemoryRegion,
    /// Offset of the memory in the region, in bytes.
    pub(crate) start: usize,
    /// Lock of the numbers. Without it, each number is updated by an atomic instruction.
    pub(crate) update_lock: Option<UpdateLock>,
}

impl MappedEnd {
    /// Makes the end of the neighbor that has introduced `memory`, which starts at `start` of this region.
    pub(super) fn new(
        region: MemoryRegion,
        start: usize,
        memory: &PeerEndMemory,
        me: WorldRank,
    ) -> Self {
        let [len, granted] =
            [memory.len, memory.key.len].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let has_lock = granted > len && granted == UpdateLock::key_len(start, len);
        let update_lock = has_lock.then(|| UpdateLock::behind(&region, start, len, me));
        Self {
            region,
            start,
            update_lock,
        }
    }

    /// Returns true if each number is updated by an atomic instruction.
    #[inline]
    pub(crate) fn is_updated_singly(&self) -> bool {
        self.update_lock.as_ref().is_none_or(UpdateLock::is_off)
    }
}
