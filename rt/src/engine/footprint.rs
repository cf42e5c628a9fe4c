//! Memory that a runtime uses for each peer, and for all of them together.

use ripstop_fabric::shm::ShmConfig;

use super::{
    Engine,
    commons::{packing_blocks, peer::EnginePeer, rank_map::SparseRankMap},
    point_to_point::message::MessageStore,
};
use crate::{
    ops::{OpState, OpTable},
    proto::{matching::Matching, wire::OpId},
    settings::Settings,
};

/// Bytes that a runtime on shared memory uses, for its driver and its engine together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// Bytes for each rank with which there was never contact.
    pub per_peer: usize,
    /// Bytes for two ranks that send to each other, on both sides together.
    pub per_pair: usize,
    /// Memory that all peers share.
    pub pools: Vec<Pool>,
}

/// Memory that all peers share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pool {
    /// Content of the pool.
    pub name: &'static str,
    /// Bytes at the start.
    pub first: usize,
    /// Largest number of bytes; `None` if only the application sets a limit.
    pub max: Option<usize>,
}

/// A stored message without its body, and its place in the matching.
const HEADER_BYTES: usize = MessageStore::PLACE_BYTES + Matching::<OpId, u32>::MESSAGE_BYTES;

impl Footprint {
    /// Returns the memory that a runtime with these settings uses.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let driver = ShmConfig::new(0).footprint();
        let pool = |name, first, max| Pool { name, first, max };
        Self {
            per_peer: driver.per_peer,
            per_pair: driver.per_pair
                + 2 * (size_of::<EnginePeer>() + 4 * SparseRankMap::<EnginePeer>::PLACE_BYTES),
            pools: vec![
                pool("segment head", driver.segment, Some(driver.segment)),
                pool(
                    "chunks for bodies",
                    driver.chunks_first,
                    Some(driver.chunks_max),
                ),
                pool("unexpected messages", 0, Some(settings.unexpected_bytes)),
                pool(
                    "their headers",
                    0,
                    Some(settings.unexpected_messages.saturating_mul(HEADER_BYTES)),
                ),
                pool("packing blocks", 0, Some(packing_blocks::BYTES_MAX)),
                pool(
                    "operations in flight, 64 at a time",
                    OpTable::BLOCK_BYTES,
                    None,
                ),
            ],
        }
    }
}

/// Memory that an engine uses at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineMemory {
    /// Bytes, including those for peers.
    pub(crate) bytes: usize,
    /// Peers in contact.
    pub(crate) peers: usize,
    /// Bytes used for the peers in contact.
    pub(crate) peer_bytes: usize,
    /// Operations that were created and not taken yet.
    pub(crate) operations: usize,
}

impl Engine {
    /// Returns the current memory use, without the application's buffers. O(operations).
    pub(crate) fn state(&mut self) -> EngineMemory {
        let peers = self.core.p2p.common.peers.len();
        let peer_bytes = self.core.p2p.common.peers.bytes();
        EngineMemory {
            bytes: size_of::<Self>()
                + peer_bytes
                + self.core.p2p.common.ops.bytes()
                + self.core.p2p.tables().bytes()
                + self.core.p2p.common.packing_blocks.bytes()
                + self.core.programs.landing_bytes(),
            peers,
            peer_bytes,
            operations: self
                .core
                .p2p
                .common
                .ops
                .select(|slot| !matches!(slot.state, OpState::Free))
                .len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_peers_is_within_its_budget() {
        let footprint = Footprint::new(&Settings::new());
        assert!(footprint.per_peer <= 256, "{footprint:?}");
        assert!(footprint.per_pair <= 64 << 10, "{footprint:?}");
    }
}
