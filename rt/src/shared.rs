//! What the handles of one runtime share: the engine, the seat, the run queue.
//!
//! The **engine** is locked for short moments, by whoever submits or makes a turn. The **seat** is the right to sleep on the
//! driver's events; one thread at a time has it: a thread in `block_on`, or the agent while the application computes. A thread
//! that wants to sleep and finds the seat taken parks, and is woken by the waker of its future, or to take the seat over.

#[cfg(feature = "tokio")]
use std::io;
use std::{
    any::Any,
    cell::RefCell,
    collections::VecDeque,
    hint, mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Poll, Wake, Waker},
    time::Duration,
};

use ripstop_fabric::{
    counters::Counters,
    driver::{Armed, Caps, Cost},
    shm::Board,
};

use crate::{
    buffer::{RegBuf, Wire},
    clock::{Clock, Time},
    comm::Contexts,
    engine::{Core, Engine, Job, Look, WindowId},
    error::{Error, ErrorKind, Result},
    executor::{self, Parker, Queue, Task},
    lock::{Guard, Lock},
    ops::Held,
    proto::wire::OpId,
    reactor::{Agent, Backend, Notifier, SeatLock},
    settings::Settings,
    sim::Host,
};

/// One runtime, seen from inside.
pub(crate) struct Shared {
    engine: Lock<Engine>,
    /// Used by who has the seat; a simulated host has none.
    backend: Option<Box<Mutex<Box<dyn Backend>>>>,
    seat: SeatLock,
    notifier: Notifier,
    /// Somebody in the seat is, or is about to be, asleep.
    asleep: AtomicBool,
    /// Spinning is in vain, as far as we saw when we slept last.
    crowded: AtomicBool,
    pub(crate) agent: Agent,
    tasks: Mutex<VecDeque<Arc<Task>>>,
    tasks_len: AtomicUsize,
    pub(crate) clock: Clock,
    pub(crate) place: Place,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) choices: Arc<Choices>,
    pub(crate) contexts: Contexts,
    /// What the crate of collectives keeps here.
    pub(crate) attached: OnceLock<Box<dyn Any + Send + Sync>>,
    /// This rank's host, where that is simulated.
    pub(crate) host: Option<Host>,
}

/// Where this rank runs.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The lowest world rank of this node.
    pub(crate) node: u32,
    /// Where the ranks of a real node say on which processors they run, and which of them this is.
    pub(crate) board: Option<(Board, u32)>,
    /// More ranks on the node than processors that they may use.
    pub(crate) crowded: bool,
    /// So many ranks of the world on each node, in order, where that is known; the last node may have fewer.
    pub(crate) per_node: Option<u32>,
}

/// What was chosen at start, and why; `ripstop info` prints it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choices {
    /// How this rank learned who it is: `pmi-1`, `threads`, `singleton` or `simulation`.
    pub boot: &'static str,
    /// `uring` or `epoll`; `sim` where ranks are simulated.
    pub reactor: &'static str,
    /// Why that one.
    pub reactor_why: String,
    /// The table of paths by message length.
    pub paths: String,
    /// Whether memory of other processes is read directly, or the sentence that says why not.
    pub single_copy: Result<(), String>,
    /// What the fabric's actions cost, which protocols and collectives are chosen by.
    pub cost: Cost,
    /// What they cost between ranks of one node, where that is another matter.
    pub cost_inside: Option<Cost>,
    /// What a round of messages costs beyond that, in nanoseconds, where ranks share processors: all of them have to run.
    pub round_ns: f64,
}

impl Choices {
    /// There was no choice.
    pub(crate) fn simulated(paths: String, caps: &Caps, inside: Option<Cost>) -> Self {
        Self {
            boot: "simulation",
            reactor: "sim",
            reactor_why: "time is virtual".to_owned(),
            paths,
            single_copy: caps.any_memory.clone(),
            cost: caps.cost,
            cost_inside: inside,
            round_ns: 0.0,
        }
    }
}

/// What a shared runtime is made of.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) sleeps: Sleeps,
    pub(crate) clock: Clock,
    pub(crate) place: Place,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) choices: Arc<Choices>,
}

/// How a runtime waits for events.
pub(crate) enum Sleeps {
    /// Its threads sleep in this.
    In(Box<dyn Backend>),
    /// Not at all: its turns are made for it, when it asks for them.
    Never(Host, Notifier),
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Self {
        let (notifier, backend, host) = match parts.sleeps {
            Sleeps::In(backend) => {
                let notifier = backend.notifier();
                (notifier, Some(Box::new(Mutex::new(backend))), None)
            }
            Sleeps::Never(host, notifier) => (notifier, None, Some(host)),
        };
        Self {
            engine: Lock::new(parts.engine),
            notifier,
            backend,
            host,
            seat: SeatLock::new(),
            asleep: AtomicBool::new(false),
            crowded: AtomicBool::new(parts.place.crowded),
            agent: Agent::new(),
            tasks: Mutex::default(),
            tasks_len: AtomicUsize::new(0),
            clock: parts.clock,
            place: parts.place,
            settings: parts.settings,
            counters: parts.counters,
            choices: parts.choices,
            contexts: Contexts::default(),
            attached: OnceLock::new(),
        }
    }

    /// Works on the engine, then wakes whom that woke and drops what it freed, with nothing held.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.engine.lock();
        let result = work(&mut engine);
        let restless = engine.is_restless();
        self.finish(engine);
        if restless {
            self.nudge();
        }
        result
    }

    /// After a message took longer to copy than a turn takes: if receives are posted, the thread that drives this runtime makes
    /// a turn. What comes is taken while it is in the caches, and the peer's chunks are free again before it needs new ones.
    pub(crate) fn turn_between_copies(&self) {
        if executor::drives(self) && self.engine.lock().core.is_receiving() {
            self.turn();
        }
    }

    /// Polls an operation on behalf of its future: `take` takes it if it is complete. A thread that drives this runtime makes
    /// turns meanwhile, for about as long as an answer from another processor takes: then nobody needs to be woken, and nothing
    /// is locked twice.
    #[inline]
    pub(crate) fn poll<R>(
        &self,
        op: OpId,
        waker: &Waker,
        take: impl Fn(&mut Core) -> Option<R>,
    ) -> Poll<R> {
        let mut engine = self.engine.lock();
        // Whether turns were made, and whether the agent must be told.
        let mut turned = None;
        let polled = loop {
            if let Some(taken) = take(&mut engine.core) {
                break Poll::Ready(taken);
            }
            if turned.is_some() {
                engine.core.ops.remember(op, waker);
                break Poll::Pending;
            }
            turned = Some(self.make_turns_for(op, &mut engine));
        };
        self.finish(engine);
        if turned == Some(true) {
            self.notifier.notify();
        }
        polled
    }

    /// Whether the agent must be told.
    #[inline(never)]
    fn make_turns_for(&self, op: OpId, engine: &mut Engine) -> bool {
        if !executor::drives(self) || engine.watch.is_guarded() {
            return false;
        }
        let disturbed = engine.watch.announce();
        for _ in 0..self.impatience() {
            engine_turn(engine, &self.clock);
            if engine.core.is_done(op) || engine.core.has_spoils() {
                break;
            }
            hint::spin_loop();
        }
        disturbed
    }

    /// As [`poll`](Self::poll), for what needs no operation: looks until it is not [`Look::Waits`], or for as long as turns are
    /// made. In a crowd the processor is given away between two looks, as peers need it to do their part.
    #[inline]
    pub(crate) fn poll_quick(&self, mut look: impl FnMut(&mut Engine) -> Look) -> Look {
        let mut engine = self.engine.lock();
        let found = look(&mut engine);
        // Who finds all there at once makes turns too, now and then: others wait for that.
        if found == Look::Waits || found == Look::Over && engine.core.is_turn_due() {
            return self.look_between_turns(engine, found, look);
        }
        self.finish(engine);
        found
    }

    #[inline(never)]
    fn look_between_turns<'a>(
        &'a self,
        mut engine: Guard<'a, Engine>,
        mut found: Look,
        mut look: impl FnMut(&mut Engine) -> Look,
    ) -> Look {
        let crowded = self.is_crowded();
        let mut left = match found {
            Look::Waits if crowded => YIELDS,
            Look::Waits => IMPATIENCE,
            _ => 1,
        };
        let mut disturbed = false;
        while left > 0 && executor::drives(self) && !engine.watch.is_guarded() {
            left -= 1;
            disturbed |= engine.watch.announce();
            engine_turn(&mut engine, &self.clock);
            if found == Look::Waits {
                found = look(&mut engine);
            }
            if found != Look::Waits || engine.core.has_spoils() {
                break;
            }
            if crowded {
                drop(engine);
                std::thread::yield_now();
                engine = self.engine.lock();
            } else {
                hint::spin_loop();
            }
        }
        self.finish(engine);
        if disturbed {
            self.notifier.notify();
        }
        found
    }

    /// As [`poll`](Self::poll), for a future that waits for news of a window, and then has the driver `watch` for it.
    pub(crate) fn poll_window<R>(
        &self,
        id: WindowId,
        waker: &Waker,
        check: impl Fn(&mut Engine) -> Option<R>,
        watch: impl FnOnce(&mut Engine),
    ) -> Poll<R> {
        let mut engine = self.engine.lock();
        let mut disturbed = false;
        let mut turns = None;
        let polled = loop {
            if let Some(result) = check(&mut engine) {
                break Poll::Ready(result);
            }
            let left = turns.get_or_insert_with(|| {
                let may = executor::drives(self) && !engine.watch.is_guarded();
                disturbed = may && engine.watch.announce();
                if may { self.impatience() } else { 0 }
            });
            if *left == 0 || engine.core.has_spoils() {
                engine.core.remember_window(id, waker);
                watch(&mut engine);
                // Who counted before the watch was set woke nobody, and another thread may sleep on the driver.
                break check(&mut engine).map_or(Poll::Pending, Poll::Ready);
            }
            *left -= 1;
            engine_turn(&mut engine, &self.clock);
            hint::spin_loop();
        };
        let restless = engine.is_restless();
        self.finish(engine);
        if disturbed {
            self.notifier.notify();
        } else if restless {
            self.nudge();
        }
        polled
    }

    /// Whether something comes in about the time that a word from another processor takes. Looks, and makes no turns: the thread
    /// that drives this runtime may, because it makes turns when this was in vain.
    #[inline]
    pub(crate) fn comes_soon(&self, has_come: impl Fn() -> bool) -> bool {
        if has_come() {
            return true;
        }
        let may_look = executor::drives(self) && !self.is_crowded();
        may_look && (0..LOOKS).any(|_| has_come())
    }

    /// Turns that a poll makes.
    fn impatience(&self) -> u32 {
        if self.is_crowded() { 1 } else { IMPATIENCE }
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

    /// A buffer in a new region of the driver's.
    pub(crate) fn alloc<T: Wire>(&self, len: usize) -> Result<RegBuf<T>> {
        let size = size_of::<T>();
        if len.checked_mul(size).is_none_or(|bytes| bytes == 0) {
            let sentence = format!(
                "`len` is {len} elements of {size} bytes: it must be at least 1, and fit into memory"
            );
            return Err(Error::argument("alloc", sentence));
        }
        self.with(|engine| RegBuf::allocate(engine.driver(), len))
            .map_err(|error| Error::new("alloc", ErrorKind::Transport(error)))
    }

    /// Turns made by applications so far.
    pub(crate) fn turns(&self) -> u64 {
        self.engine.lock().watch.turns
    }

    /// Takes the seat and sleeps there until something happens, or says that it is taken. `parker` is told where its thread
    /// is, so that its waker reaches it.
    pub(crate) fn sleep_in_seat(&self, parker: &Parker) -> Seat {
        let Some(sitting) = self.seat.take() else {
            return Seat::Taken;
        };
        self.asleep.store(true, Ordering::SeqCst);
        parker.sit(|| {
            if self.tasks_len.load(Ordering::SeqCst) == 0 {
                self.sleep();
            }
        });
        self.asleep.store(false, Ordering::SeqCst);
        drop(sitting);
        self.agent.rouse();
        Seat::Left
    }

    /// The agent's stay in the seat; it leaves when an application makes turns again.
    pub(crate) fn agent_in_seat(&self, turns: u64) -> Seat {
        let Some(sitting) = self.seat.take() else {
            return Seat::Taken;
        };
        while !self.agent.is_stopped() {
            let mut engine = self.engine.lock();
            if !engine.watch.sit(turns) {
                break;
            }
            let events = engine_turn(&mut engine, &self.clock);
            self.finish(engine);
            if events == 0 {
                self.asleep.store(true, Ordering::SeqCst);
                if !self.agent.is_stopped() {
                    self.sleep();
                }
                self.asleep.store(false, Ordering::SeqCst);
            }
        }
        self.engine.lock().watch.leave();
        drop(sitting);
        Seat::Left
    }

    fn sleep(&self) {
        let Some(mut backend) = self.backend.as_deref().map(lock) else {
            return; // a simulated host: whoever makes its turns knows when
        };
        // The seat is ours: a guard that is left is that of a tokio task, perhaps of one that was aborted and not dropped yet.
        self.engine.lock().watch.wake_up();
        let Some(timeout) = self.arm() else { return };
        if let Err(error) = backend.sleep(timeout) {
            tracing::warn!(%error, "the reactor could not sleep; trying again");
            std::thread::yield_now();
        }
        self.engine.lock().watch.wake_up();
    }

    /// For how long one may sleep now; `None` when something came.
    #[expect(
        clippy::option_option,
        reason = "not at all, as long as one likes, or so long"
    )]
    fn arm(&self) -> Option<Option<Duration>> {
        let mut engine = self.engine.lock();
        if engine.arm() == Armed::Busy {
            return None;
        }
        engine.core.begin_doubt(|| self.clock.now());
        engine.watch.fall_asleep();
        let deadline = engine.deadline();
        drop(engine);
        Some(deadline.map(|deadline| deadline.since(self.clock.now())))
    }

    /// For an event loop of somebody else's: like sleeping in the seat, in two halves.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare_sleep(&self) -> io::Result<Prepared> {
        let mut backend = self.backend();
        self.asleep.store(true, Ordering::SeqCst);
        let Some(limit) = self.arm() else {
            self.asleep.store(false, Ordering::SeqCst);
            return Ok(Prepared::Busy);
        };
        backend.prepare()?;
        Ok(Prepared::Until(limit))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn end_sleep(&self) {
        self.engine.lock().watch.wake_up();
        self.asleep.store(false, Ordering::SeqCst);
        self.notifier.wake_up();
    }

    /// Becomes readable after `prepare_sleep`, when something happens.
    #[cfg(feature = "tokio")]
    pub(crate) fn readable_fd(&self) -> Arc<std::os::fd::OwnedFd> {
        self.backend().readable_fd()
    }

    #[cfg(feature = "tokio")]
    fn backend(&self) -> MutexGuard<'_, Box<dyn Backend>> {
        lock(
            self.backend
                .as_deref()
                .expect("only real runtimes are driven by tokio"),
        )
    }

    /// The turns of a simulated host begin and end: in between nobody needs to be told that there is something to do.
    pub(crate) fn begin_host_turn(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// When the next turn is due, if nothing happens before; in nanoseconds.
    pub(crate) fn end_host_turn(&self) -> Option<u64> {
        self.asleep.store(true, Ordering::Relaxed);
        self.engine.lock().deadline().map(Time::nanos)
    }

    pub(crate) fn is_seat_taken(&self) -> bool {
        self.seat.is_taken()
    }

    /// Ends a sleep in the seat, if there is one.
    pub(crate) fn nudge(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.notifier.notify();
        }
    }

    /// Parks until woken, or until the seat is free.
    pub(crate) fn park(&self, parker: &Arc<Parker>) {
        self.seat.wait(parker);
    }

    /// This thread goes to run something of the application's, maybe for long: a parked one is told when the seat is free, or
    /// tasks are ready.
    pub(crate) fn offer_seat(&self) {
        if self.has_tasks() {
            self.seat.pass();
        } else {
            self.seat.offer();
        }
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
        self.crowded.load(Ordering::Relaxed)
    }

    /// Says on which processor this rank runs, and looks where its peer does. With two ranks it is cheap to know; with more,
    /// their number decides.
    pub(crate) fn look_around(&self) {
        let Place { board, crowded, .. } = &self.place;
        let Some((board, mine)) = board else { return };
        board.publish_cpu(*mine);
        if board.size() == 2 {
            let cpu = board.cpu_of(*mine);
            let shared = cpu.is_some() && cpu == board.cpu_of(1 - *mine);
            self.crowded.store(*crowded || shared, Ordering::Relaxed);
        }
    }

    /// What waking a sleeper on another processor costs: 26 to 38 µs were measured on virtual machines, where an idle
    /// processor is woken by an interrupt, and as much again until its caches are warm. Twice this is spun at most: longer
    /// than a mebibyte takes to cross and to come back.
    pub(crate) fn wake_cost(&self) -> Duration {
        const WAKE: Duration = Duration::from_micros(100);
        self.settings.spin_max.map_or(WAKE, |spin| spin / 2)
    }
}

impl Shared {
    /// Unlocks, then wakes and drops, and does what programs need done without the lock.
    #[inline]
    fn finish(&self, engine: Guard<'_, Engine>) {
        if engine.core.has_spoils() {
            self.finish_with_spoils(engine);
        }
    }

    #[inline(never)]
    fn finish_with_spoils<'a>(&'a self, mut engine: Guard<'a, Engine>) {
        let (mut wakers, mut garbage) = SPOILS.with(RefCell::take);
        let mut jobs = Vec::new();
        loop {
            mem::swap(&mut wakers, &mut engine.core.wakers);
            mem::swap(&mut garbage, &mut engine.core.garbage);
            // What is left of the last ones goes when the lock is free.
            let over = mem::replace(&mut jobs, mem::take(&mut engine.core.jobs));
            drop(engine);
            drop(over);
            wakers.drain(..).for_each(Waker::wake);
            garbage.clear();
            if jobs.is_empty() {
                break;
            }
            jobs.iter_mut().for_each(Job::run);
            engine = self.engine.lock();
            jobs.iter_mut().for_each(|job| engine.done(job));
            self.nudge(); // who sleeps may have more to look at now
        }
        SPOILS.set((wakers, garbage));
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
        lock(&self.tasks).push_back(task);
        self.tasks_len.fetch_add(1, Ordering::SeqCst);
        self.nudge();
        self.seat.pass();
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

/// Looks at a word that another processor is about to write; half a microsecond when it does not.
const LOOKS: u32 = 300;
/// Times that a short collective gives its processor away before it lets go of the thread: with four ranks to a processor,
/// each of them runs some times.
const YIELDS: u32 = 16;

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

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
