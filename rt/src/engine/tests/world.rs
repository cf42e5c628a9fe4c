//! Ranks without threads: engines that make turns one after the other, over loopback drivers that drop what a test wants dropped.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use ripstop_fabric::{
    driver::{
        AwaitedLook, AwaitedMessage, Caps, CommandFailure, CommandToken, ConnectAhead, DownCause,
        DownEvidence, Driver, DriverAbilities, DriverCommand, FailureWatch, LocalRange, NodeMemory,
        PeerTurns, PostResult, Sink, TurnProgress,
    },
    lacks_abilities,
    loopback::{self, LoopbackDriver},
    memory::{MemoryRegion, RemoteRegion},
    passes_abilities, passes_methods,
    random::SeededRandom,
};

use super::first_arrival::FirstArrival;
pub(super) use crate::engine::commons::lone_rank::{CTX, failed_rank, op_info};
use crate::{
    buffer::{RecvBuf, SendBuf, word_of},
    clock::ClockTime,
    engine::{Engine, EngineSetup, SendStart},
    group::{RankGroup, WorldRank},
    ops::{OpInfo, OpOutcome, OpTicket},
    proto::path::PathTables,
    settings::Settings,
};

/// Faults of the network and a record of its use, shared by all its drivers.
#[derive(Debug, Default)]
pub(super) struct Net {
    /// Pairs of ranks between which nothing passes, from the first to the second.
    pub(super) cut: Mutex<BTreeSet<(u32, u32)>>,
    /// Pairs of ranks where the driver of the first has no room for the second, so that commands in flight never end.
    pub(super) full: Mutex<BTreeSet<(u32, u32)>>,
    pub(super) posted: AtomicU64,
    /// Number of keys that were requested.
    pub(super) exposed: AtomicU64,
    /// Percentage of messages that are lost.
    pub(super) loss: u64,
    /// True if the driver reports failures.
    pub(super) detects_death: bool,
    pub(super) reliable: bool,
    /// True while drivers do not know their peers yet.
    pub(super) lost: AtomicBool,
    /// Rank that gets no memory from its driver.
    pub(super) poor: Option<u32>,
    /// True if drivers make turns for single peers.
    pub(super) looks: bool,
    /// True if drivers connect to a peer when it is first used or announced.
    pub(super) connects: bool,
    /// The memory of ranks that the others map, by the keys to it; `None` if they map none.
    pub(super) node: Option<Mutex<Vec<(RemoteRegion, MemoryRegion)>>>,
    /// Connections that ranks have announced or used.
    pub(super) spoken: Mutex<Vec<Spoken>>,
}

/// Call of a driver that concerns its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    /// A rank has announced that it will send to these.
    Will(u32, Vec<u32>),
    /// A rank has sent to this one.
    Does(u32, u32),
}

impl Net {
    pub(super) fn cut(&self, from: u32, to: u32) {
        self.lock().insert((from, to));
    }

    /// Silences `to`, and lets the driver of `from` never complete commands to it.
    pub(super) fn clog(&self, from: u32, to: u32) {
        self.cut(to, from);
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.insert((from, to));
    }

    fn is_full(&self, from: u32, to: u32) -> bool {
        let full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.contains(&(from, to))
    }

    pub(super) fn heal(&self) {
        self.lock().clear();
    }

    fn note(&self, spoken: Spoken) {
        let mut all = self.spoken.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(spoken);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<(u32, u32)>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Lossy {
    me: u32,
    inner: LoopbackDriver,
    caps: Caps,
    random: SeededRandom,
    net: Arc<Net>,
    /// Peers that were given up, for which commands must complete although they would never end.
    gone: BTreeSet<u32>,
    kept: Vec<(u32, CommandToken)>,
    said: Vec<CommandToken>,
    /// What a look for an awaited message has found instead.
    first: FirstArrival,
}

impl Driver for Lossy {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        if let DriverCommand::Message { to, .. } = command {
            if self.gone.contains(&to.0) {
                return PostResult::Posted;
            }
            if self.net.lost.load(Ordering::Relaxed) || self.net.is_full(self.me, to.0) {
                return PostResult::Full(command);
            }
            self.net.posted.fetch_add(1, Ordering::Relaxed);
            self.net.note(Spoken::Does(self.me, to.0));
            let lost = self.random.within(0..100) < self.net.loss;
            if lost || self.net.lock().contains(&(self.me, to.0)) {
                return PostResult::Posted;
            }
        }
        if let DriverCommand::Count { to, .. } = command
            && self.net.is_full(self.me, to.0)
            && !self.gone.contains(&to.0)
        {
            return PostResult::Full(command);
        }
        if let DriverCommand::Put { to, token, .. }
        | DriverCommand::Get { to, token, .. }
        | DriverCommand::Atomic { to, token, .. } = command
            && self.net.is_full(self.me, to.0)
        {
            if self.gone.contains(&to.0) {
                self.said.push(token);
            } else {
                self.kept.push((to.0, token));
            }
            return PostResult::Posted;
        }
        self.inner.post(command)
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        for token in self.said.drain(..) {
            sink.failed(token, CommandFailure::PeerDown);
        }
        let events = self.first.hand_to(sink);
        let rest = self.inner.progress(budget - events, sink);
        TurnProgress {
            events: events + rest.events,
        }
    }

    fn give_up(&mut self, WorldRank(rank): WorldRank, how: Option<DownCause>) -> DownCause {
        self.gone.insert(rank);
        let over = self.kept.extract_if(.., |(to, _)| *to == rank);
        self.said.extend(over.map(|(_, token)| token));
        self.inner.give_up(WorldRank(rank), how)
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        if self.net.poor == Some(self.me) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.inner.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.net.exposed.fetch_add(1, Ordering::Relaxed);
        self.inner.expose(range)
    }

    passes_methods! { inner: arm, wait_on, expect }
}

impl DriverAbilities for Lossy {
    fn connect_ahead(&mut self) -> Option<&mut dyn ConnectAhead> {
        if self.net.connects { Some(self) } else { None }
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    fn node_memory(&mut self) -> Option<&mut dyn NodeMemory> {
        if self.net.node.is_some() {
            Some(self)
        } else {
            None
        }
    }

    passes_abilities! { inner: event_counters }

    lacks_abilities! {
        task_lists, tag_matching, named_slots, mapped_memory, peer_paths, guarded_memory,
    }

    fn peer_turns(&mut self) -> Option<&mut dyn PeerTurns> {
        if self.net.looks { Some(self) } else { None }
    }
}

/// For worlds of two ranks, whose only peer has sent everything that arrives.
impl PeerTurns for Lossy {
    fn progress_from(&mut self, _: WorldRank, sink: &mut dyn Sink) -> Option<u32> {
        Some(self.progress(1, sink).events)
    }

    fn take_awaited(&mut self, _: WorldRank, awaited: AwaitedMessage) -> AwaitedLook {
        self.first.take_awaited(&mut self.inner, awaited)
    }
}

impl NodeMemory for Lossy {
    fn shares_with(&self, _: WorldRank) -> bool {
        true
    }

    fn allocate_on_node(&mut self, len: usize) -> io::Result<MemoryRegion> {
        let region = self.inner.allocate(len)?;
        let key = self.inner.expose(word_of(&region, 0));
        let node = self.net.node.as_ref().expect("it has this ability");
        let mut node = node.lock().unwrap_or_else(PoisonError::into_inner);
        node.push((key.expect("its own memory"), region.clone()));
        Ok(region)
    }

    fn expose_on_node(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.inner.expose(range)
    }

    fn reach_on_node(&mut self, of: WorldRank, key: RemoteRegion) -> Option<(MemoryRegion, usize)> {
        let node = self.net.node.as_ref()?;
        let node = node.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |whole: &RemoteRegion| (whole.owner, whole.id) == (of.0, key.id);
        let (whole, region) = node.iter().find(|(whole, _)| is_it(whole))?;
        let at = usize::try_from(key.base - whole.base).ok()?;
        Some((region.clone(), at))
    }
}

impl ConnectAhead for Lossy {
    fn connect_many(&mut self, peers: &[WorldRank]) {
        let peers = peers.iter().map(|peer| peer.0).collect();
        self.net.note(Spoken::Will(self.me, peers));
    }
}

impl FailureWatch for Lossy {
    fn knows_peers(&mut self) -> bool {
        !self.net.lost.load(Ordering::Relaxed)
    }

    fn answers(&mut self, _peer: WorldRank) -> u64 {
        0
    }

    fn evidence(&mut self, peer: WorldRank) -> DownEvidence {
        DownEvidence::Reported(format!("no way leads to rank {peer}"))
    }
}

pub(super) struct World {
    pub(super) net: Arc<Net>,
    pub(super) engines: Vec<Engine>,
    pub(super) now: u64,
    /// Ranks that make no turns.
    pub(super) paused: BTreeSet<u32>,
}

/// Time between two turns, in nanoseconds.
pub(super) const TICK: u64 = 10_000;

/// Silence after which a peer counts as failed, in nanoseconds.
pub(super) const DETECT: u64 = 1_000_000;

impl World {
    pub(super) fn new(ranks: u32, net: Net) -> Self {
        Self::with(ranks, net, |_| {})
    }

    pub(super) fn with(ranks: u32, net: Net, change: impl Fn(&mut EngineSetup)) -> Self {
        let net = Arc::new(net);
        let engine = |(inner, me): (LoopbackDriver, u32)| {
            let caps = Caps {
                detects_death: net.detects_death,
                reliable: net.reliable,
                ordered: net.reliable,
                ..inner.caps().clone()
            };
            let mut setup = EngineSetup {
                rank: WorldRank(me),
                size: ranks,
                paths: PathTables::new(&caps, &Settings::new()),
                store: Settings::new().store(),
                may_split_long: false,
                seed: u64::from(me),
                detect: DETECT,
            };
            change(&mut setup);
            let driver = Lossy {
                me,
                inner,
                caps,
                random: SeededRandom::new(u64::from(me)),
                net: Arc::clone(&net),
                gone: BTreeSet::new(),
                kept: Vec::new(),
                said: Vec::new(),
                first: FirstArrival::default(),
            };
            let mut engine = Engine::new(Box::new(driver), setup);
            engine.join(CTX, &RankGroup::First(ranks));
            engine
        };
        let engines = loopback::world(ranks).into_iter().zip(0..).map(engine);
        Self {
            engines: engines.collect(),
            net,
            now: 0,
            paused: BTreeSet::new(),
        }
    }

    /// Lets every rank that is not paused make a turn, then advances the time.
    pub(super) fn step(&mut self) {
        for (engine, rank) in self.engines.iter_mut().zip(0..) {
            if !self.paused.contains(&rank) {
                engine.turn(ClockTime::from_nanos(self.now));
                do_jobs(engine);
            }
        }
        self.now += TICK;
    }

    pub(super) fn run_for(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while self.now < end {
            self.step();
        }
    }

    /// Steps until `so` returns true. Returns the time that this took, in nanoseconds.
    pub(super) fn run_until(&mut self, so: impl Fn(&mut [Engine]) -> bool) -> u64 {
        let start = self.now;
        while !so(&mut self.engines) {
            self.step();
            assert!(self.now - start < 1 << 34, "it will never be so");
        }
        self.now - start
    }

    pub(super) fn send<B: SendBuf>(
        &mut self,
        from: u32,
        to: u32,
        tag: u32,
        buf: B,
    ) -> SendStart<B> {
        self.engines[from as usize].send(op_info(Some(to), Some(tag)), buf)
    }

    /// Starts a send that completes when it is received.
    pub(super) fn send_sync<B: SendBuf>(
        &mut self,
        from: u32,
        to: u32,
        tag: u32,
        buf: B,
    ) -> OpTicket<B> {
        let info = OpInfo {
            synchronous: true,
            ..op_info(Some(to), Some(tag))
        };
        match self.engines[from as usize].send(info, buf) {
            SendStart::InFlight(ticket) => ticket,
            _ => panic!("a synchronous send is never done at once"),
        }
    }

    pub(super) fn recv(
        &mut self,
        on: u32,
        from: Option<u32>,
        tag: Option<u32>,
    ) -> OpTicket<Vec<u8>> {
        let engine = &mut self.engines[on as usize];
        let ticket = engine
            .core
            .p2p
            .common
            .ops
            .hold_growing::<u8>(op_info(from, tag));
        engine.post(ticket.op);
        ticket
    }

    pub(super) fn is_done<B>(&mut self, on: u32, ticket: &OpTicket<B>) -> bool {
        self.engines[on as usize].core.p2p.common.is_done(ticket.op)
    }

    /// Returns the outcome of a send, and its buffer.
    pub(super) fn sent<B: SendBuf>(&mut self, on: u32, ticket: &OpTicket<B>) -> (OpOutcome, B) {
        let landed = self.engines[on as usize].core.p2p.common.take_send(ticket);
        landed.expect("it is done")
    }

    /// Returns the outcome of a receive, and its buffer.
    pub(super) fn received<B: RecvBuf>(&mut self, on: u32, ticket: &OpTicket<B>) -> (OpOutcome, B) {
        let landed = self.engines[on as usize].core.p2p.common.take_recv(ticket);
        landed.expect("it is done")
    }

    /// Makes turns until the receive is complete.
    pub(super) fn await_recv<B: RecvBuf>(
        &mut self,
        on: u32,
        ticket: &OpTicket<B>,
    ) -> (OpOutcome, B) {
        self.run_until(|engines| engines[on as usize].core.p2p.common.is_done(ticket.op));
        self.received(on, ticket)
    }
}

/// Runs the jobs of programs.
fn do_jobs(engine: &mut Engine) {
    while !engine.core.p2p.common.jobs.is_empty() {
        for mut job in std::mem::take(&mut engine.core.p2p.common.jobs) {
            job.run();
            engine.complete_job(&mut job);
        }
    }
}
