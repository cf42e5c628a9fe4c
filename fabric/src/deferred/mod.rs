//! A network's driver that can be used before the endpoints of the other ranks are known.
//!
//! The other ranks' addresses may take long to arrive, because each rank must have started first. A thread waits for them and
//! connects the driver, while the rank goes on. Until then messages find no room, and calls that need memory for peers wait,
//! because such memory is of no use earlier. If the addresses never arrive, the other ranks are reported as failed.

#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    driver::{
        AbilitySummary, ArmResult, Caps, CommandToken, ConnectAhead, DownCause, DownEvidence,
        Driver, DriverAbilities, DriverCommand, EventCounters, FailureWatch, GuardedMemory,
        ListLimits, LocalRange, MappedMemory, NamedSlots, NodeMemory, NullDriver, PeerPaths,
        PeerTurns, PostResult, PreparedEndpoint, Sink, TagBuffer, TagMatching, TaskLists,
        TurnProgress, WakeSource, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    offload::TriggeredTask,
    shm::ProcessMonitor,
    tags::MatchTag,
};

/// A driver that is connected, or will be.
#[derive(Debug)]
pub struct DeferredDriver {
    caps: Caps,
    waits: Vec<WakeSource>,
    abilities: AbilitySummary,
    rank: WorldRank,
    ranks: u32,
    way: DeferredState,
    /// Processes of this node's ranks, if the driver does not watch them itself. Dropped after the driver.
    processes: Option<ProcessMonitor>,
    turns: u64,
}

#[derive(Debug)]
enum DeferredState {
    Joining(PendingJoin),
    /// With the driver, or with a [`NullDriver`] if it could not be connected.
    Joined(Box<dyn Driver>),
}

/// State until a thread has made the driver, or knows why there is none.
#[derive(Debug)]
struct PendingJoin {
    /// Thread that opens the driver; `None` once this rank has waited for its end.
    thread: Option<JoinHandle<io::Result<Box<dyn Driver>>>>,
    over: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    /// Peers to connect to when the driver is there.
    wanted: Vec<WorldRank>,
    /// Peers for whose messages the caller waits.
    awaited: Vec<WorldRank>,
    /// Peers to give up when the driver is there.
    given_up: Vec<(WorldRank, Option<DownCause>)>,
}

/// Signals the descriptor when the thread ends, even by a panic.
struct JoinSignal {
    over: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
}

impl Drop for JoinSignal {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // The eventfd has room for this.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl DeferredDriver {
    /// Opens the driver of `rank`, one of `ranks`. `join` gets the addresses of all ranks and connects the driver.
    ///
    /// `join` is called in its own thread. It may wait for other ranks, but not forever, because this driver cannot be closed
    /// before it returns.
    ///
    /// # Errors
    /// The system's error about a thread or a descriptor.
    pub fn open(
        prepared: Box<dyn PreparedEndpoint>,
        (rank, ranks): (WorldRank, u32),
        join: impl FnOnce(Box<dyn PreparedEndpoint>) -> io::Result<Box<dyn Driver>> + Send + 'static,
    ) -> io::Result<Self> {
        let (caps, abilities) = (prepared.caps().clone(), prepared.abilities());
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (over, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(bell));
        let mut waits = prepared.wait_on();
        waits.push(WakeSource::Fd(Arc::clone(&bell)));
        let ring = JoinSignal {
            over: Arc::clone(&over),
            bell: Arc::clone(&bell),
        };
        let thread = thread::Builder::new()
            .name("ripstop-join".to_owned())
            .spawn(move || {
                let _ring = ring;
                join(prepared)
            })?;
        Ok(Self {
            caps,
            waits,
            abilities,
            rank,
            ranks,
            processes: None,
            turns: 0,
            way: DeferredState::Joining(PendingJoin {
                thread: Some(thread),
                over,
                bell,
                wanted: Vec::new(),
                awaited: Vec::new(),
                given_up: Vec::new(),
            }),
        })
    }

    /// Adds notifications of ended processes on this node, which the network may not notice.
    #[must_use]
    pub fn with_processes(mut self, processes: ProcessMonitor) -> Self {
        self.waits.push(processes.wait_on());
        self.processes = Some(processes);
        self
    }

    /// Waits for the driver and returns it.
    fn joined(&mut self) -> &mut dyn Driver {
        if let DeferredState::Joining(joining) = &mut self.way {
            let driver = joining.end();
            self.way = DeferredState::Joined(driver.unwrap_or_else(|why| self.without_peers(&why)));
            // All ranks have arrived, because this one now knows their addresses.
            self.processes.iter_mut().for_each(ProcessMonitor::watch);
        }
        match &mut self.way {
            DeferredState::Joined(driver) => &mut **driver,
            DeferredState::Joining(_) => unreachable!("ended above"),
        }
    }

    fn joined_lists(&mut self) -> &mut dyn TaskLists {
        let lists = self.joined().task_lists();
        lists.expect("a driver has the abilities that it promised")
    }

    fn without_peers(&self, why: &io::Error) -> Box<dyn Driver> {
        let all = (0..self.ranks).map(WorldRank);
        let peers = all.filter(|peer| *peer != self.rank);
        let null = NullDriver::new(self.caps.clone(), self.abilities, why);
        Box::new(null.reporting(peers))
    }

    /// Returns the driver if it is connected.
    fn there(&mut self) -> Option<&mut dyn Driver> {
        match &mut self.way {
            DeferredState::Joined(driver) => Some(&mut **driver),
            DeferredState::Joining(_) => None,
        }
    }
}

impl PendingJoin {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits for the thread. Called once.
    fn end(&mut self) -> io::Result<Box<dyn Driver>> {
        let thread = self.thread.take();
        let ended = thread.map(JoinHandle::join);
        // The descriptor was signaled, and will not be signaled again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let panicked = || {
            Err(io::Error::other(
                "the thread that was to join the job panicked",
            ))
        };
        let mut driver = ended.and_then(Result::ok).unwrap_or_else(panicked)?;
        if !self.wanted.is_empty()
            && let Some(connections) = driver.connect_ahead()
        {
            connections.connect_many(&self.wanted);
        }
        for (peer, how) in self.given_up.drain(..) {
            let _as_we_said = driver.give_up(peer, how);
        }
        if !self.awaited.is_empty() {
            driver.expect(&mut || std::mem::take(&mut self.awaited));
        }
        Ok(driver)
    }
}

/// Reports ranks whose processes have ended. If the driver has reported one before, or does now, it gives the same answer.
#[cold]
fn give_up_all(driver: &mut dyn Driver, dead: Vec<WorldRank>, sink: &mut dyn Sink) {
    for peer in dead {
        let how = driver.give_up(peer, Some(DownCause::Failed));
        sink.peer_down(peer, how);
    }
}

/// Joins before closing: the other ranks wait for this one's address, and the driver notifies them of its end.
impl Drop for DeferredDriver {
    fn drop(&mut self) {
        self.joined();
    }
}

impl Driver for DeferredDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline]
    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        match &mut self.way {
            DeferredState::Joined(driver) => driver.post(command),
            DeferredState::Joining(_) if matches!(command, DriverCommand::Message { .. }) => {
                PostResult::Full(command)
            }
            // The memory or counters that it concerns were waited for.
            DeferredState::Joining(_) => self.joined().post(command),
        }
    }

    #[inline]
    fn post_message(&mut self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        match &mut self.way {
            DeferredState::Joined(driver) => driver.post_message(to, header, body),
            DeferredState::Joining(_) => false,
        }
    }

    #[inline]
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        match &mut self.way {
            DeferredState::Joined(driver) => match &mut self.processes {
                None => driver.progress(budget, sink),
                Some(processes) => {
                    self.turns += 1;
                    let known = processes.has_newly_ended();
                    let mut done = driver.progress(budget, sink);
                    processes.turn();
                    // Report deaths only after everything that arrived before them was handed out. Only a turn without events
                    // shows that, because a driver may leave sockets or queues for its next turn.
                    while known && done.events < budget {
                        let more = driver.progress(budget - done.events, sink);
                        done.events += more.events;
                        if more.events == 0 {
                            give_up_all(&mut **driver, processes.take_newly_ended(), sink);
                            break;
                        }
                    }
                    done
                }
            },
            DeferredState::Joining(joining) if !joining.is_over() => TurnProgress { events: 0 },
            // Messages find room from now on.
            DeferredState::Joining(_) => {
                self.joined();
                TurnProgress { events: 1 }
            }
        }
    }

    fn arm(&mut self) -> ArmResult {
        match &mut self.way {
            DeferredState::Joined(_)
                if self.processes.as_mut().is_some_and(ProcessMonitor::arm) =>
            {
                ArmResult::Busy
            }
            DeferredState::Joined(driver) => driver.arm(),
            DeferredState::Joining(joining) if joining.is_over() => ArmResult::Busy,
            DeferredState::Joining(_) => ArmResult::Ready,
        }
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        self.waits.clone()
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.joined().allocate(len)
    }

    /// Returns `None` before the driver has joined, because there is no memory from [`allocate`](Self::allocate) yet, and no peer
    /// to send a key to.
    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.there()?.expose(range)
    }

    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<WorldRank>) {
        match &mut self.way {
            DeferredState::Joined(driver) => driver.expect(awaited),
            // The caller does not repeat what it has said before the driver was there.
            DeferredState::Joining(joining) => joining.awaited = awaited(),
        }
    }

    fn give_up(&mut self, peer: WorldRank, how: Option<DownCause>) -> DownCause {
        match &mut self.way {
            DeferredState::Joined(driver) => driver.give_up(peer, how),
            DeferredState::Joining(joining) => {
                joining.given_up.push((peer, how));
                how.unwrap_or(DownCause::Failed)
            }
        }
    }
}

/// Hands out the abilities of the connected driver. Before it is connected, this driver stands for those that were promised.
impl DriverAbilities for DeferredDriver {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        match self.way {
            DeferredState::Joining(_) if self.abilities.counters => Some(self),
            _ => self.there()?.event_counters(),
        }
    }

    fn task_lists(&mut self) -> Option<&mut dyn TaskLists> {
        match self.way {
            DeferredState::Joining(_) if self.abilities.lists.is_some() => Some(self),
            _ => self.there()?.task_lists(),
        }
    }

    fn tag_matching(&mut self) -> Option<&mut dyn TagMatching> {
        match self.way {
            DeferredState::Joining(_) if self.abilities.tags.is_some() => Some(self),
            _ => self.there()?.tag_matching(),
        }
    }

    fn connect_ahead(&mut self) -> Option<&mut dyn ConnectAhead> {
        match self.way {
            DeferredState::Joining(_) if self.abilities.connects => Some(self),
            _ => self.there()?.connect_ahead(),
        }
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    /// Before the driver is connected there are no peers whose memory could be mapped.
    fn mapped_memory(&mut self) -> Option<&mut dyn MappedMemory> {
        self.there()?.mapped_memory()
    }

    /// Before the driver is connected there are no peers whose memory could be mapped.
    fn node_memory(&mut self) -> Option<&mut dyn NodeMemory> {
        self.there()?.node_memory()
    }

    /// Before the driver is connected there are no peers to write to slots.
    fn named_slots(&mut self) -> Option<&mut dyn NamedSlots> {
        self.there()?.named_slots()
    }

    /// Before the driver is connected there are no peers to look at.
    fn peer_turns(&mut self) -> Option<&mut dyn PeerTurns> {
        self.there()?.peer_turns()
    }

    /// Before the driver is connected, all peers are alike.
    fn peer_paths(&mut self) -> Option<&mut dyn PeerPaths> {
        self.there()?.peer_paths()
    }

    /// Before the driver is connected there is no memory to guard.
    fn guarded_memory(&mut self) -> Option<&mut dyn GuardedMemory> {
        self.there()?.guarded_memory()
    }
}

impl EventCounters for DeferredDriver {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        let driver = self.joined();
        match driver.event_counters() {
            Some(counters) => counters.allocate_counters(len),
            None => driver.allocate(len),
        }
    }
}

impl TaskLists for DeferredDriver {
    fn list_limits(&self) -> ListLimits {
        self.abilities.lists.unwrap_or_default()
    }

    fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool {
        self.joined_lists().post_list(tasks, token)
    }

    fn cancel_lists(&mut self, token: CommandToken) {
        self.joined_lists().cancel_lists(token);
    }

    fn forget_lists(&mut self, token: CommandToken) -> bool {
        self.joined_lists().forget_lists(token)
    }

    fn give_name(&mut self, name: u64, region: &MemoryRegion) {
        self.joined_lists().give_name(name, region);
    }

    fn take_back_name(&mut self, name: u64) {
        self.joined_lists().take_back_name(name);
    }
}

/// Before the driver is connected: messages find no room, and no memory is lent.
impl TagMatching for DeferredDriver {
    fn shortest_body(&mut self) -> usize {
        self.abilities.tags.unwrap_or(usize::MAX)
    }

    fn post_tagged<'a>(&mut self, _tag: MatchTag, message: DriverCommand<'a>) -> PostResult<'a> {
        self.post(message)
    }

    fn offer(&mut self, _from: WorldRank, _offer: TagBuffer) -> bool {
        false
    }

    fn take_back(&mut self, _token: CommandToken) -> bool {
        true
    }
}

impl ConnectAhead for DeferredDriver {
    /// Keeps the peers until the driver is connected.
    fn connect_many(&mut self, peers: &[WorldRank]) {
        if let DeferredState::Joining(joining) = &mut self.way {
            joining.wanted.extend(peers);
        }
    }
}

impl FailureWatch for DeferredDriver {
    fn knows_peers(&mut self) -> bool {
        matches!(self.way, DeferredState::Joined(_))
    }

    fn answers(&mut self, peer: WorldRank) -> u64 {
        let driver = self.there().and_then(|driver| driver.failure_watch());
        let answers = driver.map_or(0, |watch| watch.answers(peer));
        match &self.processes {
            // A process that stands still cannot acknowledge anything, but is known to be alive.
            Some(processes) if processes.stands_still(peer) => answers.wrapping_add(self.turns),
            _ => answers,
        }
    }

    fn evidence(&mut self, peer: WorldRank) -> DownEvidence {
        let processes = self.processes.as_ref();
        if processes.is_some_and(|processes| processes.has_ended(peer)) {
            return DownEvidence::Ended;
        }
        let driver = self.there();
        driver.map_or(DownEvidence::Unreachable, |driver| driver.evidence(peer))
    }
}
