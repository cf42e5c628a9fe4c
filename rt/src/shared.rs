//! What the handles of one runtime share: the engine, the seat, the run queue.
//!
//! The **engine** is locked for short moments, by whoever submits or makes a turn. The **seat** is the right to sleep on the
//! driver's events; one thread at a time has it: a thread in `block_on`, or the agent while the application computes. A thread
//! that wants to sleep and finds the seat taken parks, and is woken by the waker of its future, or to take the seat over.

#[cfg(feature = "tokio")]
use std::io;
use std::{
    cell::RefCell,
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use ripstop_fabric::{
    counters::Counters,
    driver::Armed,
    shm::{Board, PeerState},
};

use crate::{
    clock::Clock,
    comm::Contexts,
    engine::Engine,
    executor::{self, Parker, Task},
    ops::Held,
    reactor::{Agent, Backend, Notifier},
    settings::Settings,
};

/// One runtime, seen from inside.
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    seat: Mutex<Box<dyn Backend>>,
    notifier: Notifier,
    /// Somebody in the seat is, or is about to be, asleep.
    asleep: AtomicBool,
    /// Turns made by applications; the agent looks whether they still make any.
    turns: AtomicU64,
    pub(crate) agent: Agent,
    /// Threads that found the seat taken.
    parked: Mutex<Vec<Arc<Parker>>>,
    parked_len: AtomicUsize,
    tasks: Mutex<VecDeque<Arc<Task>>>,
    tasks_len: AtomicUsize,
    pub(crate) clock: Clock,
    pub(crate) place: Place,
    pub(crate) settings: Settings,
    pub(crate) counters: Arc<Counters>,
    pub(crate) choices: Choices,
    pub(crate) contexts: Contexts,
}

/// Where this rank runs.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// World ranks of this node.
    pub(crate) node: Vec<u32>,
    pub(crate) board: Board,
    /// More ranks on the node than processors that they may use.
    pub(crate) crowded: bool,
    pub(crate) found: &'static str,
}

impl Place {
    /// Whether the ranks of the node have all been on the board. Its owner keeps it until then: they find it through the
    /// owner's open descriptor.
    pub(crate) fn everybody_came(&self) -> bool {
        let is_owner = self.node.first() == Some(&self.rank);
        !is_owner
            || (0..self.board.size()).all(|rank| self.board.state_of(rank) != PeerState::Absent)
    }
}

/// What was chosen at start, and why; `ripstop info` prints it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choices {
    /// `uring` or `epoll`.
    pub reactor: &'static str,
    /// Why that one.
    pub reactor_why: String,
    /// The table of paths by message length.
    pub paths: String,
    /// Whether memory of other processes is read directly, or the sentence that says why not.
    pub single_copy: Result<(), String>,
}

/// What a shared runtime is made of.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) clock: Clock,
    pub(crate) place: Place,
    pub(crate) settings: Settings,
    pub(crate) counters: Arc<Counters>,
    pub(crate) choices: Choices,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            engine: Mutex::new(parts.engine),
            notifier: parts.backend.notifier(),
            seat: Mutex::new(parts.backend),
            asleep: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            agent: Agent::new(),
            parked: Mutex::default(),
            parked_len: AtomicUsize::new(0),
            tasks: Mutex::default(),
            tasks_len: AtomicUsize::new(0),
            clock: parts.clock,
            place: parts.place,
            settings: parts.settings,
            counters: parts.counters,
            choices: parts.choices,
            contexts: Contexts::default(),
        }
    }

    /// Works on the engine, then wakes whom that woke and drops what it freed, with nothing held.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = lock(&self.engine);
        let result = work(&mut engine);
        let restless = engine.is_restless();
        finish(engine);
        if restless {
            self.nudge();
        }
        result
    }

    /// Polls an operation on behalf of its future. A thread that drives this runtime makes turns meanwhile, for about as long
    /// as an answer from another processor takes: then nobody needs to be woken, and nothing is locked twice.
    pub(crate) fn poll<R>(
        &self,
        waker: &Waker,
        mut poll: impl FnMut(&mut Engine, Option<&Waker>) -> Poll<R>,
    ) -> Poll<R> {
        let driving = executor::drives(self);
        if driving {
            self.announce_turn();
        }
        let turns = if driving && !self.is_crowded() {
            IMPATIENCE
        } else {
            u32::from(driving)
        };
        let mut engine = lock(&self.engine);
        let mut polled = poll(&mut engine, None);
        for _ in 0..turns {
            if polled.is_ready() || !engine.core.wakers.is_empty() {
                break;
            }
            engine_turn(&mut engine, &self.clock);
            polled = poll(&mut engine, None);
        }
        if polled.is_pending() {
            polled = poll(&mut engine, Some(waker));
        }
        finish(engine);
        polled
    }

    /// One turn on behalf of an application.
    pub(crate) fn turn(&self) -> u32 {
        self.announce_turn();
        let mut engine = lock(&self.engine);
        let events = engine_turn(&mut engine, &self.clock);
        finish(engine);
        events
    }

    /// The agent gives the seat back to an application that makes turns.
    fn announce_turn(&self) {
        // Against the agent's store of `sits` and load of `turns`: one of the two sees the other.
        self.turns.fetch_add(1, Ordering::SeqCst);
        if self.agent.sits() {
            self.notifier.notify();
        }
    }

    /// One turn on behalf of nobody.
    pub(crate) fn agent_turn(&self) -> u32 {
        let mut engine = lock(&self.engine);
        let events = engine_turn(&mut engine, &self.clock);
        finish(engine);
        events
    }

    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// Takes the seat and sleeps there until something happens, or says that it is taken. `parker` is told where its thread
    /// is, so that its waker reaches it.
    pub(crate) fn sleep_in_seat(&self, parker: &Parker) -> Seat {
        let Ok(mut seat) = self.seat.try_lock() else {
            return Seat::Taken;
        };
        self.asleep.store(true, Ordering::SeqCst);
        parker.sits(true);
        if !parker.is_woken() && self.tasks_len.load(Ordering::SeqCst) == 0 {
            self.sleep(&mut **seat);
        }
        parker.sits(false);
        self.asleep.store(false, Ordering::SeqCst);
        drop(seat);
        self.agent.rouse();
        self.pass_seat();
        Seat::Left
    }

    /// The agent's stay in the seat; it leaves when an application makes turns again.
    pub(crate) fn agent_in_seat(&self, turns: u64) -> Seat {
        let Ok(mut seat) = self.seat.try_lock() else {
            return Seat::Taken;
        };
        self.agent.set_sits(true);
        while self.turns() == turns && !self.agent.is_stopped() {
            if self.agent_turn() == 0 {
                self.asleep.store(true, Ordering::SeqCst);
                self.sleep(&mut **seat);
                self.asleep.store(false, Ordering::SeqCst);
            }
        }
        self.agent.set_sits(false);
        drop(seat);
        self.pass_seat();
        Seat::Left
    }

    fn sleep(&self, seat: &mut dyn Backend) {
        let (armed, deadline) = {
            let mut engine = lock(&self.engine);
            (engine.arm(), engine.deadline())
        };
        if armed == Armed::Busy {
            return;
        }
        let timeout = deadline.map(|deadline| deadline.since(self.clock.now()));
        if let Err(error) = seat.sleep(timeout) {
            tracing::warn!(%error, "the reactor could not sleep; trying again");
            std::thread::yield_now();
        }
    }

    /// For an event loop of somebody else's: like sleeping in the seat, in two halves.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare_sleep(&self) -> io::Result<Prepared> {
        let mut seat = lock(&self.seat);
        self.asleep.store(true, Ordering::SeqCst);
        let (armed, deadline) = {
            let mut engine = lock(&self.engine);
            (engine.arm(), engine.deadline())
        };
        if armed == Armed::Busy {
            self.asleep.store(false, Ordering::SeqCst);
            return Ok(Prepared::Busy);
        }
        seat.prepare()?;
        Ok(Prepared::Until(
            deadline.map(|deadline| deadline.since(self.clock.now())),
        ))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn end_sleep(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.notifier.wake_up();
    }

    /// Becomes readable after `prepare_sleep`, when something happens.
    #[cfg(feature = "tokio")]
    pub(crate) fn readable_fd(&self) -> Arc<std::os::fd::OwnedFd> {
        lock(&self.seat).readable_fd()
    }

    pub(crate) fn is_seat_taken(&self) -> bool {
        self.seat.try_lock().is_err()
    }

    /// Ends a sleep in the seat, if there is one.
    pub(crate) fn nudge(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.notifier.notify();
        }
    }

    /// Parks until woken, or until the seat is free.
    pub(crate) fn park(&self, parker: &Arc<Parker>) {
        lock(&self.parked).push(Arc::clone(parker));
        self.parked_len.fetch_add(1, Ordering::SeqCst);
        if self.is_seat_taken() {
            parker.park();
        }
        lock(&self.parked).retain(|other| !Arc::ptr_eq(other, parker));
        self.parked_len.fetch_sub(1, Ordering::SeqCst);
    }

    /// The seat is free: a parked thread may want it.
    pub(crate) fn pass_seat(&self) {
        if self.parked_len.load(Ordering::SeqCst) > 0
            && let Some(next) = lock(&self.parked).last()
        {
            next.unpark();
        }
    }

    /// A task is ready to run.
    pub(crate) fn schedule(&self, task: Arc<Task>) {
        lock(&self.tasks).push_back(task);
        self.tasks_len.fetch_add(1, Ordering::SeqCst);
        self.nudge();
        self.pass_seat();
    }

    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks_len.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn new_notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// The next task that is ready.
    pub(crate) fn next_task(&self) -> Option<Arc<Task>> {
        if self.tasks_len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let task = lock(&self.tasks).pop_front()?;
        self.tasks_len.fetch_sub(1, Ordering::SeqCst);
        Some(task)
    }

    /// Whether spinning is in vain: too many ranks, or a peer that shares this processor.
    pub(crate) fn is_crowded(&self) -> bool {
        let Place {
            rank,
            size,
            board,
            crowded,
            ..
        } = &self.place;
        // With two ranks it is cheap to know where the other one runs; with more, the count decides.
        *crowded
            || (*size == 2
                && board.cpu_of(*rank).is_some()
                && board.cpu_of(*rank) == board.cpu_of(1 - *rank))
    }

    /// What waking a sleeper on another processor costs; measured on virtual machines, where an idle processor is woken by an
    /// interrupt, and taken as the worst case.
    pub(crate) fn wake_cost(&self) -> Duration {
        const WAKE: Duration = Duration::from_micros(40);
        self.settings.spin_max.map_or(WAKE, |spin| spin / 2)
    }
}

/// Whether one may sleep, and for how long.
#[cfg(feature = "tokio")]
pub(crate) enum Prepared {
    Busy,
    Until(Option<Duration>),
}

/// Turns that a poll makes before it lets go of the engine; about a microsecond when nothing comes.
const IMPATIENCE: u32 = 100;

/// Whether a thread got the seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    Taken,
    Left,
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

/// Unlocks, then wakes and drops.
fn finish(mut engine: MutexGuard<'_, Engine>) {
    if engine.core.wakers.is_empty() && engine.core.garbage.is_empty() {
        return;
    }
    let (mut wakers, mut garbage) = SPOILS.with(RefCell::take);
    mem::swap(&mut wakers, &mut engine.core.wakers);
    mem::swap(&mut garbage, &mut engine.core.garbage);
    drop(engine);
    wakers.drain(..).for_each(Waker::wake);
    garbage.clear();
    SPOILS.set((wakers, garbage));
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
