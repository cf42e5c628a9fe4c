//! The shared-memory driver: connects the ranks of one node, as processes or as threads.
//!
//! Ranks find each other on a [`Board`]. Its main type is [`Shm`], a rank's driver. A message takes the path `Shm::post` →
//! `Link::send` → `Producer::push`, and then `Shm::progress` → `Inbound::deliver` → `Sink::message`. The files are private:
//!
//! - `segment`: the memory that each rank owns and its peers map.
//! - `ring`: in a segment, one ring for each rank that sends to the owner. A pair's memory is made at its first message.
//! - `pool`: chunks in the sender's segment, for bodies that do not fit into a slot of a ring.
//! - `bell`: wakes a receiver that sleeps.
//! - `regions`: memory allocated for one-sided access. The origin performs puts, gets and atomics as loads and stores there.
//! - `cma`: puts and gets on any other memory, by a `process_vm_*` call.
//!
//! A small message costs no allocation, no lock and no system call on either side while the receiver is awake.

use std::{io, sync::Arc};

use self::{
    doorbell::Bell,
    board::index,
    collective_slots::Inbox,
    rma_queue::{Copies, Direction},
    death_watch::Deaths,
    inbound::Inbound,
    link::{Link, Stall},
    onesided::Wish,
    retired_links::Parted,
    pool::Pool,
    regions::Exports,
    segment::{CHUNK_LEN, Segment, Shape},
};
use crate::{
    counters::Counters,
    driver::{
        Armed, Caps, CellName, Command, Down, Driver, DriverAbilities, EventCounters, LocalRange,
        MappedMemory, NamedSlots, Payload, Peer, Post, Progress, Sink, Taken, WaitOn,
    },
    lacks_abilities,
    memory::{Region, RemoteRegion},
    offload::{Counter, RemoteCounter, Watches},
};

mod doorbell;
mod board;
mod collective_slots;
mod cma;
mod config;
mod connect;
mod rma_queue;
mod death_watch;
mod footprint;
mod cma_guard;
mod handover;
mod inbound;
mod absent_ranks;
mod process_handle;
mod link;
#[cfg(test)]
#[cfg(loom)]
mod loom_models;
mod mapped_ring;
mod node;
mod onesided;
mod retired_links;
mod pool;
mod proc;
mod processes;
mod provider;
mod peer_fds;
mod regions;
mod ring;
mod segment;
mod namespaces;
mod spare_fds;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use board::{Board, PeerState};
pub use config::{ShmConfig, Wake};
pub use footprint::Footprint;
pub use handover::Meeting;
pub use node::Node;
pub use processes::Processes;
pub use provider::ShmProvider;

/// A rank's driver on a node's shared memory.
#[derive(Debug)]
pub struct Shm {
    rank: u32,
    board: Board,
    segment: Segment,
    caps: Caps,
    counters: Arc<Counters>,
    bell: Bell,
    deaths: Deaths,
    pool: Pool,
    exports: Exports,
    copies: Copies,
    watches: Watches,
    /// By rank: the peers whose segments we have mapped.
    links: Vec<Option<Box<Link>>>,
    /// Ranks that have an entry in `links`.
    linked: Vec<u32>,
    /// Peers that send to us.
    inbound: Vec<Inbound>,
    /// By rank: cells for messages from that rank, from its first contact on.
    inboxes: Vec<Option<Box<Inbox<collective_slots::Mapped>>>>,
    /// Ranks that are down and have left messages in cells.
    unread: Vec<u32>,
    /// By rank: whether it is down.
    standing: Vec<Standing>,
    /// Ranks that are down, to be reported once the messages they left are delivered.
    leaving: Vec<(u32, Down)>,
    /// Ranks that will be given up as soon as they stop copying from or to our memory.
    parting: Vec<u32>,
    /// Memory that ranks we have given up may still read.
    parted: Vec<Parted>,
    /// Reasons why we gave up ranks whose processes may be alive.
    troubles: Vec<(u32, io::Error)>,
    seen: Seen,
    /// True if some link is stalled.
    stalled: bool,
    /// True if we wait for a rank that has not opened its segment yet.
    expecting: bool,
    /// True if some rank had not opened its segment yet when we last checked.
    lacking: bool,
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
        let shape = Shape {
            size: board.size(),
            slots: config.ring_slots,
            chunks: config.chunks,
        };
        config::check(&config, shape)?;
        let rank = config.rank;
        if !board.claim(rank) {
            return Err(connect::taken(rank, board.state_of(rank)));
        }
        Self::enter(board, config, shape).inspect_err(|_| board.disclaim(rank))
    }

    /// Closes the driver, and notifies the peers that this rank has failed.
    pub fn fail(mut self) {
        self.failed = true;
    }

    /// Returns why we gave up a rank that did not end by itself: it could not be mapped, or wrote invalid data.
    ///
    /// Such a rank is reported as failed.
    #[must_use]
    pub fn trouble_with(&self, rank: u32) -> Option<&io::Error> {
        self.troubles
            .iter()
            .find_map(|(of, why)| (*of == rank).then_some(why))
    }

    fn enter(board: &Board, config: ShmConfig, shape: Shape) -> io::Result<Self> {
        let ShmConfig {
            rank,
            wake,
            single_copy,
            counters,
            patience,
            ..
        } = config;
        let segment = Segment::create(board, rank, shape)?;
        let size = index(shape.size);
        let shm = Self {
            rank,
            board: board.with_patience(patience),
            caps: config::caps(single_copy, board.is_split()),
            counters,
            bell: Bell::new(board, rank, wake)?,
            deaths: Deaths::new(rank, patience)?,
            pool: Pool::new(segment.clone())?,
            exports: Exports::new(segment.clone(), rank),
            copies: Copies::default(),
            watches: Watches::new(),
            segment,
            links: std::iter::repeat_with(|| None).take(size).collect(),
            linked: Vec::new(),
            inbound: Vec::new(),
            inboxes: std::iter::repeat_with(|| None).take(size).collect(),
            unread: Vec::new(),
            standing: vec![Standing::Up; size],
            leaving: Vec::new(),
            parting: Vec::new(),
            parted: Vec::new(),
            troubles: Vec::new(),
            seen: Seen::default(),
            stalled: false,
            expecting: false,
            lacking: true,
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
    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        let taken = match command {
            Command::Message { to, header, body } => self.send(to.0, header, body),
            Command::Put {
                to,
                from,
                into,
                count,
                token,
            } => self.copy(
                to.0,
                Wish {
                    direction: Direction::Put,
                    local: from,
                    key: into,
                    count,
                    token,
                },
            ),
            Command::Get {
                to,
                from,
                into,
                token,
            } => self.copy(
                to.0,
                Wish {
                    direction: Direction::Get,
                    local: into,
                    key: from,
                    count: None,
                    token,
                },
            ),
            Command::Atomic { to, at, op, token } => self.atomic(to.0, at, op, token),
            Command::Count { to, counter, by } => self.count(to.0, counter, by),
            Command::Watch {
                counter,
                threshold,
                token,
            } => {
                self.watches.add(counter, threshold, token);
                self.bell.order(&self.counters);
                true
            }
            Command::Unwatch { token } => {
                self.watches.remove(token);
                true
            }
            // The system grants access to all of our memory or to none, so there is nothing to revoke.
            Command::Withdraw { .. } => true,
        };
        if taken {
            Post::Posted
        } else {
            Post::Full(command)
        }
    }

    #[inline]
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        self.wake_up();
        let mut events = self.notice();
        events += self.receive(budget, sink);
        if !self.copies.is_idle() {
            events += self
                .copies
                .advance(budget, sink, &self.board, &self.counters);
            self.unchecked += connect::WORK_OF_A_COPY;
            self.ring_reached();
        }
        while let Some(token) = self.watches.pop_reached() {
            sink.reached(token);
            events += 1;
        }
        if !self.parting.is_empty() {
            self.part_from_those_outside();
        }
        if !self.leaving.is_empty() {
            events += self.part(sink);
        }
        if self.stalled {
            events += self.unstall();
        }
        self.unchecked += 1 + events;
        Progress { events }
    }

    fn arm(&mut self) -> Armed {
        if self.has_news() {
            return Armed::Busy;
        }
        self.watch();
        self.let_go_of_freed();
        self.ask_for_room();
        self.bell.arm(&self.counters);
        // Check again after arming: a peer that published before it could see the bell armed does not ring.
        if self.has_news() {
            self.bell.wake();
            return Armed::Busy;
        }
        Armed::Ready
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        vec![self.bell.wait_on(), WaitOn::Fd(self.deaths.wait_on())]
    }

    fn allocate(&mut self, len: usize) -> io::Result<Region> {
        self.exports.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.exports.key_to(range).or_else(|| self.plain_key(range))
    }

    #[inline]
    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<Peer>) {
        if self.lacking {
            self.expect_absent(awaited());
        }
    }

    /// Ends nothing here: this driver watches the processes of its peers, and ends the commands itself.
    fn give_up(&mut self, _peer: Peer, how: Option<Down>) -> Down {
        how.unwrap_or(Down::Failed)
    }
}

impl DriverAbilities for Shm {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        Some(self)
    }

    #[inline]
    fn named_slots(&mut self) -> Option<&mut dyn NamedSlots> {
        Some(self)
    }

    fn mapped_memory(&mut self) -> Option<&mut dyn MappedMemory> {
        Some(self)
    }

    lacks_abilities! {
        task_lists, tag_matching, peer_paths, connect_ahead, failure_watch, guarded_memory,
    }
}

impl EventCounters for Shm {
    fn allocate_counters(&mut self, len: usize) -> io::Result<Region> {
        self.allocate(len)
    }
}

impl MappedMemory for Shm {
    fn reach(&mut self, of: Peer, key: RemoteRegion) -> Option<(Region, usize)> {
        self.mapped(of.0, key)
    }

    fn reach_counter(&mut self, of: Peer, key: RemoteCounter) -> Option<Counter> {
        let counter = self.counter(of.0, key).ok()?;
        let link = self.links[index(of.0)].as_deref();
        Some(counter.fenced_by_owner(link.is_some_and(|link| !link.fences())))
    }
}

impl NamedSlots for Shm {
    #[inline]
    fn put_cell(&mut self, to: Peer, name: CellName, sig: u64, bytes: &[u8], again: bool) -> bool {
        let link = self
            .links
            .get_mut(index(to.0))
            .and_then(Option::as_deref_mut);
        let Some(link) = link.filter(|link| link.is_open()) else {
            return self.connect(to.0) == Reach::Linked
                && self.put_cell(to, name, sig, bytes, again);
        };
        let put = link.put_cell(&mut self.pool, name, sig, bytes, again);
        if let Some(copied) = put {
            link.ring(&self.board, &self.counters);
            self.counters.messages_sent.add(1);
            if copied > 0 {
                self.counters.copies.add(1);
                self.counters.bytes_copied.add(copied as u64);
            }
        } else if self.pool.take_lack() {
            self.reclaim(); // for the next one
        }
        put.is_some()
    }

    #[inline]
    fn peek_cell(&self, from: Peer, name: CellName) -> Option<u64> {
        self.inboxes.get(index(from.0))?.as_ref()?.peek(name)
    }

    #[inline]
    fn take_cell(
        &mut self,
        from: Peer,
        name: CellName,
        fill: &mut dyn FnMut(&[Payload<'_>]) -> bool,
    ) -> Option<Taken> {
        let inbox = self.inboxes.get_mut(index(from.0))?.as_mut()?;
        let taken = inbox.take(name, fill)?;
        self.counters.messages_received.add(1);
        Some(taken)
    }

    fn cells_from(&self, from: Peer) -> Vec<CellName> {
        let inbox = self.inboxes.get(index(from.0));
        let inbox = inbox.and_then(Option::as_ref);
        inbox.map_or_else(Vec::new, |inbox| inbox.names())
    }

    #[inline]
    fn are_cells_behind(&self, from: Peer) -> bool {
        let inbox = self.inboxes.get(index(from.0));
        let inbox = inbox.and_then(Option::as_ref);
        inbox.is_some_and(|inbox| inbox.is_passed())
    }
}

impl Shm {
    /// Returns true if the message was taken.
    #[inline]
    fn send(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        assert!(
            header.len() <= ring::HEADER_MAX,
            "a header of {} bytes; the longest is {}",
            header.len(),
            ring::HEADER_MAX
        );
        assert!(
            body.len() <= CHUNK_LEN,
            "a body of {} bytes; the longest is {CHUNK_LEN}",
            body.len()
        );
        assert!(
            to < self.board.size(),
            "rank {to} on a node of {}",
            self.board.size()
        );
        let Some(link) = self.links[index(to)]
            .as_deref_mut()
            .filter(|link| link.is_open())
        else {
            return self.send_first(to, header, body);
        };
        if let Err(stall) = link.send(&mut self.pool, header, body) {
            return self.stall(to, stall, header, body);
        }
        link.ring(&self.board, &self.counters);
        link.look_ahead(self.turns);
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
            Reach::Linked => self.send(to, header, body),
            Reach::Absent => false,
            Reach::Down => true, // dropped, as `Driver::post` says
        }
    }

    #[cold]
    fn stall(&mut self, to: u32, stall: Stall, header: &[u8], body: &[u8]) -> bool {
        let link = self.links[index(to)].as_deref();
        if link.is_some_and(|link| link.is_refused()) {
            self.give_up(
                to,
                io::Error::other(format!("rank {to} could not map our memory, or gave us up")),
            );
            return true;
        }
        if stall == Stall::Chunk && self.reclaim() {
            return self.send(to, header, body);
        }
        if let Some(link) = self.links[index(to)].as_deref_mut() {
            link.stall = Some(stall);
            self.stalled = true;
        }
        false
    }

    #[inline]
    fn receive(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        // Start with a different peer each time, so that no peer can starve the others.
        self.turns = self.turns.wrapping_add(1);
        let count = self.inbound.len();
        let first = if count > 1 {
            self.turns as usize % count
        } else {
            0
        };
        let mut events = 0;
        for i in (first..count).chain(0..first) {
            let inbound = &mut self.inbound[i];
            let from = inbound.from;
            let budget = budget.saturating_sub(events);
            match inbound.deliver(budget, sink, &self.board, &self.counters) {
                Ok(0) => {}
                Ok(count) => {
                    events += count;
                    if let Some(inbox) = self.inboxes[index(from)].as_deref_mut() {
                        inbox.note_ring(inbound.position(), inbound.cells());
                    }
                    if let Some(link) = self.links[index(from)].as_deref() {
                        link.expect_answer();
                    }
                }
                Err(ring::Malformed) => {
                    let why = io::Error::other(format!("rank {from} wrote what is no message"));
                    self.give_up(from, why);
                    break; // the list has changed
                }
            }
        }
        events
    }

    /// Returns true if `progress` would find something to do.
    fn has_news(&mut self) -> bool {
        self.seen != self.look()
            || self.inbound.iter().any(Inbound::is_ready)
            || !self.copies.is_idle()
            || self.watches.is_reached()
            || !self.leaving.is_empty()
            || self.parting.iter().any(|rank| self.has_come_out(*rank))
            || self.must_look_for_deaths()
            || self.stalled && self.could_send()
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let failed = self.failed || std::thread::panicking();
        // In this order: if this process dies in between, another rank finds out that the sleeping ranks were not notified.
        if self.board.leave(self.rank, failed) {
            self.ring_all();
            self.board.say_told(self.rank);
        }
    }
}

/// What the driver knows about the life of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Not known to be down.
    Up,
    /// Down, and either reported or waiting in `leaving`.
    Gone,
}

/// Last seen values of the shared counters that change when something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    contacts: u32,
    changes: u32,
}

/// Result of connecting to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Linked,
    Absent,
    Down,
}
