//! The shared-memory driver: connects the ranks of one node, as processes or as threads.
//!
//! Ranks find each other on a [`Board`]. The module's main type is [`Shm`], a rank's driver. A message takes the path
//! `Shm::post_message` →
//! `ShmLink::send` → `RingProducer::push`, and then `Shm::progress` → `InboundRing::deliver` → `Sink::message`, or
//! `Shm::progress_from` → `InboundRing::deliver_one`. An awaited message is copied by `Shm::take_awaited` →
//! `InboundRing::take_awaited`, without a sink. The files are private:
//!
//! - `segment`: the memory that each rank owns and its peers map.
//! - `ring`: in a segment, one ring for each rank that sends to the owner. A pair's memory is made at its first message.
//! - `pool`: chunks in the sender's segment, for bodies that do not fit into a slot of a ring.
//! - `doorbell`: wakes a receiver that sleeps.
//! - `regions`: memory allocated for one-sided access. The origin performs puts, gets and atomics as loads and stores there.
//! - `cma`: puts and gets on any other memory, by a `process_vm_*` call. `cma_guard` ends them when a peer gives this rank up.
//!
//! A small message costs no allocation, no lock and no system call on either side while the receiver is awake.

use std::{io, sync::Arc};

use self::{
    board::index,
    death_watch::DeathWatch,
    doorbell::OwnDoorbell,
    inbound::InboundRing,
    link::{SendStall, ShmLink},
    named_slots::NamedSlotReceiver,
    onesided::ShmRmaOp,
    pool::ChunkPool,
    regions::ExportedRegions,
    retired_links::RetiredLink,
    rma_queue::{ShmRmaQueue, TransferDirection},
    segment::{SegmentShape, ShmSegment},
};
use crate::{
    counters::DriverStats,
    driver::{
        ArmResult, Caps, DownCause, Driver, DriverCommand, LocalRange, PostResult, Sink,
        TurnProgress, WakeSource, WorldRank,
    },
    memory::{MemoryRegion, RegionWord, RemoteRegion},
    offload::ThresholdWatches,
};

mod abilities;
mod absent_ranks;
mod board;
mod cma;
mod cma_guard;
mod config;
mod connect;
mod death_watch;
mod doorbell;
mod footprint;
mod handover;
mod inbound;
mod link;
#[cfg(test)]
#[cfg(loom)]
mod loom_models;
mod mapped_ring;
mod meeting_places;
mod named_slots;
mod namespaces;
mod node;
mod onesided;
mod peer_fds;
mod pool;
mod proc;
mod process_handle;
mod processes;
mod provider;
mod regions;
mod retired_links;
mod ring;
mod rma_queue;
mod segment;
mod spare_fds;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use board::{Board, BoardDecision, PeerState};
pub use config::{ShmConfig, WakeMethod};
pub use footprint::ShmFootprint;
pub use handover::BoardServer;
pub use meeting_places::MeetingPlaces;
pub use node::BoardRanks;
pub use processes::ProcessMonitor;
pub use provider::ShmProvider;

/// A rank's driver on a node's shared memory.
#[derive(Debug)]
pub struct Shm {
    rank: u32,
    board: Board,
    segment: ShmSegment,
    caps: Caps,
    counters: Arc<DriverStats>,
    bell: OwnDoorbell,
    death_watch: DeathWatch,
    pool: ChunkPool,
    exports: ExportedRegions,
    rma_queue: ShmRmaQueue,
    watches: ThresholdWatches,
    /// By rank: the peers whose segments this driver has mapped.
    links: Vec<Option<Box<ShmLink>>>,
    /// Ranks that have an entry in `links`.
    linked: Vec<u32>,
    /// Peers that send to this rank.
    inbound: Vec<InboundRing>,
    /// Place in `inbound` that [`Shm::inbound_of`] returned last. The list may have changed since.
    last_inbound: usize,
    /// By rank: named slots for messages from that rank, from its first contact on.
    inboxes: Vec<Option<Box<NamedSlotReceiver<named_slots::MappedNamedSlots>>>>,
    /// Ranks that are down and have left messages in named slots.
    unread: Vec<u32>,
    /// By rank: whether it is down.
    peer_status: Vec<ShmPeerStatus>,
    /// Ranks that are down, to be reported once the messages they left are delivered.
    unreported_down: Vec<(u32, DownCause)>,
    /// Ranks that will be given up as soon as they stop copying from or to this rank's memory.
    giving_up: Vec<u32>,
    /// Memory that ranks that were given up may still read.
    retired_links: Vec<RetiredLink>,
    /// Reasons why ranks were given up whose processes may be alive.
    give_up_reasons: Vec<(u32, io::Error)>,
    /// Shared counters that change when something happened, and their values at the last check.
    changes: ChangeWords,
    seen: ChangeCounts,
    /// True while a turn may have more to do than to look at the rings: see [`Shm::has_rare_work`].
    rare: bool,
    /// True if some link is stalled.
    stalled: bool,
    /// True if this rank waits for one that has not opened its segment yet.
    awaits_absent: bool,
    /// True if some rank had not opened its segment yet at the last check.
    has_absent: bool,
    failed: bool,
    turns: u32,
    /// Work done since the last check for dead processes.
    unchecked: u32,
}

impl Shm {
    /// Takes the rank's place on the board. From then on peers can send to it.
    ///
    /// # Errors
    /// `InvalidInput` for a rank or a size out of range, `AddrInUse` if this rank was opened before, `TimedOut` if the other
    /// ranks already count it as failed. Otherwise the system's error when there is no memory or no descriptor.
    pub fn open(board: &Board, config: ShmConfig) -> io::Result<Self> {
        let shape = SegmentShape {
            size: board.size(),
            slots: config.ring_slots,
            chunks: config.chunks,
        };
        config::check(&config, shape)?;
        let rank = config.rank;
        if !board.claim(rank) {
            return Err(connect::claim_error(rank, board.state_of(rank)));
        }
        Self::enter(board, config, shape).inspect_err(|_| board.disclaim(rank))
    }

    /// Closes the driver, and notifies the peers that this rank has failed.
    pub fn fail(mut self) {
        self.failed = true;
    }

    /// Returns why this driver gave up a rank that did not end by itself: it could not be mapped, or wrote invalid data.
    ///
    /// Such a rank is reported as failed.
    #[must_use]
    pub fn trouble_with(&self, rank: u32) -> Option<&io::Error> {
        self.give_up_reasons
            .iter()
            .find_map(|(of, why)| (*of == rank).then_some(why))
    }

    fn enter(board: &Board, config: ShmConfig, shape: SegmentShape) -> io::Result<Self> {
        let ShmConfig {
            rank,
            wake,
            single_copy,
            counters,
            patience,
            ..
        } = config;
        let segment = ShmSegment::create(board, rank, shape)?;
        let size = index(shape.size);
        let changes = ChangeWords {
            contacts: segment.contacts_word(),
            changes: board.changes_word(),
        };
        let shm = Self {
            rank,
            board: board.with_patience(patience),
            caps: config::caps(single_copy, board.is_split()),
            counters,
            bell: OwnDoorbell::new(board, rank, wake)?,
            death_watch: DeathWatch::new(rank, patience)?,
            pool: ChunkPool::new(segment.clone())?,
            exports: ExportedRegions::new(segment.clone(), rank),
            rma_queue: ShmRmaQueue::default(),
            watches: ThresholdWatches::new(),
            segment,
            links: std::iter::repeat_with(|| None).take(size).collect(),
            linked: Vec::new(),
            inbound: Vec::new(),
            last_inbound: 0,
            inboxes: std::iter::repeat_with(|| None).take(size).collect(),
            unread: Vec::new(),
            peer_status: vec![ShmPeerStatus::Up; size],
            unreported_down: Vec::new(),
            giving_up: Vec::new(),
            retired_links: Vec::new(),
            give_up_reasons: Vec::new(),
            changes,
            seen: ChangeCounts::default(),
            rare: false,
            stalled: false,
            awaits_absent: false,
            has_absent: true,
            failed: false,
            turns: 0,
            unchecked: 0,
        };
        shm.appear()?;
        Ok(shm)
    }
}

impl Driver for Shm {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline]
    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let taken = match command {
            DriverCommand::Message { to, header, body } => self.post_message(to, header, body),
            ref other => self.post_rare(other),
        };
        if taken {
            PostResult::Posted
        } else {
            PostResult::Full(command)
        }
    }

    fn post_message(&mut self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        self.send(to.0, header, body)
    }

    #[inline]
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        if self.rare || self.unchecked >= connect::WORK_PER_CHECK {
            self.check_deaths_if_due();
        }
        let mut events = self.poll_board();
        events += self.receive(budget, sink);
        if self.rare {
            events += self.do_rare_work(budget, sink);
        }
        debug_assert!(
            self.rare || !self.has_rare_work(),
            "what is rare sets the flag where it arises"
        );
        self.unchecked += 1 + events;
        TurnProgress { events }
    }

    fn arm(&mut self) -> ArmResult {
        if self.has_pending_work() {
            return ArmResult::Busy;
        }
        self.rare = true;
        self.watch();
        self.unmap_freed_regions();
        self.ask_for_room();
        self.bell.arm(&self.counters);
        // Check again after arming: a peer that published before it could see the doorbell armed does not ring.
        if self.has_pending_work() {
            self.bell.wake();
            return ArmResult::Busy;
        }
        ArmResult::Ready
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        vec![
            self.bell.wait_on(),
            WakeSource::Fd(self.death_watch.wait_on()),
        ]
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.exports.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.exports.key_to(range).or_else(|| self.plain_key(range))
    }

    #[inline]
    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<WorldRank>) {
        if self.has_absent {
            self.await_all_absent(awaited());
        }
    }

    /// Ends nothing here: this driver watches the processes of its peers, and ends the commands itself.
    fn give_up(&mut self, _peer: WorldRank, how: Option<DownCause>) -> DownCause {
        how.unwrap_or(DownCause::Failed)
    }
}

impl Shm {
    /// Takes a command other than a message. What it leaves to do is found in the next turn.
    fn post_rare(&mut self, command: &DriverCommand<'_>) -> bool {
        self.rare = true;
        match *command {
            DriverCommand::Message { to, header, body } => self.post_message(to, header, body),
            DriverCommand::Put {
                to,
                from,
                into,
                count,
                token,
            } => self.copy(
                to.0,
                ShmRmaOp {
                    direction: TransferDirection::Put,
                    local: from,
                    key: into,
                    count,
                    token,
                },
            ),
            DriverCommand::Get {
                to,
                from,
                into,
                token,
            } => self.copy(
                to.0,
                ShmRmaOp {
                    direction: TransferDirection::Get,
                    local: into,
                    key: from,
                    count: None,
                    token,
                },
            ),
            DriverCommand::Atomic { to, at, op, token } => self.atomic(to.0, at, op, token),
            DriverCommand::Count { to, counter, by } => self.count(to.0, counter, by),
            DriverCommand::Watch {
                counter,
                threshold,
                token,
            } => {
                self.watches.add(counter, threshold, token);
                self.bell.order(&self.counters);
                true
            }
            DriverCommand::Unwatch { token } => {
                self.watches.remove(token);
                true
            }
            // The system grants access to all memory of this process or to none, so there is nothing to revoke.
            DriverCommand::Withdraw { .. } => true,
        }
    }

    /// Returns true if there is anything to do in each turn besides looking at the rings. Whatever makes this true sets `rare`.
    fn has_rare_work(&self) -> bool {
        self.bell.is_armed()
            || !self.rma_queue.is_idle()
            || self.rma_queue.has_dying()
            || !self.watches.is_empty()
            || !self.giving_up.is_empty()
            || !self.unreported_down.is_empty()
            || self.stalled
    }

    /// Does what is rare, apart from the checks that come before a turn. Returns the number of events.
    #[inline(never)]
    fn do_rare_work(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        if !self.rma_queue.is_idle() {
            events += self
                .rma_queue
                .advance(budget, sink, &self.board, &self.counters);
            self.unchecked += connect::WORK_OF_A_COPY;
            self.ring_reached();
        }
        while let Some(token) = self.watches.pop_reached() {
            sink.reached(token);
            events += 1;
        }
        if !self.giving_up.is_empty() {
            self.finish_giving_up();
        }
        if !self.unreported_down.is_empty() {
            events += self.report_peer_down(sink);
        }
        if self.stalled {
            events += self.unstall();
        }
        self.rare = self.has_rare_work();
        events
    }

    /// Returns true if the message was taken.
    #[inline(always)]
    fn send(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        let link = self.links.get_mut(index(to));
        let link = link.and_then(Option::as_deref_mut);
        let Some(link) = link.filter(|link| link.is_open()) else {
            return self.send_first(to, header, body);
        };
        if let Err(stall) = link.send(&mut self.pool, header, body) {
            return self.stall(to, stall, header, body);
        }
        link.ring(&self.board, &self.counters);
        link.prefetch_later_slot(self.turns);
        self.counters.messages_sent.add(1);
        if !body.is_empty() {
            self.counters.copies.add(1);
            self.counters.bytes_copied.add(body.len() as u64);
        }
        true
    }

    #[cold]
    fn send_first(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        match self.connect(to) {
            LinkOutcome::Linked => self.post_message(WorldRank(to), header, body),
            LinkOutcome::Absent => false,
            LinkOutcome::Down => true, // dropped, as `Driver::post` says
        }
    }

    #[cold]
    fn stall(&mut self, to: u32, stall: SendStall, header: &[u8], body: &[u8]) -> bool {
        let link = self.links[index(to)].as_deref();
        if link.is_some_and(|link| link.is_refused()) {
            self.give_up(
                to,
                io::Error::other(format!("rank {to} cannot map our memory or sees us failed")),
            );
            return true;
        }
        if stall == SendStall::Chunk && self.reclaim() {
            return self.post_message(WorldRank(to), header, body);
        }
        if let Some(link) = self.links[index(to)].as_deref_mut() {
            link.stall = Some(stall);
            (self.stalled, self.rare) = (true, true);
        }
        false
    }

    #[inline]
    fn receive(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        // Start with a different peer each time, so that no peer can starve the others.
        self.turns = self.turns.wrapping_add(1);
        let count = self.inbound.len();
        let mut at = if count > 1 {
            self.turns as usize % count
        } else {
            0
        };
        let mut events = 0;
        for _ in 0..count {
            let Some(arrived) = self.receive_from(at, budget - events, sink) else {
                break; // the list has changed
            };
            events += arrived;
            at = if at + 1 < count { at + 1 } else { 0 };
        }
        events
    }

    /// Returns the place of a peer in `inbound`, if it has sent anything. O(1) if the last call found the same peer, otherwise
    /// O(peers that send).
    #[inline]
    fn inbound_of(&mut self, rank: u32) -> Option<usize> {
        let is_its = |ring: &InboundRing| ring.from == rank;
        if !self.inbound.get(self.last_inbound).is_some_and(is_its) {
            self.last_inbound = self.inbound.iter().position(is_its)?;
        }
        Some(self.last_inbound)
    }

    /// Delivers at most `budget` messages of one peer, and returns how many. Returns `None` if the peer was given up.
    #[inline]
    fn receive_from(&mut self, at: usize, budget: u32, sink: &mut dyn Sink) -> Option<u32> {
        let inbound = &mut self.inbound[at];
        let delivered = inbound.deliver(budget, sink, &self.board, &self.counters);
        if delivered != Ok(0) {
            self.note_delivery(at, delivered.is_ok());
        }
        delivered.ok()
    }

    /// Records that messages of a peer were handed out. If the last one was malformed, gives the peer up.
    #[inline]
    fn note_delivery(&mut self, at: usize, is_sound: bool) {
        let inbound = &self.inbound[at];
        let from = inbound.from;
        if !is_sound {
            let why = io::Error::other(format!("rank {from} wrote a malformed message"));
            self.give_up(from, why);
        } else if let Some(inbox) = self.inboxes[index(from)].as_deref_mut() {
            inbox.note_ring(inbound.position(), inbound.slot_messages());
        }
    }

    /// Returns true if `progress` would find something to do.
    fn has_pending_work(&mut self) -> bool {
        self.seen != self.load_change_counts()
            || self.inbound.iter().any(InboundRing::is_ready)
            || !self.rma_queue.is_idle()
            || self.watches.is_reached()
            || !self.unreported_down.is_empty()
            || self
                .giving_up
                .iter()
                .any(|rank| self.has_stopped_copying(*rank))
            || self.has_unwatched_dying()
            || self.stalled && self.could_send()
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let failed = self.failed || std::thread::panicking();
        // The order matters: if this process dies in between, another rank finds out that the sleeping ranks were not notified.
        if self.board.leave(self.rank, failed) {
            self.ring_all();
            self.board.mark_notified(self.rank);
        }
    }
}

/// State of a rank's process, as far as the driver knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShmPeerStatus {
    /// The rank is not known to be down.
    Up,
    /// Down, and either reported or waiting in `unreported_down`.
    Down,
}

/// The shared counters that change when something happened.
#[derive(Debug)]
struct ChangeWords {
    contacts: RegionWord,
    changes: RegionWord,
}

/// Last seen values of the shared counters that change when something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChangeCounts {
    contacts: u32,
    changes: u32,
}

/// Result of connecting to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkOutcome {
    Linked,
    Absent,
    Down,
}
