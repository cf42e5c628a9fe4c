//! How much memory a rank's driver takes: computed from the layouts and types that it is made of.

use super::{
    Inbound, Link, ShmConfig, Standing,
    board::{RANK_LEN, index},
    cells::{self, Inbox},
    pool::{self, STEP},
    segment::{CHUNK_LEN, HEAD_LEN, PAGE, Shape, TABLE_LEN},
};

/// Bytes that a driver takes; what does not exist before it is needed is counted where it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// For each rank of the node that there was never contact with, its place on the board included.
    pub per_peer: usize,
    /// For two ranks that send to each other: both rings, and what both sides keep. A descriptor on each side comes on top.
    pub per_pair: usize,
    /// The head of the own segment.
    pub segment: usize,
    /// Chunks for bodies that do not fit into a slot, shared by all peers, as made at the start, and what is kept of all.
    pub chunks_first: usize,
    /// The same when all of them are needed.
    pub chunks_max: usize,
}

impl ShmConfig {
    /// What a driver of this configuration takes.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let shape = Shape {
            size: 1,
            slots: self.ring_slots,
            chunks: self.chunks,
        };
        let lent = index(self.ring_slots) * size_of::<(u32, u32)>();
        // The page of the control line is shared with other peers; the first of them pays for it.
        let direction = shape.inbound_len()
            + PAGE
            + size_of::<Link>()
            + lent
            + size_of::<Inbound>()
            + size_of::<Inbox<cells::Mapped>>()
            + cells::CELLS * cells::LIST_LEN;
        let lists = index(self.chunks) * pool::LISTS_LEN;
        Footprint {
            per_peer: RANK_LEN
                + size_of::<Option<Box<Link>>>()
                + size_of::<Standing>()
                + size_of::<Option<Box<Inbox<cells::Mapped>>>>(),
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
