//! What drives the runtime besides the agent, and futures that are polled where nothing does: by an executor that knows nothing
//! of this runtime.
//!
//! Such a poll makes turns by itself for a moment, as an answer from another processor comes within one mostly, and a thread
//! that is woken instead takes twenty times as long. When that was in vain, whatever drives the runtime is told that something
//! waits; and where nothing drives it, a [`Lookout`] is set up.

use std::{
    cell::Cell,
    io::Write,
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    task::Waker,
};

use super::{Shared, contain, lock};
use crate::{engine::Engine, executor, reactor::Lookout, settings::ProgressMode};

/// The threads and tasks that make turns.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    /// Threads in `block_on`.
    threads: AtomicU32,
    /// Tasks on tokio.
    tasks: AtomicU32,
    /// So often a poll elsewhere was in vain.
    waits: AtomicU32,
    pub(crate) lookout: Lookout,
    /// Futures that wait for a task, polled where nothing runs tasks: they do.
    helpers: Mutex<Vec<Waker>>,
    /// The program has heard that no task on tokio drives the runtime, or one does.
    told: AtomicBool,
}

/// Until it is dropped, something drives the runtime.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a AtomicU32);

impl Drivers {
    /// The calling thread is in `block_on`.
    pub(crate) fn thread(&self) -> Counted<'_> {
        Counted::new(&self.threads)
    }

    /// A task on tokio drives the runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn task(&self) -> Counted<'_> {
        self.told.store(true, SeqCst);
        Counted::new(&self.tasks)
    }

    /// Changes when something waits that whatever drives the runtime may not know of.
    #[cfg(feature = "tokio")]
    pub(crate) fn waits(&self) -> u32 {
        self.waits.load(SeqCst)
    }

    /// Whether anything does.
    pub(crate) fn are_there(&self) -> bool {
        self.has_threads() || self.has_tasks()
    }

    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks.load(SeqCst) > 0
    }

    /// The runtime closes, and whatever drove it may have ended.
    pub(super) fn end(&self) {
        self.told.store(true, SeqCst);
    }

    fn has_threads(&self) -> bool {
        self.threads.load(SeqCst) > 0
    }
}

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Shared {
    /// Whether this thread may make turns though it is not in `block_on`.
    pub(super) fn may_turn_elsewhere(&self) -> bool {
        self.host.is_none() && !executor::is_still()
    }

    /// How many turns a poll elsewhere makes, and whether a sleeper must be told of them.
    #[cold]
    pub(super) fn patience_elsewhere(&self, engine: &mut Engine, short: u32) -> (u32, bool) {
        if !self.may_turn_elsewhere() || self.drivers.has_threads() {
            return (0, false);
        }
        let mut disturbed = false;
        if engine.watch.is_guarded() {
            if self.seat.is_taken() {
                return (0, false);
            }
            // A task on tokio sleeps. It hears of the turns, and takes care of what is left by them.
            engine.watch.wake_up();
            disturbed = true;
        }
        disturbed |= engine.watch.announce();
        let is_worth_it = short > 1 && VAIN.get() < VAIN_MAX;
        (if is_worth_it { short * LONGER } else { short }, disturbed)
    }

    /// A poll elsewhere has found what it looked for.
    #[cold]
    pub(super) fn found_elsewhere(&self) {
        VAIN.set(0);
    }

    /// A poll elsewhere is not ready. Nothing is locked.
    #[cold]
    pub(crate) fn wait_elsewhere(&self) {
        if !self.may_turn_elsewhere() {
            return;
        }
        VAIN.set(VAIN.get().saturating_add(1));
        if self.drivers.has_threads() {
            return;
        }
        if self.drivers.has_tasks() {
            self.drivers.waits.fetch_add(1, SeqCst);
            self.seat.pass();
        } else if !self.agent.is_there() {
            self.drivers.lookout.set_up();
        } else if !self.is_seat_taken() {
            self.agent.hurry();
        }
    }
}

impl Shared {
    /// Where nothing runs tasks, a thread that waits for one does, and is woken when others are ready. Whether any ran.
    #[cold]
    pub(crate) fn run_elsewhere(&self, waker: &Waker) -> bool {
        if !self.may_turn_elsewhere() || self.drivers.are_there() {
            return false;
        }
        let mut helpers = lock(&self.drivers.helpers);
        if !helpers.iter().any(|known| known.will_wake(waker)) {
            helpers.push(waker.clone());
        }
        drop(helpers);
        if !self.has_tasks() || RUNS.replace(true) {
            return false; // in a task, whatever runs that goes on with others
        }
        executor::run_tasks(self);
        RUNS.set(false);
        true
    }

    /// A task is ready.
    pub(super) fn call_helpers(&self) {
        if self.drivers.are_there() {
            return;
        }
        let helpers = mem::take(&mut *lock(&self.drivers.helpers));
        helpers
            .into_iter()
            .for_each(|waker| contain(|| waker.wake()));
    }

    /// A thread in `block_on` is about to sleep: says once if that was to be a task's part.
    pub(crate) fn warn_of_tokio(&self) {
        if self.settings.progress != ProgressMode::Tokio || self.drivers.told.swap(true, SeqCst) {
            return;
        }
        let line = format!(
            "ripstop: rank {}: RIPSTOP_PROGRESS=tokio, and no task drives this runtime, so nothing moves while this rank \
             computes: spawn `runtime.drive_on_tokio()` on tokio, or unset the variable\n",
            self.place.rank
        );
        // That it is not read changes nothing.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

thread_local! {
    /// This thread runs tasks for a future that waits for one.
    static RUNS: Cell<bool> = const { Cell::new(false) };
    /// Polls in a row that have made turns in vain.
    static VAIN: Cell<u32> = const { Cell::new(0) };
}

/// After so many, peers do not answer at once, and turns are made for no longer than in `block_on`, which goes on with them.
const VAIN_MAX: u32 = 3;

/// So many times longer than in `block_on`: about as long as it takes to wake a thread.
const LONGER: u32 = 10;
