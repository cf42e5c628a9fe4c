//! Several interfaces of a rank: its rails.
//!
//! The second rail of a rank reaches the second one of another rank, and so on. Such a pair of rails is a *lane*.
//!
//! - Messages and words to a peer use one lane, the *home* of the pair, which both ranks compute without communication. So they
//!   stay in order, and different pairs use different rails.
//! - Long puts and gets are split over all lanes (`stripes`).
//! - All atomics and counts on a rank's memory use one rail, because two adapters do not synchronize. The rank announces which:
//!   the first one that works with all its peers.
//! - Task lists use the first rail, and end with it.
//!
//! **A lane that fails** is left by both ranks. A new home begins with a pause (`outbox`), so that the peer has handled
//! everything that came by the old one. Messages are then resent from the first unacknowledged one on, and duplicates are
//! recognized by their numbers. An operation on memory may still arrive long after it was given up, so it is repeated only when
//! both ranks have closed the lane ([`LaneFences`]). Whether an unanswered atomic was done is unknown, so its peer is given up,
//! and notified that no lane is left. A peer that no lane reaches is given up as well.
//!
//! **Closing.** One table entry of a rail exposes memory to all peers. A rank closes a lane by moving its memory to another table
//! entry (`rail_exports`). Once nothing is delivered by the old one, it tells its peers the new one, and the peer of the closed
//! lane does not use it. Late operations by the old entry are refused as moved, so their initiators wait for that word instead of
//! taking their key for wrong. A rank that finds a lane broken closes it only when the other rank has answered, so a dead rank
//! does not cost a rail.

mod lane_failure;
mod rail_exports;
mod stripes;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

pub(super) use self::rail_exports::RailExports;
use self::stripes::PortalsStripedOp;
use super::{
    calls::{Eq, Md, PortalsCallError, PortalsNi},
    config::{Interface, PortalsConfig},
    eager_slabs::EagerSlabs,
    event::PortalsProcess,
    exports,
    onesided::no_step,
    peer::PortalsPeerState,
    prepare::{BOARD_LEN, queue},
    rma_calls::{MdSpan, RemoteTarget},
    send_pool::HEADER_MAX,
    transport::PortalsTransport,
};
use crate::{
    driver::LocalRange,
    lanes::{LaneFences, LaneSet, LaneSpeed, LaneSpeeds, RAILS_MAX, pair},
    memory::{MemoryRegion, RemoteRegion},
};

/// An interface, and the objects beside exposed memory by which peers reach it.
#[derive(Debug)]
pub(super) struct PortalsRail {
    pub(super) ni: Arc<PortalsNi>,
    /// Queue of arriving messages.
    pub(super) arrivals: Eq,
    /// Queue of completions.
    pub(super) completions: Eq,
    /// Queue of hints about words on the board.
    pub(super) hints: Eq,
    /// Descriptor for operations on any local memory.
    all_md: Md,
    pub(super) slabs: EagerSlabs,
    /// Each rail has its own board, so that late words by a failed rail overwrite nothing.
    pub(super) board: MemoryRegion,
}

/// Location of a rank's exposed memory on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailTableEntry {
    pub(super) process: PortalsProcess,
    /// Index of the portal table entry.
    pub(super) table: u8,
}

/// The rails of this rank, and what it knows of the rails of others.
#[derive(Debug)]
pub(super) struct PortalsRails {
    /// Lanes by rank; empty if all ranks have one interface.
    peers: Vec<PortalsPeerLanes>,
    speeds: LaneSpeeds,
    piece_max: u64,
    /// Operations split over several lanes, by slot.
    striped: BTreeMap<u32, PortalsStripedOp>,
    /// True if some of the split operations wait for room.
    needs_room: bool,
    /// Lanes to close, with their peers.
    asked: BTreeSet<(u32, u32)>,
    /// Lanes that are closed once memory has left their tables.
    leaving: BTreeSet<(u32, u32)>,
}

/// The lanes to a peer.
#[derive(Debug)]
struct PortalsPeerLanes {
    /// Last known place of the peer's memory, by lane.
    places: [Option<RailTableEntry>; RAILS_MAX],
    /// Lanes by which the memory is accessible now.
    exposed: LaneSet,
    fences: LaneFences,
    /// Number of moves that the peer last announced.
    moves: u16,
    /// Lane of atomics on the peer's memory.
    atomics: u32,
}

impl PortalsRail {
    /// Allocates the queues, the slabs and the board of a rail.
    ///
    /// # Errors
    /// The error of the library.
    pub(super) fn open(ni: Arc<PortalsNi>, config: &PortalsConfig) -> io::Result<Self> {
        let [arrivals, hints] = [(); 2].map(|()| queue(&ni, config.events));
        // Operations that were given up may still complete, in addition to those in flight.
        let late = if ni.ends_to_dead { 0 } else { config.events };
        let ends = queue(&ni, config.events.saturating_add(late))?;
        let message_max = HEADER_MAX + config.body_max(ni.limits.max_msg_size);
        Ok(Self {
            arrivals: arrivals?,
            completions: ends,
            hints: hints?,
            all_md: ni.md_bind(None, ends)?,
            slabs: EagerSlabs::new(config.slabs, config.slab_len, message_max)?,
            board: MemoryRegion::vacant(BOARD_LEN)?,
            ni,
        })
    }

    /// Allocates the table entries for words and for messages: these, or any.
    ///
    /// # Errors
    /// Fails if the library does not grant them.
    pub(super) fn alloc_tables(&self, wanted: Option<[u32; 2]>) -> io::Result<[u32; 2]> {
        let [board, eager] = wanted.map_or([None; 2], |tables| tables.map(Some));
        Ok([
            self.ni.pt_alloc(board, Some(self.hints), false)?,
            self.ni.pt_alloc(eager, Some(self.arrivals), true)?,
        ])
    }

    /// Returns local memory in the form that operations on this rail use.
    pub(super) fn local_span(&self, range: LocalRange, user: u64) -> MdSpan {
        MdSpan {
            md: self.all_md,
            offset: range.start().as_ptr().expose_provenance() as u64,
            len: range.len() as u64,
            user,
        }
    }
}

impl PortalsRails {
    /// Returns the lanes of a rank with `own` rails. `places` lists where the memory of each rank is.
    pub(super) fn new(
        own: usize,
        places: Vec<Vec<RailTableEntry>>,
        speeds: LaneSpeeds,
        piece_max: u64,
    ) -> Self {
        let ways = |places: Vec<RailTableEntry>| {
            let lanes = own.min(places.len());
            let all = LaneSet::first(u32::try_from(lanes).unwrap_or(1));
            let place = |at| places.get(at).filter(|_| at < lanes).copied();
            PortalsPeerLanes {
                places: std::array::from_fn(place),
                exposed: all,
                fences: LaneFences::new(all),
                moves: 0,
                atomics: 0,
            }
        };
        // A rank with one rail may have peers with more, whose memory moves.
        let several = places.iter().any(|places| places.len() > 1);
        let ways: Vec<_> = match several {
            false => Vec::new(),
            true => places.into_iter().map(ways).collect(),
        };
        Self {
            peers: ways,
            speeds,
            piece_max,
            striped: BTreeMap::new(),
            needs_room: false,
            asked: BTreeSet::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// Returns true if any rank has more than one rail.
    pub(super) const fn are_several(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Returns the bytes kept for a peer.
    pub(super) const fn peer_len(&self) -> usize {
        if self.peers.is_empty() {
            0
        } else {
            size_of::<PortalsPeerLanes>()
        }
    }

    /// Returns the working lanes by which a peer's memory is accessible now.
    fn lanes(&self, rank: u32) -> LaneSet {
        let ways = self.peers.get(rank as usize);
        ways.map_or(LaneSet::EMPTY, |ways| {
            ways.fences.working().and(ways.exposed)
        })
    }

    /// Returns the home lane of a pair, for messages and words; `None` if no lane works.
    pub(super) fn home(&self, me: u32, rank: u32) -> Option<u8> {
        let Some(ways) = self.peers.get(rank as usize) else {
            return Some(0);
        };
        u8::try_from(ways.fences.home(pair(me, rank))?).ok()
    }

    fn fenced(&self, rank: u32) -> LaneSet {
        let ways = self.peers.get(rank as usize);
        ways.map_or(LaneSet::EMPTY, |ways| ways.fences.fenced())
    }

    /// Returns the split operations to a rank.
    fn towards(&self, rank: u32) -> Vec<u32> {
        let all = self.striped.iter();
        all.filter(|(_, striped)| striped.is_towards(rank))
            .map(|(slot, _)| *slot)
            .collect()
    }

    /// Returns true if there is work to do immediately, without an event.
    pub(super) fn have_pending_work(&self) -> bool {
        !self.asked.is_empty() && self.leaving.is_empty()
    }

    /// Returns true if split operations wait for room.
    pub(super) const fn need_room(&self) -> bool {
        self.needs_room
    }

    /// Returns true if lanes will be closed once the library releases entries.
    pub(super) fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }
}

impl PortalsTransport {
    /// Returns the rail for messages and words to a peer, and the peer's process on it.
    pub(super) fn home(&self, to: u32) -> (&PortalsRail, PortalsProcess) {
        let (peer, lane) = (self.peer(to), self.peer(to).home);
        let place = self.place(to, lane.into());
        let process = place.map_or(peer.address.process, |(process, _)| process);
        (&self.resources.rails[usize::from(lane)], process)
    }

    /// Returns the lane of atomics on a peer's memory, and of the operations that belong to them.
    pub(super) fn lane_of_atomics(&self, to: u32) -> LaneAvailability {
        let Some(ways) = self.rails.peers.get(to as usize) else {
            return LaneAvailability::Lane(0);
        };
        let lane = ways.atomics;
        if ways.fences.working().has(lane) {
            LaneAvailability::Lane(lane)
        } else if ways.fences.fenced().has(lane) {
            LaneAvailability::Never
        } else {
            LaneAvailability::Retry
        }
    }

    /// Returns the rail of atomics for this rank's memory, after this rank has left its tables on some rails.
    fn rail_of_atomics(&self, now: u32, left: LaneSet) -> u32 {
        let up = self.peers.iter().zip(&self.rails.peers);
        let up = up.filter(|(peer, _)| peer.state == PortalsPeerState::Up);
        let all = LaneSet::first(u32::try_from(self.resources.rails.len()).unwrap_or(1));
        let common = up.fold(all, |common, (_, ways)| common.and(ways.fences.working()));
        rail_of_atomics(now, left, common)
    }

    /// Returns the lane of task lists and names, which are on the first rail.
    pub(super) fn lane_of_lists(&self, to: u32) -> LaneAvailability {
        let Some(ways) = self.rails.peers.get(to as usize) else {
            return LaneAvailability::Lane(0);
        };
        if ways.fences.working().and(ways.exposed).has(0) {
            LaneAvailability::Lane(0)
        } else if ways.fences.fenced().has(0) || !ways.exposed.has(0) {
            LaneAvailability::Never
        } else {
            LaneAvailability::Retry
        }
    }

    /// Returns a peer's process on a lane, and the table entry of its memory there.
    pub(super) fn place(&self, to: u32, lane: u32) -> Option<(PortalsProcess, u32)> {
        match self.rails.peers.get(to as usize) {
            Some(ways) => {
                let place = ways.places.get(lane as usize).copied()??;
                Some((place.process, place.table.into()))
            }
            None => {
                let address = self.peer(to).address;
                Some((address.process, address.tables.rdma))
            }
        }
    }

    /// Returns the location of a peer's memory on a lane.
    pub(super) fn remote_target(
        &self,
        to: u32,
        lane: u32,
        key: RemoteRegion,
        at: u64,
        len: usize,
    ) -> Result<RemoteTarget, PortalsCallError> {
        let peer = self.peer(to);
        let named = exports::target(key, peer.owner(to), len);
        let (match_bits, offset) = named.ok_or_else(no_step)?;
        let (process, pt) = self.place(to, lane).ok_or_else(no_step)?;
        Ok(RemoteTarget {
            process,
            pt,
            match_bits,
            offset: offset + at,
        })
    }
}

/// Availability of an operation's only possible lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneAvailability {
    Lane(u32),
    /// The lane has failed. The peer will answer, or be found dead.
    Retry,
    /// The peer has answered, and the lane cannot be used.
    Never,
}

/// Returns the first rail that reaches all peers, or 0 if there is none.
///
/// The rail does not change while its table is open. Otherwise atomics in flight there, and those of peers that have not heard of
/// the change, could run concurrently with atomics on another rail.
fn rail_of_atomics(now: u32, left: LaneSet, common: LaneSet) -> u32 {
    if left.has(now) {
        common.iter().next().unwrap_or(0)
    } else {
        now
    }
}

/// Returns the speeds of the rails by weight, used until pieces have shown the real ones.
pub(super) fn speeds(interfaces: &[Interface]) -> LaneSpeeds {
    let weights = interfaces.iter().map(|one| one.weight);
    LaneSpeeds::by_weight(SPEED, &weights.collect::<Vec<_>>())
}

/// Assumed speed of a rail with the greatest weight.
const SPEED: LaneSpeed = LaneSpeed {
    latency_ns: 3_500,
    bytes_per_us: 11_000,
};

#[cfg(test)]
mod tests {
    use super::{LaneSet, rail_of_atomics};

    #[test]
    fn atomics_stay_on_a_rail_whose_table_is_open() {
        let lanes = LaneSet::from_bits;
        // The first rail failed for a rank that has died since, and atomics moved to the second one.
        assert_eq!(rail_of_atomics(0, lanes(0b0001), lanes(0b1110)), 1);
        assert_eq!(rail_of_atomics(1, lanes(0b1000), lanes(0b0111)), 1);
        assert_eq!(rail_of_atomics(1, lanes(0b0010), lanes(0b0101)), 0);
        // No rail reaches all peers.
        assert_eq!(rail_of_atomics(2, lanes(0b0100), lanes(0)), 0);
        assert_eq!(rail_of_atomics(0, lanes(0b1000), lanes(0)), 0);
    }
}
