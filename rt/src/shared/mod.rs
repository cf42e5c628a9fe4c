//! State that all handles of one runtime share: the engine, the seat, and the run queue of tasks.
//!
//! The **engine** is locked for short moments, by threads that start an operation or make a turn. The **seat** is the
//! right to sleep on the driver's events. One thread at a time has it: a thread in `block_on`, or the agent while the
//! application computes. A thread that wants to sleep while the seat is taken parks. It is woken by the waker of its
//! future, or to take over the seat.

mod growing_recv;
mod parts;
mod polls;
mod seat;
mod self_deadlock;
mod short_messages;
mod turn_makers;
mod view;

use std::{
    any::Any,
    cell::RefCell,
    collections::VecDeque,
    hint, mem,
    panic::{AssertUnwindSafe, Location, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};
#[cfg(feature = "tokio")]
use std::{os::fd::OwnedFd, sync::atomic::AtomicU64};

use ripstop_fabric::counters::DriverStats;

pub use self::parts::Choices;
#[cfg(feature = "tokio")]
pub(crate) use self::seat::PreparedSleep;
pub(crate) use self::{
    parts::{JobLink, RankPlacement, RuntimeParts, SleepMode},
    seat::SeatOutcome,
    turn_makers::{TurnMakerGuard, TurnMakers},
};
use crate::{
    boot::report::{FailureReporter, PeerDeparture},
    buffer::{RegBuf, Wire},
    clock::Clock,
    contexts::ContextIds,
    engine::{Engine, ProgramJob},
    error::{Error, ErrorKind, Result},
    evidence::KnownFailures,
    executor::{RuntimeTask, TaskQueue},
    group::WorldRank,
    lock::{SpinGuard, SpinLock},
    ops::ErasedBuffer,
    reactor::{Cooldown, Notifier, ProgressAgent, SeatLock, SleepBackend},
    settings::Settings,
    sim::RankHost,
    view::ViewPublisher,
};

/// Queue of tasks that are ready to run.
#[derive(Default)]
struct RunQueue {
    ready: VecDeque<Arc<RuntimeTask>>,
    /// True once no thread will run tasks any more.
    ended: bool,
}

/// What a thread in the seat needs to sleep.
struct SleepPlace {
    backend: Mutex<Box<dyn SleepBackend>>,
    /// What a thread writes before it sleeps for long. Ranks that are threads have none.
    view: Option<Mutex<ViewPublisher>>,
}

/// The shared state of one runtime.
pub(crate) struct RuntimeShared {
    engine: SpinLock<Engine>,
    /// What the thread in the seat sleeps on. A simulated host has none.
    backend: Option<Box<SleepPlace>>,
    seat: SeatLock,
    /// Number of sleeps that a task on tokio has prepared.
    #[cfg(feature = "tokio")]
    prepared: AtomicU64,
    /// Descriptor of the backend, on which a foreign event loop can sleep.
    #[cfg(feature = "tokio")]
    readable: Option<Arc<OwnedFd>>,
    notifier: Notifier,
    /// True while a thread sleeps in the seat, or is about to.
    asleep: AtomicBool,
    /// Reasons why spinning is useless, as last recorded: bits of [`CROWDED`] and [`IN_VAIN`].
    spin_obstacles: AtomicU8,
    pub(crate) agent: ProgressAgent,
    pub(crate) drivers: TurnMakers,
    tasks: Mutex<RunQueue>,
    tasks_len: AtomicUsize,
    pub(crate) clock: Clock,
    pub(crate) place: RankPlacement,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<DriverStats>,
    pub(crate) choices: Arc<Choices>,
    link: Option<Arc<JobLink>>,
    /// Evidence for each failed rank.
    pub(crate) failures: Arc<KnownFailures>,
    /// Connection to the launcher, if it accepts reports.
    pub(crate) reporter: Option<FailureReporter>,
    /// Collectives begun on the world communicator.
    pub(crate) on_world: Arc<AtomicU32>,
    /// Allocated on first use, because most ranks make no communicators.
    contexts: OnceLock<Arc<ContextIds>>,
    /// State of the collectives crate.
    pub(crate) attached: OnceLock<Box<dyn Any + Send + Sync>>,
    /// This rank's host, if it is simulated.
    pub(crate) host: Option<RankHost>,
}

impl RuntimeShared {
    /// Returns the reason why this rank cannot reach any other rank.
    #[cold]
    pub(crate) fn unreachable_reason(&self) -> Option<&str> {
        self.link.as_ref()?.unmet.get().map(String::as_str)
    }

    /// Reports that an operation failed because this rank left, which may be a consequence of that rank's own
    /// error.
    #[cold]
    pub(crate) fn blame(&self, rank: WorldRank) {
        if let Some(reporter) = &self.reporter {
            reporter.blame(rank, PeerDeparture::Early);
        }
    }

    /// Ends the job with this exit code, on behalf of the source line `at`.
    #[cold]
    pub(crate) fn abort(&self, code: i32, at: &Location<'_>) -> ! {
        let rank = self.place.rank;
        assert!(
            self.host.is_none(),
            "rank {rank} aborted the job with code {code}"
        );
        // A shell would show another code as another number, or as a success.
        let code = if (1..=255).contains(&code) { code } else { 1 };
        if let Some(link) = &self.link {
            link.abort(code, &format!("`abort` was called at {at}"));
        }
        std::process::exit(code)
    }

    pub(crate) fn new(parts: RuntimeParts) -> Self {
        let (notifier, backend, host) = match parts.sleeps {
            SleepMode::In(backend) => {
                let notifier = backend.notifier();
                let place = SleepPlace {
                    backend: Mutex::new(backend),
                    view: parts.view.map(Mutex::new),
                };
                (notifier, Some(Box::new(place)), None)
            }
            SleepMode::Never(host, notifier) => (notifier, None, Some(host)),
        };
        #[cfg(feature = "tokio")]
        let readable = backend
            .as_deref()
            .map(|place| lock(&place.backend).readable_fd());
        let failures = Arc::clone(&parts.engine.core.evidence);
        Self {
            engine: SpinLock::new(parts.engine),
            notifier,
            backend,
            host,
            seat: SeatLock::new(),
            #[cfg(feature = "tokio")]
            prepared: AtomicU64::new(0),
            #[cfg(feature = "tokio")]
            readable,
            asleep: AtomicBool::new(false),
            spin_obstacles: AtomicU8::new(if parts.place.crowded { CROWDED } else { 0 }),
            agent: ProgressAgent::new(),
            drivers: TurnMakers::default(),
            tasks: Mutex::default(),
            tasks_len: AtomicUsize::new(0),
            clock: parts.clock,
            place: parts.place,
            settings: parts.settings,
            counters: parts.counters,
            choices: parts.choices,
            link: parts.link,
            failures,
            reporter: parts.reporter,
            on_world: Arc::default(),
            contexts: OnceLock::new(),
            attached: OnceLock::new(),
        }
    }

    /// Returns true if a future waits for an event that only turns can bring.
    pub(crate) fn has_waiters(&self) -> bool {
        self.lock_engine().core.is_waited_for()
    }

    /// Fails all operations that wait for other ranks, because nothing drives this runtime.
    pub(crate) fn end_undriven(&self, why: &str) {
        let _first = self
            .link
            .as_ref()
            .map(|link| link.unmet.set(why.to_owned()));
        let all = (0..self.place.size).map(WorldRank);
        let others = all.filter(|&rank| rank != self.place.rank);
        self.with(|engine| {
            // Windows know that these ranks may be up, and do not take their locks.
            engine.core.windows().set_undriven();
            others.for_each(|rank| engine.core.count_as_failed(rank));
        });
    }

    pub(crate) fn contexts(&self) -> &Arc<ContextIds> {
        self.contexts.get_or_init(Arc::default)
    }

    /// Locks the engine, for anything but a short message in calm times.
    #[inline]
    fn lock_engine(&self) -> SpinGuard<'_, Engine> {
        let mut engine = self.engine.lock();
        engine.disturb();
        engine
    }

    /// Calls `work` on the engine. Then, without the lock, wakes the resulting wakers and drops what was released.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.lock_engine();
        let result = work(&mut engine);
        let needs_wakeup = engine.needs_wakeup(|| self.clock.now());
        self.finish(engine);
        if needs_wakeup {
            self.wake_seat_sleeper();
        }
        result
    }

    /// Makes one turn on behalf of the application. Returns `None` if another thread sleeps on the driver's events.
    pub(crate) fn turn(&self) -> Option<u32> {
        let mut engine = self.lock_engine();
        if engine.watch.is_guarded() {
            return None;
        }
        let disturbed = engine.watch.count_turn();
        let events = engine_turn(&mut engine, &self.clock);
        self.finish(engine);
        // The agent is woken after unlocking, because it takes the lock immediately.
        if disturbed {
            self.notifier.notify();
        }
        Some(events)
    }

    /// Lets other threads have the engine. A thread calls this between two turns without events.
    pub(crate) fn pause(&self) {
        hint::spin_loop();
        self.engine.give_way();
    }

    /// Begins to close the runtime. From now on nothing is received, and the caller must make turns until everything is
    /// sent.
    pub(crate) fn begin_close(&self) {
        self.drivers.end();
        let disturbed = self.with(|engine| {
            engine.begin_close();
            engine.watch.close()
        });
        if disturbed {
            self.notifier.notify();
        }
    }

    /// Allocates a buffer in a new region of the driver.
    #[track_caller]
    pub(crate) fn alloc<T: Wire>(&self, len: usize) -> Result<RegBuf<T>> {
        let at = Location::caller();
        let size = size_of::<T>();
        if len.checked_mul(size).is_none_or(|bytes| bytes == 0) {
            let sentence = format!(
                "`len` is {len} elements of {size} bytes: it must be at least 1, and fit into memory"
            );
            return Err(Error::argument("alloc", sentence).called_at(at));
        }
        self.with(|engine| RegBuf::allocate(engine.driver(), len))
            .map_err(|error| Error::new("alloc", ErrorKind::Transport(error.into())).called_at(at))
    }

    /// Returns the number of turns that application threads have made.
    pub(crate) fn turns(&self) -> u64 {
        self.lock_engine().watch.turns
    }

    pub(crate) fn has_tasks(&self) -> bool {
        self.ready_tasks() > 0
    }

    pub(crate) fn ready_tasks(&self) -> usize {
        self.tasks_len.load(Ordering::Relaxed)
    }

    pub(crate) fn new_notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Removes and returns the next ready task.
    pub(crate) fn next_task(&self) -> Option<Arc<RuntimeTask>> {
        if !self.has_tasks() {
            return None;
        }
        let mut tasks = lock(&self.tasks);
        let task = tasks.ready.pop_front()?;
        self.tasks_len.fetch_sub(1, Ordering::SeqCst);
        Some(task)
    }

    /// Drops all ready tasks, and makes tasks that become ready later be dropped too. This breaks the reference cycle
    /// between tasks and the runtime.
    pub(crate) fn end_tasks(&self) {
        lock(&self.tasks).ended = true;
        while let Some(task) = self.next_task() {
            task.abandon();
        }
    }

    /// Returns true if this processor should be yielded instead of spinning: there are too many ranks, a peer of this node shares
    /// the processor, or more threads wait than this rank has processors.
    pub(crate) fn is_crowded(&self) -> bool {
        self.spin_obstacles.load(Ordering::Relaxed) & CROWDED != 0
            || self.drivers.waiting_threads() > u32::from(self.place.processors)
    }

    /// Returns the same for the calling thread, which does not count as waiting, if it began to wait.
    pub(crate) fn would_be_crowded(&self) -> bool {
        self.spin_obstacles.load(Ordering::Relaxed) & CROWDED != 0
            || self.drivers.waiting_threads() >= u32::from(self.place.processors)
    }

    /// Returns true if spinning would be useless for the calling thread, which does not count as waiting, if it began to wait.
    pub(crate) fn would_spin_in_vain(&self) -> bool {
        self.spin_obstacles.load(Ordering::Relaxed) & IN_VAIN != 0 || self.would_be_crowded()
    }

    /// Ends a wait after a turn with events. Polls learn whether the thread rests, because they should not spin either then.
    pub(crate) fn end_wait(&self, cooldown: &mut Cooldown) {
        if cooldown.is_waiting() {
            cooldown.reset(|| self.clock.now());
            self.set_spin_obstacle(IN_VAIN, cooldown.is_resting());
        }
    }

    /// Lets polls spin again. A thread or a task calls this when it drives the runtime no longer, and forgets what it has
    /// learned.
    pub(crate) fn allow_spinning(&self) {
        self.set_spin_obstacle(IN_VAIN, false);
    }

    /// Records whether there is an obstacle to spinning.
    fn set_spin_obstacle(&self, obstacle: u8, is_there: bool) {
        let is_known = self.spin_obstacles.load(Ordering::Relaxed) & obstacle != 0;
        match (is_known, is_there) {
            (false, true) => self.spin_obstacles.fetch_or(obstacle, Ordering::Relaxed),
            (true, false) => self.spin_obstacles.fetch_and(!obstacle, Ordering::Relaxed),
            _ => return,
        };
    }

    /// Unlocks the engine. Then wakes wakers, drops what was released, and runs the jobs of programs without the lock.
    #[inline]
    fn finish(&self, engine: SpinGuard<'_, Engine>) {
        if engine.core.p2p.common.has_deferred() {
            self.finish_with_deferred(engine);
        }
    }

    #[inline(never)]
    fn finish_with_deferred<'a>(&'a self, mut engine: SpinGuard<'a, Engine>) {
        // At thread exit, the thread-local may be destroyed before this call, so start with empty vectors then.
        let kept = SPARE_VECS.try_with(RefCell::take);
        let (mut wakers, mut garbage) = kept.unwrap_or_default();
        let mut jobs = Vec::new();
        loop {
            mem::swap(&mut wakers, &mut engine.core.p2p.common.wakers);
            mem::swap(&mut garbage, &mut engine.core.p2p.common.garbage);
            // The remains of the last jobs are dropped when the lock is free.
            let over = mem::replace(&mut jobs, mem::take(&mut engine.core.p2p.common.jobs));
            drop(engine);
            over.into_iter().for_each(|job| contain_panic(|| drop(job)));
            for waker in wakers.drain(..) {
                contain_panic(|| waker.wake());
            }
            for held in garbage.drain(..) {
                contain_panic(|| drop(held));
            }
            if jobs.is_empty() {
                break;
            }
            jobs.iter_mut().for_each(ProgramJob::run);
            engine = self.lock_engine();
            jobs.iter_mut().for_each(|job| engine.complete_job(job));
            self.wake_seat_sleeper(); // a sleeping thread may have more to look at now
        }
        let _kept = SPARE_VECS.try_with(|vecs| vecs.replace((wakers, garbage)));
    }
}

/// Runs code that wakes or drops application-owned values, and contains any panic, which the panic hook has already
/// reported.
///
/// The thread that runs this does not own the value and must not unwind: it still holds obligations to borrowed memory
/// and to other waiters.
pub(crate) fn contain_panic(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        tracing::error!(
            target: "ripstop::op",
            "a waker, a buffer or a future of the application panicked when the runtime woke or dropped it"
        );
        mem::forget(panic); // dropping the payload might panic too
    }
}

/// Wakes the main function of a simulated rank.
impl Wake for RuntimeShared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.host.as_ref().is_some_and(RankHost::wake) {
            self.wake_seat_sleeper();
        }
    }
}

impl TaskQueue for RuntimeShared {
    fn schedule(&self, task: Arc<RuntimeTask>) {
        let mut tasks = lock(&self.tasks);
        if tasks.ended {
            drop(tasks);
            return task.abandon();
        }
        tasks.ready.push_back(task);
        // The task is counted before the wake-up: a thread publishes that it sleeps, and then checks this count.
        self.tasks_len.fetch_add(1, Ordering::SeqCst);
        drop(tasks);
        self.wake_seat_sleeper();
        self.seat.wake_next();
        self.wake_task_helpers();
    }
}

fn engine_turn(engine: &mut Engine, clock: &Clock) -> u32 {
    let now = if engine.core.p2p.common.needs_time() {
        clock.now()
    } else {
        engine.core.p2p.common.time()
    };
    engine.turn(now)
}

/// Bit of `spin_obstacles`: a peer of this node may need this processor.
const CROWDED: u8 = 1;
/// Bit of `spin_obstacles`: the thread that ended a wait last rests, because it has spun in vain.
const IN_VAIN: u8 = 2;

thread_local! {
    /// Vectors that are swapped with the engine's, so that no vector is allocated anew.
    static SPARE_VECS: RefCell<(Vec<Waker>, Vec<ErasedBuffer>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
