//! Several interfaces of a rank: its rails. The first one carries messages, words, atomics and lists, in their order; pieces of
//! long puts and gets go by all of them (`stripes`).
//!
//! The second rail of a rank reaches the second one of another, and so on: such a pair is a *lane*. Lane 0, of the first ones,
//! does not fail alone: who cannot be reached by it is lost. What another lane had under way when it failed may still arrive, so
//! both ranks close it before anything of that goes out again ([`Fences`]).
//!
//! Memory is exposed to everybody by one table entry of a rail. A rank closes a lane by moving its memory to another entry
//! (`door`), and tells its peers where it is now; the peer of that lane does not use it. A dead rank takes no rail along: who
//! finds a lane broken closes it only when the other one has answered.

mod door;
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
    config::Interface,
    event::Process,
    library::Library,
    peer::Life,
    state::Portals,
};
use crate::lanes::{Fences, LaneSet, Speed, Speeds, Word};

/// An interface beside the first one.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) ni: Arc<Ni>,
    /// For ends of operations.
    pub(super) ends: Eq,
    /// For operations on any memory.
    pub(super) all_md: Md,
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
    /// By rank; none when this rank has one interface.
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
    /// From lane 1 on.
    places: [Option<Place>; RAILS_MAX - 1],
    fences: Fences,
}

impl Rail {
    /// # Errors
    /// What the library said.
    pub(super) fn open(library: &Library, interface: u32, events: u32) -> io::Result<Self> {
        let ni = Arc::new(Ni::open(library.clone(), Some(interface), 0)?);
        let ends = ni.eq_alloc(events.into())?;
        let all_md = ni.md_bind(None, ends)?;
        Ok(Self { ni, ends, all_md })
    }
}

impl Rails {
    /// Of a rank with `own` rails beside the first one; those of all ranks are in `places`.
    pub(super) fn new(
        own: usize,
        places: Vec<Vec<Place>>,
        (speeds, piece_max): (Speeds, u64),
    ) -> Self {
        let lanes = |theirs: usize| u32::try_from(1 + own.min(theirs)).unwrap_or(1);
        let ways = |places: Vec<Place>| Ways {
            places: std::array::from_fn(|at| places.get(at).copied()),
            fences: Fences::new(LaneSet::first(lanes(places.len()))),
        };
        let ways: Vec<_> = match own {
            0 => Vec::new(),
            _ => places.into_iter().map(ways).collect(),
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

    /// Bytes that are kept for a peer.
    pub(super) const fn peer_len(&self) -> usize {
        if self.ways.is_empty() {
            0
        } else {
            size_of::<Ways>()
        }
    }

    /// Lanes by which a peer can be reached now.
    fn lanes(&self, rank: u32) -> LaneSet {
        let ways = self.ways.get(rank as usize);
        ways.map_or(LaneSet::EMPTY, Ways::working)
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

    /// Whether there is something to do without an event.
    pub(super) fn have_news(&self, credits: bool) -> bool {
        !self.asked.is_empty() || !self.leaving.is_empty() || self.hungry && credits
    }
}

impl Ways {
    fn working(&self) -> LaneSet {
        let gone = (1..).zip(&self.places).filter(|(_, place)| place.is_none());
        let gone = gone.fold(LaneSet::EMPTY, |gone, (lane, _)| gone.with(lane));
        self.fences.working().without(gone)
    }
}

impl Portals {
    /// What a peer is to know of our rails: what we say of the lanes between us, and the tables of memory by rails that are not
    /// those of our address any more.
    pub(super) fn word_of_rails(&self, to: u32) -> u64 {
        let Some(ways) = self.rails.ways.get(to as usize) else {
            return 0;
        };
        let Word { failed, closed } = ways.fences.word();
        let mut bytes = [failed.bits(), closed.bits(), 0, 0, 0, 0, 0, 0];
        let tables = self.ground.exports.tables();
        for (byte, table) in bytes[TABLES_AT..].iter_mut().zip(tables) {
            *byte = match table {
                Some(table) => table + 1,
                None => NO_TABLE,
            };
        }
        u64::from_le_bytes(bytes)
    }

    /// What a peer says of its rails.
    pub(super) fn hear_of_rails(&mut self, rank: u32, word: u64) {
        let Some(ways) = self.rails.ways.get_mut(rank as usize).filter(|_| word > 0) else {
            return;
        };
        let bytes = word.to_le_bytes();
        for (place, byte) in ways.places.iter_mut().zip(&bytes[TABLES_AT..]) {
            match (*byte, place.as_mut()) {
                (NO_TABLE, _) => *place = None,
                (1.., Some(place)) => place.table = byte - 1,
                _ => {}
            }
        }
        // Lane 0 does not fail alone, whatever a peer says.
        let [failed, closed, ..] = bytes.map(|byte| LaneSet::from_bits(byte & !1));
        let before = ways.fences;
        let fenced = ways.fences.handle_word(Word { failed, closed });
        let to_close = ways.fences.to_close().and(failed);
        let lanes = to_close.iter().map(|lane| (lane, rank));
        let new = lanes.filter(|lane| !self.rails.leaving.contains(lane));
        self.rails.asked.extend(new);
        let failed = before.working().without(ways.fences.working());
        if !failed.is_empty() || !fenced.is_empty() {
            failed.iter().for_each(|lane| self.leave_lane(rank, lane));
            self.go_on_towards(rank);
        }
    }

    /// A lane to a peer does not work.
    fn fail_lane(&mut self, rank: u32, lane: u32) {
        let Some(ways) = self.rails.ways.get_mut(rank as usize) else {
            return;
        };
        if ways.fences.fail(lane) {
            self.ground.counters.lanes_failed.add(1);
            self.leave_lane(rank, lane);
            self.say_words(rank);
        }
    }

    /// Closes lanes that are to be closed: at once, unless something is being delivered by them.
    pub(super) fn close_lanes(&mut self) {
        let exports = Arc::clone(&self.ground.exports);
        if self.rails.leaving.is_empty() {
            self.rails.leaving = std::mem::take(&mut self.rails.asked);
            lanes_of(&self.rails.leaving).for_each(|lane| exports.leave(lane));
        }
        if self.rails.leaving.is_empty()
            || !lanes_of(&self.rails.leaving).all(|lane| exports.has_left(lane))
        {
            return;
        }
        for (lane, rank) in std::mem::take(&mut self.rails.leaving) {
            self.rails.ways[rank as usize].fences.close(lane);
            self.go_on_towards(rank);
        }
        for rank in (0..).take(self.peers.len()) {
            let peer = self.peer(rank);
            if peer.met && peer.life == Life::Up && rank != self.me {
                self.say_words(rank);
            }
        }
    }
}

/// Each once, without lane 0.
fn lanes_of(lanes: &BTreeSet<(u32, u32)>) -> impl Iterator<Item = usize> {
    let all = (lanes.iter()).fold(LaneSet::EMPTY, |all, (lane, _)| all.with(*lane));
    all.iter().filter_map(|lane| (lane as usize).checked_sub(1))
}

/// The most interfaces of a rank.
pub(super) const RAILS_MAX: usize = 4;
/// As long as pieces have not shown how fast rails are, their weights say it.
pub(super) fn speeds(interfaces: &[Interface]) -> Speeds {
    let most = interfaces.iter().map(|one| one.weight).max().unwrap_or(1);
    let speed = |one: &Interface| Speed {
        bytes_per_us: SPEED.bytes_per_us * u64::from(one.weight) / u64::from(most),
        ..SPEED
    };
    let all: Vec<_> = interfaces.iter().map(speed).collect();
    Speeds::new(if all.is_empty() { &[SPEED] } else { &all })
}

/// Of a rail of the greatest weight.
const SPEED: Speed = Speed {
    latency_ns: 3_500,
    bytes_per_us: 11_000,
};
/// Where tables are in the word about rails: each a byte, one more than the index, and 0 for that of the address.
const TABLES_AT: usize = 2;
const NO_TABLE: u8 = u8::MAX;
