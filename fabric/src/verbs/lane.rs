//! One lane of a link: a queue pair on one device of this rank, connected to the peer's device of the same number.

use super::{
    chain::RequestChain,
    link::REQUESTS_MAX,
    objects::{PortRoute, VerbsQp},
    srq_drain::HeldReceives,
};
use crate::driver::WorldRank;

/// A lane of a link, on this side.
#[derive(Debug, Default)]
pub(super) struct VerbsLane {
    pub(super) qp: Option<VerbsQp>,
    /// First packet number of this side.
    pub(super) psn: u32,
    /// Requests in the queue pair, and those of them that no flight covers.
    pub(super) used: u32,
    pub(super) quiet: u32,
    pub(super) chain: RequestChain,
    /// Flights that could not be posted. They end with the queue pair.
    pub(super) stranded: Vec<u64>,
    /// True if a request could not be posted, or failed.
    pub(super) broken: bool,
    /// True if the queue pair is retired. It is destroyed when nothing of it is in flight.
    pub(super) retired: bool,
    /// Receives of the shared queue that the queue pair may hold.
    pub(super) held_receives: HeldReceives,
    /// True if the device did not destroy the queue pair, and may go on. Its requests never complete, so their memory is not
    /// reused.
    pub(super) stuck: bool,
}

/// A lane to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerLane {
    pub(super) peer: WorldRank,
    pub(super) lane: usize,
}

/// A port of a peer, as the peer names it when a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemotePort {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// MTU as verbs encodes it: 1 to 5 for 256 to 4096 bytes.
    pub(super) mtu: u8,
    /// Reads and atomics of one queue pair that it serves at a time. A burst of more breaks the queue pair.
    pub(super) reads: u8,
    /// True if the port's link is Ethernet rather than InfiniBand.
    pub(super) ethernet: bool,
    /// Key to the peer's table of regions by this device.
    pub(super) table: u32,
    /// Queue pair that receives connection messages.
    pub(super) datagram_qpn: u32,
}

impl VerbsLane {
    pub(super) fn new(qp: VerbsQp, psn: u32) -> Self {
        Self {
            qp: Some(qp),
            psn,
            ..Self::default()
        }
    }

    /// Makes a lane without a queue pair, as where a device of either rank has failed.
    pub(super) fn absent(psn: u32) -> Self {
        Self {
            psn,
            broken: true,
            ..Self::default()
        }
    }

    pub(super) const fn has_slots(&self, requests: u32) -> bool {
        self.used + requests <= REQUESTS_MAX
    }

    pub(super) const fn works(&self) -> bool {
        self.qp.is_some() && !self.broken && !self.retired
    }

    /// Returns true if nothing more may be posted, because an earlier request failed or could not be posted.
    pub(super) const fn is_unusable(&self) -> bool {
        self.broken || !self.stranded.is_empty()
    }
}

impl PeerLane {
    /// Returns the first lane of a peer.
    pub(super) const fn first(peer: WorldRank) -> Self {
        Self { peer, lane: FIRST }
    }
}

impl RemotePort {
    /// Returns true if the same route leads to both.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (self.gid, self.lid, self.mtu) == (other.gid, other.lid, other.mtu)
    }

    /// Returns the route to this port from a port of this rank.
    pub(super) const fn route(&self, port: u8, gid_index: u8, ethernet: bool) -> PortRoute {
        PortRoute {
            gid: self.gid,
            lid: self.lid,
            global: ethernet,
            port,
            gid_index,
        }
    }
}

/// Returns the first packet numbers of the lanes to one peer, beginning with `first`. Each lane of each connection takes the next
/// one. A late packet of an earlier connection may reach a queue pair that got the same number, and must not be the packet that
/// it expects.
pub(super) fn psns(first: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(first), |last| Some(psn_after(*last)))
}

pub(super) const fn psn_after(last: u32) -> u32 {
    last.wrapping_add(PSN_STEP) & PSN_MAX
}

/// Packet numbers have 24 bits. The step between the first numbers of two queue pairs is odd, so that all numbers are used
/// before one repeats. It divides the range in the golden section, so that two first numbers are far apart.
pub(super) const PSN_MAX: u32 = 0x00ff_ffff;
const PSN_STEP: u32 = 0x009e_3779;

/// Returns the byte that says what a port can do.
pub(super) const fn skills(reads: u8, ethernet: bool) -> u8 {
    reads | if ethernet { ETHERNET } else { 0 }
}

/// Returns the reads that a port serves, and whether it is on Ethernet. Returns `None` without reads, since there is no such
/// port.
pub(super) const fn parse_skills(skills: u8) -> Option<(u8, bool)> {
    let reads = skills & !ETHERNET;
    if reads == 0 {
        return None;
    }
    Some((reads, skills & ETHERNET != 0))
}

const ETHERNET: u8 = 0x80;

/// The lane of commands that must go by one lane only: atomics, counts, and task lists.
pub(super) const FIRST: usize = 0;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{PSN_MAX, psns};

    #[test]
    fn no_two_lanes_begin_near_each_other_for_many_connections() {
        let lanes = 64;
        let numbers: BTreeSet<u32> = psns(PSN_MAX - 5).take(lanes).collect();
        assert_eq!(numbers.len(), lanes);
        assert!(numbers.iter().all(|number| *number <= PSN_MAX));
        let (first, last) = (numbers.first().unwrap(), numbers.last().unwrap());
        let around = first + PSN_MAX + 1 - last;
        let steps = numbers.iter().zip(numbers.iter().skip(1));
        let nearest = steps.map(|(one, next)| next - one).min().unwrap();
        assert!(nearest.min(around) > 1 << 16, "{nearest} and {around}");
    }
}
