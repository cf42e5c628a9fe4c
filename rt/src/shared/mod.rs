//! What the handles of one runtime share: the engine, the seat, the run queue.
//!
//! The **engine** is locked for short moments, by whoever submits or makes a turn. The **seat** is the right to sleep on the
//! driver's events; one thread at a time has it: a thread in `block_on`, or the agent while the application computes. A thread
//! that wants to sleep and finds the seat taken parks, and is woken by the waker of its future, or to take the seat over.

mod drivers;
mod itself;
mod parts;
mod polls;
mod seat;

use std::{
    any::Any,
    cell::RefCell,
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, Location, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};
#[cfg(feature = "tokio")]
use std::{os::fd::OwnedFd, sync::atomic::AtomicU64};

use ripstop_fabric::counters::Counters;

pub use self::parts::Choices;
#[cfg(feature = "tokio")]
pub(crate) use self::seat::Prepared;
pub(crate) use self::{
    drivers::{Counted, Drivers},
    parts::{Parts, Place, Sleeps},
    seat::Seat,
};
use crate::{
    boot::report::{Leaving, Reporter},
    buffer::{RegBuf, Wire},
    clock::Clock,
    contexts::Contexts,
    engine::{Engine, Job},
    error::{Error, ErrorKind, Result},
    evidence::KnownFailures,
    executor::{Queue, Task},
    lock::{Guard, Lock},
    ops::Held,
    reactor::{Agent, Backend, Notifier, SeatLock},
    settings::Settings,
    sim::Host,
};

/// The tasks that are ready.
#[derive(Default)]
struct RunQueue {
    ready: VecDeque<Arc<Task>>,
    /// Nobody runs tasks any more.
    ended: bool,
}

/// One runtime, seen from inside.
pub(crate) struct Shared {
    engine: Lock<Engine>,
    /// Used by who has the seat; a simulated host has none.
    backend: Option<Box<Mutex<Box<dyn Backend>>>>,
    seat: SeatLock,
    /// Sleeps that a task on tokio has prepared.
    #[cfg(feature = "tokio")]
    prepared: AtomicU64,
    /// Of the backend, which somebody may sleep with.
    #[cfg(feature = "tokio")]
    readable: Option<Arc<OwnedFd>>,
    notifier: Notifier,
    /// Somebody in the seat is, or is about to be, asleep.
    asleep: AtomicBool,
    /// Spinning is in vain, as far as we saw when we slept last.
    crowded: AtomicBool,
    pub(crate) agent: Agent,
    pub(crate) drivers: Drivers,
    tasks: Mutex<RunQueue>,
    tasks_len: AtomicUsize,
    pub(crate) clock: Clock,
    pub(crate) place: Place,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) choices: Arc<Choices>,
    /// Why this rank has not heard where the others are, and never will.
    unmet: Option<Arc<OnceLock<String>>>,
    /// How it is known of the ranks that have failed.
    pub(crate) failures: Arc<KnownFailures>,
    /// What started this rank, if it listens.
    pub(crate) reporter: Option<Reporter>,
    /// Collectives begun on the world.
    pub(crate) on_world: Arc<AtomicU32>,
    /// Most ranks make no communicators.
    contexts: OnceLock<Arc<Contexts>>,
    /// What the crate of collectives keeps here.
    pub(crate) attached: OnceLock<Box<dyn Any + Send + Sync>>,
    /// This rank's host, where that is simulated.
    pub(crate) host: Option<Host>,
}

impl Shared {
    /// Why nobody could ever be reached from here.
    #[cold]
    pub(crate) fn unmet(&self) -> Option<&str> {
        self.unmet.as_ref()?.get().map(String::as_str)
    }

    /// An operation ends in an error because this rank of the world left, which may be a consequence of its own error.
    #[cold]
    pub(crate) fn blame(&self, rank: usize) {
        if let (Some(reporter), Ok(rank)) = (&self.reporter, u32::try_from(rank)) {
            reporter.blame(rank, Leaving::Early);
        }
    }

    pub(crate) fn new(parts: Parts) -> Self {
        let (notifier, backend, host) = match parts.sleeps {
            Sleeps::In(backend) => {
                let notifier = backend.notifier();
                (notifier, Some(Box::new(Mutex::new(backend))), None)
            }
            Sleeps::Never(host, notifier) => (notifier, None, Some(host)),
        };
        #[cfg(feature = "tokio")]
        let readable = backend
            .as_deref()
            .map(|backend| lock(backend).readable_fd());
        let failures = Arc::clone(&parts.engine.core.evidence);
        Self {
            engine: Lock::new(parts.engine),
            notifier,
            backend,
            host,
            seat: SeatLock::new(),
            #[cfg(feature = "tokio")]
            prepared: AtomicU64::new(0),
            #[cfg(feature = "tokio")]
            readable,
            asleep: AtomicBool::new(false),
            crowded: AtomicBool::new(parts.place.crowded),
            agent: Agent::new(),
            drivers: Drivers::default(),
            tasks: Mutex::default(),
            tasks_len: AtomicUsize::new(0),
            clock: parts.clock,
            place: parts.place,
            settings: parts.settings,
            counters: parts.counters,
            choices: parts.choices,
            unmet: parts.unmet,
            failures,
            reporter: parts.reporter,
            on_world: Arc::default(),
            contexts: OnceLock::new(),
            attached: OnceLock::new(),
        }
    }

    /// Whether a future waits for what only turns bring.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.engine.lock().core.is_waited_for()
    }

    /// Nothing drives this runtime, so what waits for other ranks ends, for this reason.
    pub(crate) fn end_undriven(&self, why: &str) {
        let _first = self.unmet.as_ref().map(|unmet| unmet.set(why.to_owned()));
        let others = (0..self.place.size).filter(|&rank| rank != self.place.rank);
        self.with(|engine| others.for_each(|rank| engine.core.count_as_failed(rank)));
    }

    pub(crate) fn contexts(&self) -> &Arc<Contexts> {
        self.contexts.get_or_init(Arc::default)
    }

    /// Works on the engine, then wakes whom that woke and drops what it freed, with nothing held.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.engine.lock();
        let result = work(&mut engine);
        let restless = engine.is_restless(|| self.clock.now());
        self.finish(engine);
        if restless {
            self.nudge();
        }
        result
    }

    /// One turn on behalf of an application; `None` when another thread sleeps on the driver's events.
    pub(crate) fn turn(&self) -> Option<u32> {
        let mut engine = self.engine.lock();
        if engine.watch.is_guarded() {
            return None;
        }
        let disturbed = engine.watch.announce();
        let events = engine_turn(&mut engine, &self.clock);
        self.finish(engine);
        if disturbed {
            self.notifier.notify();
        }
        Some(events)
    }

    /// From now on nothing is received, and who calls this is to make turns until all is sent.
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

    /// A buffer in a new region of the driver's.
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
            .map_err(|error| Error::new("alloc", ErrorKind::Transport(error)).called_at(at))
    }

    /// Turns made by applications so far.
    pub(crate) fn turns(&self) -> u64 {
        self.engine.lock().watch.turns
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

    /// The next task that is ready.
    pub(crate) fn next_task(&self) -> Option<Arc<Task>> {
        if !self.has_tasks() {
            return None;
        }
        let mut tasks = lock(&self.tasks);
        let task = tasks.ready.pop_front()?;
        self.tasks_len.fetch_sub(1, Ordering::SeqCst);
        Some(task)
    }

    /// Drops what is ready of the tasks, and whatever of them becomes ready later: they hold the runtime, and the runtime holds
    /// them.
    pub(crate) fn end_tasks(&self) {
        lock(&self.tasks).ended = true;
        while let Some(task) = self.next_task() {
            task.abandon();
        }
    }

    /// Whether spinning is in vain: too many ranks, or a peer that shares this processor.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Unlocks, then wakes and drops, and does what programs need done without the lock.
    #[inline]
    fn finish(&self, engine: Guard<'_, Engine>) {
        if engine.core.has_spoils() {
            self.finish_with_spoils(engine);
        }
    }

    #[inline(never)]
    fn finish_with_spoils<'a>(&'a self, mut engine: Guard<'a, Engine>) {
        // At the end of a thread what it had kept for itself may be dropped after the vectors.
        let kept = SPOILS.try_with(RefCell::take);
        let (mut wakers, mut garbage) = kept.unwrap_or_default();
        let mut jobs = Vec::new();
        loop {
            mem::swap(&mut wakers, &mut engine.core.wakers);
            mem::swap(&mut garbage, &mut engine.core.garbage);
            // What is left of the last ones goes when the lock is free.
            let over = mem::replace(&mut jobs, mem::take(&mut engine.core.jobs));
            drop(engine);
            over.into_iter().for_each(|job| contain(|| drop(job)));
            for waker in wakers.drain(..) {
                contain(|| waker.wake());
            }
            for held in garbage.drain(..) {
                contain(|| drop(held));
            }
            if jobs.is_empty() {
                break;
            }
            jobs.iter_mut().for_each(Job::run);
            engine = self.engine.lock();
            jobs.iter_mut().for_each(|job| engine.done(job));
            self.nudge(); // who sleeps may have more to look at now
        }
        let _kept = SPOILS.try_with(|spoils| spoils.replace((wakers, garbage)));
    }
}

/// Wakes or drops what is the application's, and ends a panic there, which its hook has told of: whoever happens to run this is
/// none of those whose it is, and has promises of its own to keep, to borrowed memory and to whoever else is to be woken.
pub(crate) fn contain(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        tracing::error!(
            "a waker, a buffer or a future of the application panicked when the runtime woke or dropped it"
        );
        mem::forget(panic); // which might panic in its turn
    }
}

/// Wakes the function of a simulated rank.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.host.as_ref().is_some_and(Host::wake) {
            self.nudge();
        }
    }
}

impl Queue for Shared {
    fn schedule(&self, task: Arc<Task>) {
        let mut tasks = lock(&self.tasks);
        if tasks.ended {
            drop(tasks);
            return task.abandon();
        }
        tasks.ready.push_back(task);
        self.tasks_len.fetch_add(1, Ordering::SeqCst);
        drop(tasks);
        self.nudge();
        self.seat.pass();
        self.call_helpers();
    }
}

fn engine_turn(engine: &mut Engine, clock: &Clock) -> u32 {
    let now = if engine.core.needs_time() {
        clock.now()
    } else {
        engine.core.time()
    };
    engine.turn(now)
}

thread_local! {
    /// The vectors that are swapped with the engine's, so that neither is ever allocated anew.
    static SPOILS: RefCell<(Vec<Waker>, Vec<Held>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
