//! The ranks of a simulation, and their turns.

use std::{
    any::Any,
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ripstop_fabric::{
    counters::DriverStats,
    driver::Driver,
    random::SeededRandom,
    sim::{Cluster, ClusterConfig, ClusterStep, ConfigError},
};

use super::{Memory, RankHost, Report, SimError, SimManager, SimWait, Stuck, stuck::WAITS_MAX};
use crate::{
    clock::Clock,
    comm::Comm,
    engine::{Engine, EngineSetup},
    executor,
    group::WorldRank,
    proto::path::PathTables,
    reactor::Notifier,
    settings::Settings,
    shared::{Choices, RankPlacement, RuntimeParts, RuntimeShared, SleepMode},
    view::{
        RankPhase,
        layout::RankView,
        report::{ObservedJob, ObservedRank, ProcessState, StuckReport},
    },
};

/// All ranks of one simulation.
pub(super) struct RankTasks<T> {
    size: u32,
    ranks_per_node: u32,
    seed: u64,
    cluster: Cluster,
    clock: Clock,
    settings: Arc<Settings>,
    limit: Duration,
    /// The ranks; `None` for a rank that has finished.
    ranks: Vec<Option<RankTask<T>>>,
    results: Vec<Option<T>>,
    /// Number of unfinished ranks.
    left: u32,
    memory: Memory,
    leaked: u64,
    /// Time when a program last did something.
    polled: Duration,
    /// True if a program did something, or a collective or a rank ended, since ranks last asked whether they wait in
    /// vain.
    moved: bool,
}

struct RankTask<T> {
    shared: Arc<RuntimeShared>,
    /// Main function; `None` once it has returned and only its sends are left.
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    /// Number of consecutive turns that ended because the program spins.
    spins: u32,
}

/// Data that all ranks share.
struct RankCommon {
    paths: PathTables,
    choices: Arc<Choices>,
    /// Counters shared by all ranks, because those of a single simulated rank are never read.
    counters: Arc<DriverStats>,
    ring: Arc<dyn Fn(u32) + Send + Sync>,
    /// Neighbors on the node whose ranks are being made. Adapters run task lists, but processors can access the memory
    /// of these ranks.
    neighbors: Arc<[WorldRank]>,
}

impl<T: 'static> RankTasks<T> {
    pub(super) fn new(
        config: ClusterConfig,
        settings: Settings,
        limit: Duration,
    ) -> Result<Self, ConfigError> {
        let (size, ranks_per_node) = (config.ranks, config.model.node.ranks);
        let seed = config.seed;
        let cluster = Cluster::new(config)?;
        let clock = Clock::of(cluster.clock());
        Ok(Self {
            size,
            ranks_per_node,
            seed,
            cluster,
            clock,
            settings: Arc::new(settings),
            limit,
            ranks: Vec::new(),
            results: Vec::new(),
            left: 0,
            memory: Memory::default(),
            leaked: 0,
            polled: Duration::ZERO,
            moved: false,
        })
    }

    /// Creates the ranks, each with a first turn scheduled. If there is a manager, the ranks first meet there.
    pub(super) fn start<Fut>(&mut self, rank: impl Fn(Comm) -> Fut, manager: Option<&SimManager>)
    where
        Fut: Future<Output = T> + 'static,
    {
        self.left = self.size;
        let mut common = None;
        for number in 0..self.size {
            let shared = self.runtime(number, &mut common);
            let world = Comm::world(Arc::clone(&shared));
            let program = rank(world.clone());
            let future: Pin<Box<dyn Future<Output = T>>> = match manager.cloned() {
                None => Box::pin(program),
                Some(manager) => Box::pin(async move {
                    let _member = manager.join(&world);
                    manager.start(&world).await;
                    program.await
                }),
            };
            self.ranks.push(Some(RankTask::new(shared, future)));
            self.results.push(None);
            self.cluster.wake(number);
        }
    }

    pub(super) fn run(mut self) -> Result<Report<T>, SimError> {
        let ended = self.go_to_the_end();
        self.shut_the_others();
        ended?;
        Ok(Report {
            time: self.now(),
            results: std::mem::take(&mut self.results),
            digest: self.cluster.digest(),
            stats: self.cluster.stats(),
            memory: self.memory,
            leaked: self.leaked,
        })
    }

    fn go_to_the_end(&mut self) -> Result<(), SimError> {
        while self.left > 0 {
            match self.cluster.advance() {
                ClusterStep::Turn { rank, computing } => self.turn(rank, computing)?,
                ClusterStep::Quiet => {
                    let buried = self.bury_killed();
                    if self.left > 0
                        && !buried
                        && !self.ask_in_vain()
                        && !self.report_returned()
                        && !self.end_own_waits()
                    {
                        return Err(SimError::Deadlock(self.stuck()));
                    }
                }
            }
            if self.is_stuck() {
                return Err(SimError::Deadlock(self.stuck()));
            }
            if self.now() > self.limit {
                let (limit, stuck) = (self.limit, self.stuck());
                return Err(SimError::TooLong { limit, stuck });
            }
        }
        Ok(())
    }

    /// Shuts down the unfinished ranks after an error. Their operations hold tasks and buffers, and these hold the
    /// runtime.
    fn shut_the_others(&mut self) {
        for rank in self.ranks.iter_mut().filter_map(Option::take) {
            rank.shared.with(Engine::release_driver);
        }
    }

    /// Returns true if the job is stuck although events continue. With failure detection, pings are exchanged forever,
    /// so a job is stuck when no program has done anything for a long time and nothing else is in flight.
    fn is_stuck(&mut self) -> bool {
        let now = self.now();
        if now < self.polled + self.settings.detect * STUCK_INTERVALS {
            return false;
        }
        self.polled = now; // check again only after the same time
        if self.bury_killed() || self.left == 0 {
            return false;
        }
        let goes_on = |rank: &RankTask<T>| {
            rank.is_busy(false) || !rank.shared.with(|engine| engine.core.is_passive())
        };
        !self.ranks.iter().flatten().any(goes_on)
            && !self.report_returned()
            && !self.end_own_waits()
    }

    fn turn(&mut self, number: u32, computing: bool) -> Result<(), SimError> {
        let Some(rank) = &mut self.ranks[number as usize] else {
            return Ok(()); // it had finished before this turn
        };
        let turned = panic::catch_unwind(AssertUnwindSafe(|| rank.turn(computing)));
        if !matches!(turned, Ok(RankTurn::Nothing)) {
            self.polled = Duration::from_nanos(self.clock.now().nanos());
            self.moved = true;
        }
        let mut deadline = rank.shared.end_host_turn();
        if let Ok(RankTurn::Spins(pause)) = turned {
            let again = (self.clock.now() + pause).nanos();
            deadline = Some(deadline.map_or(again, |deadline| deadline.min(again)));
        }
        self.cluster.end_turn(number, deadline);
        match turned {
            Ok(RankTurn::Nothing | RankTurn::Polled | RankTurn::Spins(_)) => {}
            Ok(RankTurn::Returned(result)) => {
                self.results[number as usize] = Some(result);
                self.cluster.wake(number); // to check whether it has finished
            }
            Ok(RankTurn::Through) => self.end(number),
            Err(panic) => {
                return Err(SimError::Panicked {
                    rank: number,
                    time: self.now(),
                    message: message_of(&*panic),
                });
            }
        }
        Ok(())
    }

    /// Makes ranks ask the ranks that their collectives wait for whether they wait in vain. Returns true if there was
    /// anything to ask.
    ///
    /// A rank that had no answer may have one later, because it has dropped the communicator or leaves. So as long as
    /// anything happened since the last time, all ranks ask again. An answer changes nothing except for what it ends,
    /// so this terminates.
    fn ask_in_vain(&mut self) -> bool {
        let again = std::mem::take(&mut self.moved);
        let ask = |asked, rank: &RankTask<T>| {
            rank.shared.with(|engine| {
                let asks = engine.core.ask_in_vain(again);
                engine.flush();
                asks
            }) || asked
        };
        self.ranks.iter().flatten().fold(false, ask)
    }

    /// Notifies ranks of the end of others for which they wait. Only ranks in contact have been notified so far. Returns true
    /// if there were any.
    fn report_returned(&mut self) -> bool {
        let mut is_any = false;
        for (number, rank) in (0..).zip(&self.ranks) {
            let Some(rank) = rank else { continue };
            let waits = rank.shared.with(|engine| engine.core.pending_ops());
            let peers = waits.iter().filter_map(|wait| wait.peer);
            for peer in peers {
                is_any |= self.cluster.report_close(peer.0, number);
            }
        }
        self.moved |= is_any;
        is_any
    }

    /// Fails the operations of ranks that wait for themselves, because nothing else can happen any more. Returns true
    /// if there were any.
    fn end_own_waits(&mut self) -> bool {
        let end = |ended, rank: &RankTask<T>| rank.shared.with(Engine::fail_self_deadlock) || ended;
        let ended = self.ranks.iter().flatten().fold(false, end);
        self.moved |= ended;
        ended
    }

    /// Handles the end of a rank.
    fn end(&mut self, number: u32) {
        let Some(rank) = self.ranks[number as usize].take() else {
            return;
        };
        let state = rank.shared.with(Engine::state);
        let driver = self.cluster.rank_stats(number).state_bytes;
        let runtime = size_of::<RuntimeShared>() - size_of::<Engine>();
        self.memory.bytes += (state.bytes + runtime) as u64 + driver;
        self.memory.peers += state.peers as u64;
        self.memory.peer_bytes += state.peer_bytes as u64;
        self.leaked += state.operations as u64;
        rank.shared.with(Engine::release_driver);
        self.left -= 1;
    }

    /// Drops everything of killed ranks. Returns true if there were any, because their end may wake others.
    fn bury_killed(&mut self) -> bool {
        let before = self.left;
        for (number, rank) in (0..).zip(&mut self.ranks) {
            if !self.cluster.is_alive(number)
                && let Some(rank) = rank.take()
            {
                rank.shared.with(Engine::release_driver);
                self.left -= 1;
            }
        }
        let buried = self.left < before;
        if buried {
            self.moved = true;
            self.polled = self.now(); // gives the woken ranks their time, too
        }
        buried
    }

    fn runtime(&self, rank: u32, common: &mut Option<RankCommon>) -> Arc<RuntimeShared> {
        let driver: Box<dyn Driver> = Box::new(self.cluster.driver(rank));
        let RankCommon {
            paths,
            choices,
            counters,
            ring,
            neighbors,
        } = common.get_or_insert_with(|| {
            let paths = PathTables::new(driver.caps(), &self.settings);
            let inside = self.cluster.cost_inside();
            let choices = Choices::simulated(paths.to_string(), driver.caps(), inside);
            let cluster = self.cluster.clone();
            RankCommon {
                paths,
                choices: Arc::new(choices),
                counters: Arc::default(),
                ring: Arc::new(move |rank| cluster.wake(rank)),
                neighbors: Arc::default(),
            }
        });
        let size = self.size;
        let node = rank - rank % self.ranks_per_node;
        if rank == node && self.ranks_per_node > 1 {
            let end = size.min(node.saturating_add(self.ranks_per_node));
            *neighbors = (node..end).map(WorldRank).collect();
        }
        let setup = EngineSetup {
            rank: WorldRank(rank),
            size,
            paths: paths.clone(),
            store: self.settings.store(),
            may_split_long: false,
            detect: self.settings.detect_ns(),
            seed: SeededRandom::new(self.seed ^ u64::from(rank)).bits(),
        };
        let host = RankHost::new(self.cluster.clone(), rank);
        Arc::new(RuntimeShared::new(RuntimeParts {
            engine: Engine::new(driver, setup),
            sleeps: SleepMode::Never(host, Notifier::for_host(Arc::clone(ring), rank)),
            clock: self.clock.clone(),
            place: RankPlacement {
                rank: WorldRank(rank),
                size,
                node: WorldRank(node),
                board: None,
                crowded: false,
                processors: u16::MAX,
                per_node: Some(self.ranks_per_node),
                neighbors: Arc::clone(neighbors),
            },
            settings: Arc::clone(&self.settings),
            counters: Arc::clone(counters),
            choices: Arc::clone(choices),
            link: None,
            view: None,
            reporter: None,
        }))
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.now().nanos())
    }

    fn stuck(&self) -> Stuck {
        let mut waits = Vec::new();
        for (number, rank) in (0..).zip(&self.ranks) {
            let Some(rank) = rank else { continue };
            let waiting = rank.shared.with(|engine| engine.core.pending_ops());
            if waiting.is_empty() {
                waits.push(SimWait::elsewhere(number));
            }
            waits.extend(waiting.iter().map(|waiting| SimWait::of(number, waiting)));
            if waits.len() >= WAITS_MAX {
                break;
            }
        }
        waits.truncate(WAITS_MAX);
        Stuck {
            time: self.now(),
            ranks: self.left,
            waits,
            report: Box::new(StuckReport::of(&self.observed(), false)),
        }
    }

    /// Returns what the ranks show. Nothing happens any more, so a second look would show the same.
    fn observed(&self) -> ObservedJob {
        let ranks = (0..).zip(self.ranks.iter().zip(&self.results));
        let observed = |(number, (rank, result)): (u32, (&Option<RankTask<T>>, &Option<T>))| {
            let view = match rank {
                Some(rank) => rank.shared.simulated_view(),
                None => RankView::resting(number, self.size, RankPhase::Left),
            };
            let process = match (rank, result) {
                (None, None) => ProcessState::Ended {
                    how: "was killed".to_owned(),
                    ago: None,
                },
                _ => ProcessState::Alive {
                    percent: 0,
                    sleeps_in: String::new(),
                    is_running: false,
                },
            };
            ObservedRank {
                rank: number,
                node: String::new(),
                pid: 0,
                process,
                before: Some(view.clone()),
                view: Ok(view),
            }
        };
        ObservedJob {
            name: "a simulation".to_owned(),
            size: self.size,
            now: 0,
            between: u64::MAX,
            knows_all: true,
            ranks: ranks.map(observed).collect(),
        }
    }
}

/// Number of detection intervals without any action of a program. Failed peers are known after two.
const STUCK_INTERVALS: u32 = 20;

/// Maximum number of polls in one turn without an event.
const POLLS_MAX: u32 = 256;

/// Virtual time that a spinning program takes for [`POLLS_MAX`] polls. It doubles until it is about 10 µs.
const SPIN: Duration = Duration::from_nanos(100);
const SPIN_DOUBLINGS: u32 = 7;

/// Result of a turn.
enum RankTurn<T> {
    /// The program had nothing to do.
    Nothing,
    Polled,
    /// The program wakes itself repeatedly: time must advance, or this would never end.
    Spins(Duration),
    Returned(T),
    /// The program has returned, and its sends are complete too.
    Through,
}

impl<T> RankTask<T> {
    fn new(shared: Arc<RuntimeShared>, future: Pin<Box<dyn Future<Output = T>>>) -> Self {
        Self {
            shared,
            future: Some(future),
            spins: 0,
        }
    }

    /// Handles events and polls what they woke, until nothing happens any more.
    fn turn(&mut self, computing: bool) -> RankTurn<T> {
        self.shared.begin_host_turn();
        if !computing && let Some(host) = &self.shared.host {
            host.end_compute();
        }
        let (mut result, mut polls, mut idle_polls) = (None, 0, 0);
        loop {
            let events = self.shared.turn().unwrap_or_default();
            let polled = !self.is_busy(computing) && self.poll(&mut result);
            if events == 0 && !polled {
                self.spins = 0;
                break;
            }
            polls += u32::from(polled);
            idle_polls = if events > 0 { 0 } else { idle_polls + 1 };
            if idle_polls == POLLS_MAX {
                self.spins += 1;
                return RankTurn::Spins(SPIN * (1 << self.spins.min(SPIN_DOUBLINGS)));
            }
        }
        match result {
            Some(result) => RankTurn::Returned(result),
            None if self.future.is_none() && self.shared.with(Engine::is_closed) => {
                RankTurn::Through
            }
            None if polls > 0 => RankTurn::Polled,
            None => RankTurn::Nothing,
        }
    }

    /// Returns true if the application computes: since before this turn, or because a future that was polled in this
    /// turn computes.
    fn is_busy(&self, computing: bool) -> bool {
        computing
            || self
                .shared
                .host
                .as_ref()
                .is_some_and(|host| host.is_computing())
    }

    /// Polls the main function if it was woken, otherwise one task. Returns true if there was something to poll.
    fn poll(&mut self, result: &mut Option<T>) -> bool {
        let woken = self
            .shared
            .host
            .as_ref()
            .is_some_and(RankHost::take_wake_up);
        if let Some(future) = self.future.as_mut().filter(|_| woken) {
            let waker = Waker::from(Arc::clone(&self.shared));
            executor::refill();
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(value) = polled {
                self.future = None;
                self.shared.with(Engine::begin_close);
                *result = Some(value);
            }
            return true;
        }
        match self.shared.next_task() {
            Some(task) => {
                executor::refill();
                task.run();
                true
            }
            None => false,
        }
    }
}

impl<T> Drop for RankTask<T> {
    fn drop(&mut self) {
        self.future = None;
        self.shared.end_tasks();
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked with something that is not text".to_owned())
}
