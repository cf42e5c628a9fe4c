//! The shared-memory driver: the ranks of one node, as processes or as threads.
//!
//! Ranks find each other on a [`Board`]. Each owns a segment ([`segment`]) that holds a ring for each rank that sends to it
//! ([`ring`]), and the chunks that its own longer bodies travel in ([`pool`]); a pair's memory is made at the first message.
//! A receiver that sleeps is woken through its [`bell`]. Puts, gets and atomics are loads and stores of the origin on regions
//! that the target allocated ([`regions`]), or a `process_vm_*` call on its other memory ([`cma`]). The names of these files
//! are private; the way of a message is `Shm::post` → `Link::send` → `Producer::push`, and
//! `Shm::progress` → `Inbound::deliver` → `Sink::message`.
//!
//! A small message costs no allocation, no lock and no system call on either side while the receiver is awake.

use std::{io, sync::Arc};

use self::{
    bell::Bell,
    board::index,
    copies::{Copies, Direction, Done, Job, Remote},
    deaths::Deaths,
    inbound::Inbound,
    link::{Link, Stall},
    pool::Pool,
    regions::{Exports, MAPPED},
    segment::{CHUNK_LEN, Segment, Shape},
};
use crate::{
    counters::Counters,
    driver::{
        Armed, AtomicOp, Caps, Command, Cost, Down, Driver, Failure, LocalRange, Post, Progress,
        Sink, Token, WaitOn,
    },
    memory::{Region, RemoteRegion},
};

mod bell;
mod board;
mod cma;
mod contact;
mod copies;
mod deaths;
mod inbound;
mod link;
#[cfg(test)]
#[cfg(loom)]
mod loom_models;
mod pool;
mod proc;
mod regions;
mod ring;
mod segment;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use board::{Board, PeerState};

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
    /// By rank: whom we have mapped.
    links: Vec<Option<Box<Link>>>,
    /// The ranks in `links`.
    linked: Vec<u32>,
    /// Who sends to us.
    inbound: Vec<Inbound>,
    /// By rank: what we know and told of it.
    standing: Vec<Standing>,
    /// Who is gone and has to be told of, once the messages it left are delivered.
    leaving: Vec<(u32, Down)>,
    /// Why we gave ranks up that may live.
    troubles: Vec<(u32, io::Error)>,
    seen: Seen,
    /// Some link is stalled.
    stalled: bool,
    /// Somebody was wanted who has not opened yet.
    expecting: bool,
    failed: bool,
    turns: u32,
    /// Work done since we looked who has died.
    unchecked: u32,
}

/// How peers wake a rank that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// Through a futex word on the board: for those who can sleep on a futex and on descriptors at once.
    Futex,
    /// Through a pipe.
    Fd,
}

/// How to open a [`Shm`].
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Which rank of the node this is.
    pub rank: u32,
    /// How peers wake it.
    pub wake: Wake,
    /// Whether `process_vm_*` may be used. Where the system forbids it, it is not used either way.
    pub single_copy: bool,
    /// Where the driver counts.
    pub counters: Arc<Counters>,
    /// Slots of the ring of each peer in contact, 128 bytes each: a power of two, 2 to 65 536.
    pub ring_slots: u32,
    /// Chunks of 8 KiB that this rank's longer bodies travel in, shared by all peers, 1 to 65 536. They are made as they are
    /// needed.
    pub chunks: u32,
}

impl ShmConfig {
    /// The defaults: a futex, `process_vm_*` if the system allows, 16 KiB for each direction between a pair, 2 MiB for chunks.
    #[must_use]
    pub fn new(rank: u32) -> Self {
        let counters = Arc::default();
        Self {
            rank,
            wake: Wake::Futex,
            single_copy: true,
            counters,
            ring_slots: 128,
            chunks: 256,
        }
    }
}

impl Shm {
    /// Takes the rank's place on the board: from here on peers can send to it.
    ///
    /// # Errors
    /// `InvalidInput` for a rank or a size out of range, `AddrInUse` when somebody has opened this rank, else what the system
    /// said when there was no memory or no descriptor.
    pub fn open(board: &Board, config: ShmConfig) -> io::Result<Self> {
        let shape = Shape {
            size: board.size(),
            slots: config.ring_slots,
            chunks: config.chunks,
        };
        check(&config, shape)?;
        if !board.claim(config.rank) {
            let why = format!(
                "rank {} of this node is open, or was: each rank opens its driver once",
                config.rank
            );
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        let rank = config.rank;
        Self::enter(board, config, shape).inspect_err(|_| board.disclaim(rank))
    }

    /// Closes the driver, and tells the peers that this rank has failed.
    pub fn fail(mut self) {
        self.failed = true;
    }

    /// Why a rank was given up that did not end by itself: it could not be mapped, or wrote nonsense. Such a rank is reported
    /// as failed.
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
            ..
        } = config;
        let segment = Segment::create(board, rank, shape)?;
        let size = index(shape.size);
        let shm = Self {
            rank,
            board: board.clone(),
            caps: caps(single_copy),
            counters,
            bell: Bell::new(board, rank, wake)?,
            deaths: Deaths::new(rank)?,
            pool: Pool::new(segment.clone())?,
            exports: Exports::new(segment.clone(), rank),
            copies: Copies::default(),
            segment,
            links: std::iter::repeat_with(|| None).take(size).collect(),
            linked: Vec::new(),
            inbound: Vec::new(),
            standing: vec![Standing::Up; size],
            leaving: Vec::new(),
            troubles: Vec::new(),
            seen: Seen::default(),
            stalled: false,
            expecting: false,
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
                token,
            } => self.copy(Direction::Put, to.0, from, into, token),
            Command::Get {
                to,
                from,
                into,
                token,
            } => self.copy(Direction::Get, to.0, into, from, token),
            Command::Atomic { to, at, op, token } => self.atomic(to.0, at, op, token),
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
            events += self.copies.advance(budget, sink, &self.counters);
            self.unchecked += contact::WORK_OF_A_COPY;
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
        self.ask_for_room();
        self.bell.arm(&self.counters);
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
}

impl Shm {
    /// Whether the message was taken.
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

    fn copy(
        &mut self,
        direction: Direction,
        to: u32,
        local: LocalRange,
        key: RemoteRegion,
        token: Token,
    ) -> bool {
        if !self.copies.has_room() {
            return false;
        }
        match self.remote(to, key, local.len()) {
            Ok(remote) => {
                let job = Job {
                    token,
                    peer: to,
                    direction,
                    local,
                    remote,
                    copied: 0,
                };
                self.copies.start(job, &self.counters);
            }
            Err(Refusal::NotYet) => return false,
            Err(Refusal::Never(why)) => self.copies.finish(Done::Failed(token, why)),
        }
        true
    }

    fn atomic(&mut self, to: u32, key: RemoteRegion, op: AtomicOp, token: Token) -> bool {
        if !self.copies.has_room() {
            return false;
        }
        let done = match self.remote(to, key, size_of::<u64>()) {
            Ok(Remote::Mapped { region, offset }) if offset.is_multiple_of(size_of::<u64>()) => {
                Done::Fetched(token, copies::apply(op, region.atomic_u64(offset)))
            }
            Ok(_) => Done::Failed(token, Failure::BadRange),
            Err(Refusal::NotYet) => return false,
            Err(Refusal::Never(why)) => Done::Failed(token, why),
        };
        self.copies.finish(done);
        true
    }

    /// The memory that a key grants. A peer that one only reaches into is not contacted.
    fn remote(&mut self, to: u32, key: RemoteRegion, len: usize) -> Result<Remote, Refusal> {
        match self.map(to) {
            Reach::Linked => {}
            Reach::Absent => return Err(Refusal::NotYet),
            Reach::Down => return Err(Refusal::Never(Failure::PeerDown)),
        }
        let Some(link) = self.links[index(to)].as_deref_mut() else {
            return Err(Refusal::Never(Failure::PeerDown));
        };
        if key.kind == MAPPED {
            let (region, offset) = link.resolve(key, len)?;
            return Ok(Remote::Mapped { region, offset });
        }
        let secret = link.segment.secret();
        let expected = RemoteRegion {
            base: key.base,
            len: len as u64,
            ..plain_key(to, secret)
        };
        let fits = key == expected && key.base.checked_add(key.len).is_some();
        let may = fits && self.caps.any_memory.is_ok();
        if may {
            Ok(Remote::Plain {
                pid: link.pid,
                address: key.base,
            })
        } else {
            Err(Refusal::Never(Failure::BadRange))
        }
    }

    fn plain_key(&self, range: LocalRange) -> Option<RemoteRegion> {
        let key = plain_key(self.rank, self.segment.secret());
        let (base, len) = (range.start().addr().get() as u64, range.len() as u64);
        self.caps
            .any_memory
            .is_ok()
            .then_some(RemoteRegion { base, len, ..key })
    }

    #[inline]
    fn receive(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        // Not from the same peer first each time, so that none can starve the others.
        self.turns = self.turns.wrapping_add(1);
        let count = self.inbound.len();
        let first = if count > 1 {
            self.turns as usize % count
        } else {
            0
        };
        let mut events = 0;
        for i in (first..count).chain(0..first) {
            match self.inbound[i].deliver(
                budget.saturating_sub(events),
                sink,
                &self.board,
                &self.counters,
            ) {
                Ok(count) => events += count,
                Err(ring::Malformed) => {
                    let from = self.inbound[i].from;
                    self.give_up(
                        from,
                        io::Error::other(format!("rank {from} wrote what is no message")),
                    );
                    break; // the list has changed
                }
            }
        }
        events
    }

    /// Whether `progress` would find something to do.
    fn has_news(&mut self) -> bool {
        self.seen != self.look()
            || self.inbound.iter().any(Inbound::is_ready)
            || !self.copies.is_idle()
            || !self.leaving.is_empty()
            || self.stalled && self.could_send()
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        let failed = self.failed || std::thread::panicking();
        if self.board.leave(self.rank, failed) {
            self.ring_all();
        }
    }
}

/// What the driver knows of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Not known to be gone.
    Up,
    /// Gone, and told or in `leaving`.
    Gone,
}

/// The shared counters that say that something changed, as they were seen last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    contacts: u32,
    changes: u32,
}

/// Whether a peer can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Linked,
    Absent,
    Down,
}

/// Why there is no memory behind a key.
enum Refusal {
    NotYet,
    Never(Failure),
}

impl From<Failure> for Refusal {
    fn from(why: Failure) -> Self {
        Self::Never(why)
    }
}

fn check(config: &ShmConfig, shape: Shape) -> io::Result<()> {
    let ShmConfig {
        rank,
        ring_slots,
        chunks,
        ..
    } = config;
    let why = if *rank >= shape.size {
        format!(
            "rank {rank} on a board of {}: ranks go from 0 to {}",
            shape.size,
            shape.size - 1
        )
    } else if !shape.is_sane() || *ring_slots < 2 {
        format!(
            "{ring_slots} ring slots and {chunks} chunks: slots are a power of two, 2 to 65536, chunks 1 to 65536"
        )
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// A key to plain memory without its range. It carries the owner's secret where a region's key has its slot and generation.
fn plain_key(owner: u32, secret: u64) -> RemoteRegion {
    let [id, generation] = bytemuck::cast(secret);
    RemoteRegion {
        kind: PLAIN,
        owner,
        id,
        generation,
        whole: 0,
        base: 0,
        len: 0,
    }
}

const PLAIN: u32 = 2;

fn caps(single_copy: bool) -> Caps {
    let forbidden = || Err("process_vm_readv is switched off by the configuration".to_owned());
    Caps {
        name: "shm",
        inline_max: ring::ROOM,
        header_max: ring::HEADER_MAX,
        body_max: CHUNK_LEN,
        ordered: true,
        reliable: true,
        one_sided: true,
        atomics: true,
        any_memory: if single_copy {
            cma::probe()
        } else {
            forbidden()
        },
        tag_matching: false,
        triggered_max: 0,
        lanes: 1,
        cost: COST,
    }
}

/// From `benches/shm_pingpong` on a two-core virtual machine (Sapphire Rapids); ratios matter more than figures.
const COST: Cost = Cost {
    send_ns: 15.0,
    recv_ns: 15.0,
    latency_ns: 120.0,
    copy_ns_per_kib: 20.0,
    message_ns_per_kib: 140.0,
    get_ns: 400.0,
    get_ns_per_kib: 55.0,
    put_ns: 400.0,
    put_ns_per_kib: 55.0,
    expose_ns: 50.0,
};
