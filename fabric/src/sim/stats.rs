//! Statistics of a cluster and of its ranks.

use super::{SimDriver, host::SimHost, link::SimLink, slab::index, world::SimWorld};

/// Statistics of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Virtual time in nanoseconds.
    pub time_ns: u64,
    /// Events of all kinds.
    pub events: u64,
    /// Messages posted.
    pub messages: u64,
    /// Bytes of messages, including headers, and of puts and gets.
    pub bytes: u64,
    /// Packets that entered the network: messages, chunks of puts and gets, requests and answers. With faults also the adapters'
    /// own packets that repair them, and packets that manage connections.
    pub packets: u64,
    /// Packets that were lost.
    pub drops: u64,
    /// Packets that were duplicated by a fault.
    pub duplicates: u64,
    /// Packets that an adapter retransmitted.
    pub retransmissions: u64,
    /// Packets whose checksum revealed flipped bits. They also count as lost.
    pub corruptions: u64,
    /// Queue pairs made, or sets with one queue pair per rail.
    pub queue_pairs: u64,
    /// Ends of connections that became ready, two for each connection.
    pub connections: u64,
    /// Connections evicted because others needed their queue pairs.
    pub evictions: u64,
    /// Bytes that the simulator takes now, without the ranks' programs.
    pub state_bytes: u64,
}

/// Statistics of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankStats {
    /// Messages that the rank posted.
    pub messages_sent: u64,
    /// Messages that the rank received.
    pub messages_received: u64,
    /// Bytes that the rank posted: messages including headers, puts, and gets.
    pub bytes_sent: u64,
    /// Turns that its host made.
    pub turns: u64,
    /// Peers that the rank exchanged packets with.
    pub peers: u64,
    /// Bytes that the simulator keeps for it now.
    pub state_bytes: u64,
}

/// Counts of a host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostCounts {
    pub(super) messages_sent: u64,
    pub(super) messages_received: u64,
    pub(super) bytes_sent: u64,
    pub(super) turns: u64,
}

impl SimWorld {
    pub(super) fn stats(&self) -> Stats {
        Stats {
            time_ns: self.heap.now() / 1000,
            state_bytes: self.footprint() as u64,
            ..self.stats
        }
    }

    pub(super) fn rank_stats(&self, rank: u32) -> RankStats {
        self.hosts.check_rank(rank);
        let host = &self.hosts[rank];
        let own = size_of::<SimHost>() + size_of::<SimDriver>() + host.footprint();
        let HostCounts {
            messages_sent,
            messages_received,
            bytes_sent,
            turns,
        } = host.counts;
        RankStats {
            messages_sent,
            messages_received,
            bytes_sent,
            turns,
            peers: host.links.len() as u64,
            state_bytes: (own + self.network.footprint() / index(self.hosts.len())) as u64,
        }
    }

    /// Returns the bytes of all state, without the contents of long messages and the ranks' own memory.
    fn footprint(&self) -> usize {
        let in_flight = self.heap.footprint() + self.packets.footprint() + self.ops.footprint();
        self.hosts.footprint()
            + in_flight
            + self.network.footprint()
            + self.wire.as_ref().map_or(0, |wire| wire.footprint())
            + self.losses.as_ref().map_or(0, |losses| losses.footprint())
    }
}

impl SimHost {
    /// Returns the bytes outside of the host itself.
    pub(super) fn footprint(&self) -> usize {
        // Nodes of the tree are at least half full.
        let links = 2 * self.links.len() * (size_of::<u32>() + size_of::<SimLink>());
        links
            + self
                .exports
                .as_ref()
                .map_or(0, |exports| exports.footprint())
    }
}
