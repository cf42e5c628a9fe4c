//! Preparation: from loading the library to an interface that peers can reach, before the peers are known.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    sync::Arc,
};

use super::{
    address::{KIND, MESSAGE_BITS, PortalsAddress, SENDER, TableIndices},
    calls::{Eq, PortalsNi},
    config::{MESSAGE_MAX, PortalsConfig, abilities, caps},
    event::{PortalsEvent, PortalsEventKind, PortalsOutcome, PortalsProcess},
    event_queues::PortalsQueues,
    exports::{PortalsExports, small},
    library::PortalsLibrary,
    match_entries::{EntryKind, MatchEntry},
    multirail::{self, PortalsRail, RailTableEntry},
    posted_recvs,
    rma_calls::RemoteTarget,
    send_pool::PortalsSendPool,
    stats::PortalsCounters,
};
use crate::{
    driver::{AbilitySummary, Caps, ExitRecord},
    lanes::LaneSpeeds,
    timer::RetryTimer,
};

/// An open interface with memory for messages, but without peers.
///
/// Peers can already reach it. Arrivals wait until it is connected.
#[derive(Debug)]
pub struct PreparedPortals {
    pub(super) resources: PortalsResources,
    pub(super) address: PortalsAddress,
    /// Places of its memory on the rails beside the first one.
    pub(super) places: Vec<RailTableEntry>,
    /// Relative speeds of the rails.
    pub(super) speeds: LaneSpeeds,
    pub(super) end_records: Option<Arc<dyn ExitRecord>>,
    pub(super) caps: Caps,
    pub(super) abilities: AbilitySummary,
    pub(super) alarm: RetryTimer,
}

/// Resources of a rank. Dropping them closes the interface first, so that the library no longer accesses the memory.
#[derive(Debug)]
pub(super) struct PortalsResources {
    /// Interface of the first rail.
    pub(super) ni: Arc<PortalsNi>,
    pub(super) rails: Vec<PortalsRail>,
    pub(super) queues: PortalsQueues,
    /// Event queue of task lists.
    pub(super) lists: Eq,
    pub(super) pool: PortalsSendPool,
    pub(super) exports: Arc<PortalsExports>,
    /// Capacity of the completion queue, in events.
    pub(super) credits: u32,
    pub(super) counters: Arc<PortalsCounters>,
    /// True if slabs take messages that match no other entry.
    matches_tags: bool,
}

impl PreparedPortals {
    pub(super) fn open(config: &PortalsConfig) -> io::Result<Self> {
        config.check()?;
        let library = open_library(config)?;
        let first = config.interfaces.first().map(|one| one.number);
        let ni = PortalsNi::open(library, first, config.triggered, config.published)?;
        let ni = Arc::new(ni);
        let counters = Arc::clone(&config.counters);
        check_limits(&ni, config)?;
        let mut rails = vec![PortalsRail::open(Arc::clone(&ni), config)?];
        let lists = queue(&ni, config.events)?;
        let [board, eager] = rails[0].alloc_tables(None)?;
        let tables = TableIndices {
            board,
            eager,
            rdma: ni.pt_alloc(None, None, false)?,
            lists: ni.pt_alloc(None, None, false)?,
            wakes: ni.pt_alloc(None, Some(lists), false)?,
        };
        for interface in config.interfaces.iter().skip(1) {
            let library = ni.library.clone();
            let ni = PortalsNi::open(library, Some(interface.number), 0, config.published)?;
            check_limits(&ni, config)?;
            let rail = PortalsRail::open(Arc::new(ni), config)?;
            rail.alloc_tables(Some([board, eager]))?;
            rails.push(rail);
        }
        let mut all = tables.all().into_iter();
        all.try_for_each(|table| small(table).map(drop))?;
        let (pool, nonce) = (PortalsSendPool::new()?, nonce());
        let tags = posted_recvs::tagged_len_min(&ni, config.tags, rails.len());
        let ground = PortalsResources {
            queues: PortalsQueues::new(&rails, lists, config.helper, &counters)?,
            lists,
            pool,
            exports: PortalsExports::new(&ni, tables.rdma, nonce, &counters)?,
            // Some libraries need one empty place to tell a full queue from an empty one.
            credits: (config.events - 1).min(ni.wire.in_flight_max),
            counters,
            rails,
            ni,
            matches_tags: tags.is_some(),
        };
        let address = PortalsAddress {
            process: ground.ni.id()?,
            nonce,
            tables,
            matches_tags: tags.is_some(),
        };
        let body_max = config.body_max(ground.ni.limits.max_msg_size);
        let prepared = Self {
            places: ground.open_rails()?,
            speeds: multirail::speeds(&config.interfaces),
            caps: caps(&ground.ni, body_max, ground.rails.len()),
            abilities: abilities(&ground.ni, tags),
            alarm: RetryTimer::new()?,
            resources: ground,
            address,
            end_records: config.ends.clone(),
        };
        prepared.lay_out()?;
        prepared.check_family()?;
        Ok(prepared)
    }

    /// Returns the address of this rank, for [`connect`](Self::connect) at all ranks: 21 bytes, and 9 for each interface beside
    /// the first one.
    #[must_use]
    pub fn address(&self) -> Vec<u8> {
        self.address.to_bytes(&self.places)
    }

    /// Appends the entries of the boards and the slabs.
    fn lay_out(&self) -> io::Result<()> {
        let tables = &self.address.tables;
        for (nth, rail) in (0..).zip(&self.resources.rails) {
            let entry = MatchEntry {
                memory: Some(rail.board.range()),
                kind: EntryKind::Board,
                match_bits: self.address.control_bits(0),
                ignore_bits: SENDER,
            };
            rail.ni.append(tables.board, &entry, 0)?;
            self.resources.counters.all.entries.add(1);
            (0..rail.slabs.count())
                .try_for_each(|slab| self.resources.give_slab(nth, tables.eager, slab))?;
        }
        self.resources.lay_out_lists(tables)
    }

    /// Puts a word to this rank itself, and checks every field of the events. A wrong family shows here.
    fn check_family(&self) -> io::Result<()> {
        let (ni, process) = (Arc::clone(&self.resources.ni), self.address.process);
        let first = &self.resources.rails[0];
        let probe = BOARD_LEN - 16;
        first.board.atomic_u64(probe).store(WORD, RELAXED);
        let span = first.local_span(first.board.range().slice(probe, 8), USER);
        let remote = RemoteTarget {
            process,
            pt: self.address.tables.board,
            match_bits: self.address.control_bits(0x0123_4567),
            offset: probe as u64 + 8,
        };
        ni.put(span, remote, HEADER, true)?;
        let wait = |eq| {
            let poll = |_| ni.eq_poll(&[eq], PROBE_MILLIS).ok().flatten();
            let polled = (0..PROBE_TURNS).find_map(poll);
            polled.map(|(got, _)| got.event)
        };
        let (Some(ended), Some(told)) = (wait(first.completions), wait(first.hints)) else {
            return Err(unlike(&ni, "there is no event"));
        };
        let board = first.board.start().addr().get() as u64;
        let wrong = wrong_field(&told, &ended, process, remote, board + remote.offset);
        let word = first.board.atomic_u64(probe + 8).swap(0, RELAXED);
        let wrong = wrong.or_else(|| (word != WORD).then_some("the data"));
        wrong.map_or(Ok(()), |what| Err(unlike(&ni, what)))
    }
}

fn open_library(config: &PortalsConfig) -> io::Result<PortalsLibrary> {
    let library = PortalsLibrary::open(config.library.as_deref(), config.family.as_deref())?;
    let habits = config.habits.as_deref();
    habits.map_or(Ok(()), |habits| library.adopt(habits))?;
    Ok(library)
}

/// Returns the first field in which the events of the probe are wrong.
fn wrong_field(
    told: &PortalsEvent,
    ended: &PortalsEvent,
    process: PortalsProcess,
    remote: RemoteTarget,
    start: u64,
) -> Option<&'static str> {
    let fields = [
        ("the kind of PUT", told.kind == PortalsEventKind::Put),
        ("how the PUT ended", told.end == PortalsOutcome::Success),
        ("the header data", told.header == HEADER),
        ("the match bits", told.match_bits == remote.match_bits),
        ("the length", told.mlength == 8),
        ("the start", told.start == start),
        ("the initiator", told.initiator == process),
        ("the portal table index", told.pt == remote.pt),
        ("the kind of ACK", ended.kind == PortalsEventKind::Ack),
        ("how the ACK ended", ended.end == PortalsOutcome::Success),
        ("the user's pointer", ended.user == USER),
    ];
    let wrong = fields.into_iter().find(|(_, right)| !right);
    wrong.map(|(name, _)| name)
}

fn unlike(ni: &PortalsNi, what: &str) -> io::Error {
    let why = format!(
        "the Portals library does not behave like the family {}, as the test put of this process to itself showed \
         ({what}): name the right family with RIPSTOP_PORTALS_ABI",
        ni.profile().name
    );
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl PortalsResources {
    /// Appends the entry of a slab, so that the adapter may fill it.
    pub(super) fn give_slab(&self, rail: u32, pt: u32, slab: usize) -> io::Result<()> {
        let rail = &self.rails[rail as usize];
        let entry = MatchEntry {
            memory: Some(rail.slabs.range(slab)),
            kind: EntryKind::Slab {
                min_free: rail.slabs.min_free() as u64,
                last: self.matches_tags,
            },
            match_bits: if self.matches_tags { 0 } else { MESSAGE_BITS },
            ignore_bits: if self.matches_tags {
                !KIND | MESSAGE_BITS
            } else {
                !KIND
            },
        };
        rail.ni.append(pt, &entry, slab as u64)?;
        self.counters.all.entries.add(1);
        Ok(())
    }

    /// Exposes memory by the rails beside the first one, and returns the places.
    fn open_rails(&self) -> io::Result<Vec<RailTableEntry>> {
        let open = |rail: &PortalsRail| {
            Ok(RailTableEntry {
                process: rail.ni.id()?,
                table: self.exports.add_rail(&rail.ni)?,
            })
        };
        self.rails.iter().skip(1).map(open).collect()
    }

    /// Closes all interfaces, after which the library no longer accesses memory for them.
    pub(super) fn close(&self) {
        self.rails.iter().for_each(|rail| rail.ni.close());
    }
}

impl Drop for PortalsResources {
    fn drop(&mut self) {
        self.queues.stop_helper();
        self.close();
    }
}

/// Checks that the interface has room for the minimum that the driver needs.
fn check_limits(ni: &PortalsNi, config: &PortalsConfig) -> io::Result<()> {
    let limits = &ni.limits;
    let message_max = ni.wire.op_max.min(MESSAGE_MAX as u64);
    let least = [
        ("max_eqs", u64::from(limits.max_eqs), 4),
        ("max_mds", u64::from(limits.max_mds), 2),
        ("max_pt_index", u64::from(limits.max_pt_index), 4),
        // The board, all memory, the slabs, the entries of task lists, and some regions.
        (
            "max_entries",
            u64::from(limits.max_entries),
            config.slabs as u64 + 7,
        ),
        // All slabs are in one list; all memory and some regions are in another.
        (
            "max_list_size",
            u64::from(limits.max_list_size),
            (config.slabs as u64).max(4),
        ),
        ("max_msg_size", limits.max_msg_size, message_max),
        ("max_fetch_atomic_size", limits.max_fetch_atomic_size, 8),
    ];
    let small = least.into_iter().find(|(_, has, needs)| has < needs);
    small.map_or(Ok(()), |(name, has, needs)| {
        let why = format!(
            "the Portals interface has {name} = {has}, but {needs} are needed: raise that limit"
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    })
}

pub(super) fn queue(ni: &PortalsNi, events: u32) -> io::Result<Eq> {
    ni.eq_alloc(u64::from(events)).map_err(|why| {
        let why = io::Error::from(why);
        let sentence = format!(
            "no event queue for {events} events ({why}): raise the Portals library's limit, or ask for fewer with \
             PortalsConfig::events (RIPSTOP_PORTALS_EVENTS)"
        );
        io::Error::new(why.kind(), sentence)
    })
}

/// Returns a random number, which differs between runs of a rank.
///
/// Keys of the standard library's hashes differ between processes and between calls. Only the refusal of stray packets depends on
/// this number.
fn nonce() -> u32 {
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// Bytes of a board: words for a million ranks, and some for the probe. Pages are allocated as they are written.
pub(super) const BOARD_LEN: usize = (24 << 20) + 4096;

const WORD: u64 = 0x7465_6172_7374_6f70;
const USER: u64 = 0x1122_3344_5566_7788;
const HEADER: u64 = 0x99aa_bbcc_ddee_ff01;
/// Five seconds in total for a put to oneself that takes microseconds, because the machine may be busy.
const PROBE_TURNS: u32 = 100;
const PROBE_MILLIS: u32 = 50;
const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;
