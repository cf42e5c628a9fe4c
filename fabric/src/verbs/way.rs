//! One lane of a link: a queue pair on one device of this rank, connected to the device of the same number of the peer.

use super::{
    chain::Chain,
    held::Holds,
    link::REQUESTS_MAX,
    objects::{Qp, Route},
};

/// A lane of a link, from this side.
#[derive(Debug, Default)]
pub(super) struct Way {
    pub(super) qp: Option<Qp>,
    /// The number of the own first packet.
    pub(super) psn: u32,
    /// Requests in the queue pair, and those of them that no flight stands for.
    pub(super) used: u32,
    pub(super) quiet: u32,
    pub(super) chain: Chain,
    /// Flights that could not be posted. They end with the queue pair.
    pub(super) stranded: Vec<u64>,
    /// A request could not be posted, or failed.
    pub(super) broken: bool,
    /// The queue pair is of no use any more, and goes when nothing of it is under way.
    pub(super) doomed: bool,
    /// Of the shared receives.
    pub(super) holds: Holds,
    /// The device did not take it down, and may go on: what is under way never ends, so that its memory serves nothing else.
    pub(super) stuck: bool,
}

/// A lane to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct To {
    pub(super) peer: u32,
    pub(super) lane: usize,
}

/// A port of a peer, which it names when a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Far {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// 1 to 5 for 256 to 4096 bytes.
    pub(super) mtu: u8,
    /// Reads and atomics of one queue pair that it serves at a time: a burst of more breaks the queue pair.
    pub(super) reads: u8,
    /// Its link is Ethernet rather than InfiniBand.
    pub(super) ethernet: bool,
    /// The key to its table of regions by this device.
    pub(super) table: u32,
    /// The queue pair that hears words about connections.
    pub(super) words: u32,
}

impl Way {
    pub(super) fn new(qp: Qp, psn: u32) -> Self {
        Self {
            qp: Some(qp),
            psn,
            ..Self::default()
        }
    }

    /// Where a device of either rank has failed there is no queue pair.
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
        self.qp.is_some() && !self.broken && !self.doomed
    }

    /// Nothing is posted behind what could not be.
    pub(super) const fn is_spoilt(&self) -> bool {
        self.broken || !self.stranded.is_empty()
    }
}

impl To {
    /// By the lane that all have.
    pub(super) const fn first(peer: u32) -> Self {
        Self { peer, lane: FIRST }
    }
}

impl Far {
    /// Whether the same way leads to both.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (self.gid, self.lid, self.mtu) == (other.gid, other.lid, other.mtu)
    }

    /// The way there from an own port.
    pub(super) const fn route(&self, port: u8, gid_index: u8, ethernet: bool) -> Route {
        Route {
            gid: self.gid,
            lid: self.lid,
            global: ethernet,
            port,
            gid_index,
        }
    }
}

/// Numbers of the first packets of lanes to one peer, beginning with this one. Each lane of each connection takes the next: a
/// packet of an earlier one that is late reaches a queue pair that got the same number, and must not be the one that it expects.
pub(super) fn psns(first: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(first), |last| Some(psn_after(*last)))
}

pub(super) const fn psn_after(last: u32) -> u32 {
    last.wrapping_add(PSN_STEP) & PSN_MAX
}

/// Of 24 bits. The step is odd, so that all come before one comes again, and cuts their circle in the golden section, so that
/// what begins at one of them has far to go to the next.
pub(super) const PSN_MAX: u32 = 0x00ff_ffff;
const PSN_STEP: u32 = 0x009e_3779;

/// What a port can do, as the byte that says it.
pub(super) const fn skills(reads: u8, ethernet: bool) -> u8 {
    reads | if ethernet { ETHERNET } else { 0 }
}

/// The reads that it serves, and whether it is on Ethernet. `None` where it serves no reads: there is no such port.
pub(super) const fn parse_skills(skills: u8) -> Option<(u8, bool)> {
    let reads = skills & !ETHERNET;
    if reads == 0 {
        return None;
    }
    Some((reads, skills & ETHERNET != 0))
}

const ETHERNET: u8 = 0x80;

/// The lane of what is bound to one: atomics, counts, and task lists.
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
