//! Several interfaces of a rank: its rails.
//!
//! The second rail of a rank reaches the second one of another, and so on: such a pair is a *lane*. Messages and words to a peer
//! go by one lane, the *home* of the pair, which both ranks find without a word; so they stay in order, and different pairs use
//! different rails. Long puts and gets go in pieces by all lanes (`stripes`). Bound and counts of a rank's memory all come by
//! one rail, as two adapters do not heed each other: the rank says which, the first one that works with all its peers. Task lists
//! are the first rail's: they end with it.
//!
//! **A lane that fails** is left by both ranks. A new home begins with a pause (`outbox`), so that the peer has looked at
//! everything that came by the old one, and messages go again from the first one on that was not acknowledged; those that had
//! come are known by their numbers. What moves memory may still arrive long after it was given up, so it goes again only when
//! both ranks have closed the lane ([`Fences`]). Nobody knows whether an atomic without an answer was done: its peer is lost, and
//! hears that no lane is left. So is who cannot be reached by any lane.
//!
//! **Closing.** Memory is exposed to everybody by one table entry of a rail. A rank closes a lane by moving its memory to another
//! entry (`door`), and tells its peers where it is when nothing is delivered by the old one any more; the peer of that lane does
//! not use it. What still comes by the old entry is refused in a way of its own, so that its sender waits for that word instead
//! of taking its key for wrong. A dead rank takes no rail along: who finds a lane broken closes it only when the other one has
//! answered.

mod door;
mod leaving;
mod stripes;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

pub(super) use self::door::Door;
use self::stripes::Striped;
use super::{
    calls::{Eq, Md, Ni},
    config::{Interface, PortalsConfig},
    event::Process,
    moves::Near,
    peer::Life,
    pool::HEADER_MAX,
    prepare::{BOARD_LEN, queue},
    slabs::Slabs,
    state::Portals,
};
use crate::{
    driver::LocalRange,
    lanes::{Fences, LaneSet, RAILS_MAX, Speed, Speeds, pair},
    memory::Region,
};

/// An interface, and what peers reach by it beside exposed memory.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) ni: Arc<Ni>,
    /// For messages that come.
    pub(super) arrivals: Eq,
    /// For ends of operations.
    pub(super) ends: Eq,
    /// For words on the board.
    pub(super) hints: Eq,
    /// For operations on any memory.
    all_md: Md,
    pub(super) slabs: Slabs,
    /// Each has its own, so that what comes late by one that failed overwrites nothing.
    pub(super) board: Region,
}

/// Where memory of a rank is reached by a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) process: Process,
    /// Index of the portal table entry.
    pub(super) table: u8,
}

/// The rails of this rank, and what is known of those of others.
#[derive(Debug)]
pub(super) struct Rails {
    /// By rank; none when all ranks have one interface.
    ways: Vec<Ways>,
    speeds: Speeds,
    piece_max: u64,
    /// Operations that go by several lanes, by their slots.
    striped: BTreeMap<u32, Striped>,
    /// Some of them wait for room.
    hungry: bool,
    /// Lanes that are to be closed, and their peers.
    asked: BTreeSet<(u32, u32)>,
    /// Those that are closed when memory has left their tables.
    leaving: BTreeSet<(u32, u32)>,
}

/// The lanes to a peer.
#[derive(Debug)]
struct Ways {
    /// Where memory is reached, or was at last, by each lane.
    places: [Option<Place>; RAILS_MAX],
    /// Lanes by which it is.
    exposed: LaneSet,
    fences: Fences,
    /// How often the peer had moved its memory when it said so last.
    moves: u16,
    /// The lane of its atomics.
    atomics: u32,
}

impl Rail {
    /// # Errors
    /// What the library said.
    pub(super) fn open(ni: Arc<Ni>, config: &PortalsConfig) -> io::Result<Self> {
        let [arrivals, hints] = [(); 2].map(|()| queue(&ni, config.events));
        // What was given up may end nevertheless, beside what is under way.
        let late = if ni.ends_to_dead { 0 } else { config.events };
        let ends = queue(&ni, config.events.saturating_add(late))?;
        let message_max = HEADER_MAX + config.body_max(ni.limits.max_msg_size);
        Ok(Self {
            arrivals: arrivals?,
            ends,
            hints: hints?,
            all_md: ni.md_bind(None, ends)?,
            slabs: Slabs::new(config.slabs, config.slab_len, message_max)?,
            board: Region::vacant(BOARD_LEN)?,
            ni,
        })
    }

    /// Table entries for words and for messages: these, or any.
    ///
    /// # Errors
    /// When the library does not give them.
    pub(super) fn listen(
        &self,
        wanted: Option<[u32; 2]>,
        controlled: bool,
    ) -> io::Result<[u32; 2]> {
        let [board, eager] = wanted.map_or([None; 2], |tables| tables.map(Some));
        Ok([
            self.ni.pt_alloc(board, Some(self.hints), false)?,
            self.ni.pt_alloc(eager, Some(self.arrivals), controlled)?,
        ])
    }

    /// Local memory, as an operation by this rail names it.
    pub(super) fn near(&self, range: LocalRange, user: u64) -> Near {
        Near {
            md: self.all_md,
            offset: range.start().as_ptr().expose_provenance() as u64,
            len: range.len() as u64,
            user,
        }
    }
}

impl Rails {
    /// Of a rank with `own` rails; where the memory of all ranks is reached is in `places`.
    pub(super) fn new(
        own: usize,
        places: Vec<Vec<Place>>,
        (speeds, piece_max): (Speeds, u64),
    ) -> Self {
        let ways = |places: Vec<Place>| {
            let lanes = own.min(places.len());
            let all = LaneSet::first(u32::try_from(lanes).unwrap_or(1));
            let place = |at| places.get(at).filter(|_| at < lanes).copied();
            Ways {
                places: std::array::from_fn(place),
                exposed: all,
                fences: Fences::new(all),
                moves: 0,
                atomics: 0,
            }
        };
        // Who has one may have peers with more, whose memory moves.
        let several = places.iter().any(|places| places.len() > 1);
        let ways: Vec<_> = match several {
            false => Vec::new(),
            true => places.into_iter().map(ways).collect(),
        };
        Self {
            ways,
            speeds,
            piece_max,
            striped: BTreeMap::new(),
            hungry: false,
            asked: BTreeSet::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// Whether any rank has more than one.
    pub(super) const fn are_several(&self) -> bool {
        !self.ways.is_empty()
    }

    /// Bytes that are kept for a peer.
    pub(super) const fn peer_len(&self) -> usize {
        if self.ways.is_empty() {
            0
        } else {
            size_of::<Ways>()
        }
    }

    /// Lanes that work by which memory of a peer is reached now.
    fn lanes(&self, rank: u32) -> LaneSet {
        let ways = self.ways.get(rank as usize);
        ways.map_or(LaneSet::EMPTY, |ways| {
            ways.fences.working().and(ways.exposed)
        })
    }

    /// The lane of messages and words of a pair. `None` when none works.
    pub(super) fn home(&self, me: u32, rank: u32) -> Option<u8> {
        let Some(ways) = self.ways.get(rank as usize) else {
            return Some(0);
        };
        u8::try_from(ways.fences.home(pair(me, rank))?).ok()
    }

    fn fenced(&self, rank: u32) -> LaneSet {
        let ways = self.ways.get(rank as usize);
        ways.map_or(LaneSet::EMPTY, |ways| ways.fences.fenced())
    }

    /// Operations towards a rank.
    fn towards(&self, rank: u32) -> Vec<u32> {
        let all = self.striped.iter();
        all.filter(|(_, striped)| striped.is_towards(rank))
            .map(|(slot, _)| *slot)
            .collect()
    }

    /// Whether there is something to do without an event, and at once.
    pub(super) fn have_news(&self) -> bool {
        !self.asked.is_empty() && self.leaving.is_empty()
    }

    /// Whether operations by several lanes wait for room.
    pub(super) const fn are_hungry(&self) -> bool {
        self.hungry
    }

    /// Whether lanes are closed as soon as the library lets go of entries.
    pub(super) fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }
}

impl Portals {
    /// The rail of messages and words to a peer, and what the peer is called there.
    pub(super) fn home(&self, to: u32) -> (&Rail, Process) {
        let (peer, lane) = (self.peer(to), self.peer(to).home);
        let place = self.place(to, lane.into());
        let process = place.map_or(peer.address.process, |(process, _)| process);
        (&self.ground.rails[usize::from(lane)], process)
    }

    /// The lane by which atomics of a peer's memory go, and all that goes with them.
    pub(super) fn lane_of_atomics(&self, to: u32) -> Bound {
        let Some(ways) = self.rails.ways.get(to as usize) else {
            return Bound::By(0);
        };
        let lane = ways.atomics;
        if ways.fences.working().has(lane) {
            Bound::By(lane)
        } else if ways.fences.fenced().has(lane) {
            Bound::Never
        } else {
            Bound::Later
        }
    }

    /// The rail by which atomics come when memory has left its tables on some rails.
    fn rail_of_atomics(&self, now: u32, left: LaneSet) -> u32 {
        let up = self.peers.iter().zip(&self.rails.ways);
        let up = up.filter(|(peer, _)| peer.life == Life::Up);
        let all = LaneSet::first(u32::try_from(self.ground.rails.len()).unwrap_or(1));
        let common = up.fold(all, |common, (_, ways)| common.and(ways.fences.working()));
        rail_of_atomics(now, left, common)
    }

    /// The same for task lists and names, which are on the first rail.
    pub(super) fn lane_of_lists(&self, to: u32) -> Bound {
        let Some(ways) = self.rails.ways.get(to as usize) else {
            return Bound::By(0);
        };
        if ways.fences.working().and(ways.exposed).has(0) {
            Bound::By(0)
        } else if ways.fences.fenced().has(0) || !ways.exposed.has(0) {
            Bound::Never
        } else {
            Bound::Later
        }
    }

    /// What a peer is called on a lane, and the table entry of its memory there.
    pub(super) fn place(&self, to: u32, lane: u32) -> Option<(Process, u32)> {
        match self.rails.ways.get(to as usize) {
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
}

/// How what is bound to one lane reaches a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    By(u32),
    /// The lane has failed. The peer will answer, or is found dead.
    Later,
    /// The peer has answered, and there is no lane.
    Never,
}

/// The first rail by which all are reached, or as many as the first one reaches. But it stays the same as long as its table is
/// open: what is under way there, and what others send who have not heard, would meet what comes by another one.
fn rail_of_atomics(now: u32, left: LaneSet, common: LaneSet) -> u32 {
    if left.has(now) {
        common.iter().next().unwrap_or(0)
    } else {
        now
    }
}

/// As long as pieces have not shown how fast rails are, their weights say it.
pub(super) fn speeds(interfaces: &[Interface]) -> Speeds {
    let weights = interfaces.iter().map(|one| one.weight);
    Speeds::by_weight(SPEED, &weights.collect::<Vec<_>>())
}

/// Of a rail of the greatest weight.
const SPEED: Speed = Speed {
    latency_ns: 3_500,
    bytes_per_us: 11_000,
};

#[cfg(test)]
mod tests {
    use super::{LaneSet, rail_of_atomics};

    #[test]
    fn atomics_stay_on_a_rail_whose_table_is_open() {
        let lanes = LaneSet::from_bits;
        // The first rail failed for a rank that is dead by now, and atomics went to the second one.
        assert_eq!(rail_of_atomics(0, lanes(0b0001), lanes(0b1110)), 1);
        assert_eq!(rail_of_atomics(1, lanes(0b1000), lanes(0b0111)), 1);
        assert_eq!(rail_of_atomics(1, lanes(0b0010), lanes(0b0101)), 0);
        // There is none by which all are reached.
        assert_eq!(rail_of_atomics(2, lanes(0b0100), lanes(0)), 0);
        assert_eq!(rail_of_atomics(0, lanes(0b1000), lanes(0)), 0);
    }
}
