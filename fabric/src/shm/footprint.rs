//! Memory that a rank's driver takes, computed from the layouts and types it is made of.

use super::{
    InboundRing, ShmConfig, ShmLink, ShmPeerStatus,
    board::{RANK_LEN, index},
    named_slots::{self, NamedSlotReceiver},
    pool::{self, STEP},
    segment::{CHUNK_LEN, HEAD_LEN, PAGE, SegmentShape, TABLE_LEN},
};

/// Bytes that a driver takes. Memory that is made on demand is counted where it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmFootprint {
    /// For each rank of the node without contact, including its line on the board.
    pub per_peer: usize,
    /// For two ranks that send to each other: both rings, and the state on both sides. Each side also needs one descriptor.
    pub per_pair: usize,
    /// For the head of this rank's segment.
    pub segment: usize,
    /// For the chunks made at the start, which all peers share, plus the bookkeeping of all chunks. Chunks hold bodies that do
    /// not fit into a slot.
    pub chunks_first: usize,
    /// The same when all chunks are in use.
    pub chunks_max: usize,
}

impl ShmConfig {
    /// Returns the memory that a driver with this configuration takes.
    #[must_use]
    pub fn footprint(&self) -> ShmFootprint {
        let shape = SegmentShape {
            size: 1,
            slots: self.ring_slots,
            chunks: self.chunks,
        };
        let lent = index(self.ring_slots) * size_of::<(u32, u32)>();
        // The page of the control line is shared with other peers. The first of them accounts for it.
        let direction = shape.inbound_len()
            + PAGE
            + size_of::<ShmLink>()
            + lent
            + size_of::<InboundRing>()
            + size_of::<NamedSlotReceiver<named_slots::MappedNamedSlots>>()
            + named_slots::NAMED_SLOTS * named_slots::LIST_LEN;
        let lists = index(self.chunks) * pool::LISTS_LEN;
        ShmFootprint {
            per_peer: RANK_LEN
                + size_of::<Option<Box<ShmLink>>>()
                + size_of::<ShmPeerStatus>()
                + size_of::<Option<Box<NamedSlotReceiver<named_slots::MappedNamedSlots>>>>(),
            per_pair: 2 * direction,
            segment: HEAD_LEN + TABLE_LEN,
            chunks_first: index(STEP.min(self.chunks)) * CHUNK_LEN + lists,
            chunks_max: index(self.chunks) * CHUNK_LEN + lists,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ShmConfig;

    #[test]
    fn a_peer_never_talked_to_takes_little_and_a_pair_at_most_64_kib() {
        let footprint = ShmConfig::new(0).footprint();
        assert!(footprint.per_peer <= 192, "{footprint:?}");
        assert!(footprint.per_pair <= 60 << 10, "{footprint:?}");
    }
}
