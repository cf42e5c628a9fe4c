//! Counts what drives a runtime besides the agent, and supports futures polled by a foreign executor, which does not
//! drive the runtime.
//!
//! Such a poll makes turns itself for a moment, because an answer from another processor usually arrives within that
//! time, and waking a thread takes twenty times as long. If no answer arrives, the poll notifies whatever drives the
//! runtime. If nothing drives it, the poll sets up a [`ProgressWatchdog`].

use std::{
    cell::Cell,
    io::Write,
    mem,
    sync::{
        Mutex,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::Waker,
};

use super::{RuntimeShared, contain_panic, lock};
use crate::{engine::Engine, executor, reactor::ProgressWatchdog, settings::ProgressMode};

/// Threads and tasks that make turns.
#[derive(Debug, Default)]
pub(crate) struct TurnMakers {
    /// Number of threads in `block_on`.
    threads: AtomicU32,
    /// Number of threads in `block_on` that look for events: they neither poll, run tasks nor sleep.
    waiting: AtomicU32,
    /// Number of tasks on tokio.
    tasks: AtomicU32,
    /// Number of polls by foreign executors that found nothing.
    waits: AtomicU32,
    pub(crate) lookout: ProgressWatchdog,
    /// Futures that wait for a task, polled where nothing runs tasks: their threads run the tasks.
    helpers: Mutex<Vec<Waker>>,
    /// True once the program was warned that no task on tokio drives the runtime, or once a task does.
    told: AtomicBool,
}

/// Guard: a thread or task is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct TurnMakerGuard<'a>(&'a AtomicU32);

impl TurnMakers {
    /// Counts the calling thread as one in `block_on`.
    pub(crate) fn thread(&self) -> TurnMakerGuard<'_> {
        TurnMakerGuard::new(&self.threads)
    }

    /// Counts the calling thread, which is in `block_on`, as one that waits.
    pub(crate) fn waiting_thread(&self) -> TurnMakerGuard<'_> {
        TurnMakerGuard::new(&self.waiting)
    }

    /// Counts a task on tokio that drives the runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn task(&self) -> TurnMakerGuard<'_> {
        self.told.store(true, SeqCst);
        TurnMakerGuard::new(&self.tasks)
    }

    /// Returns a count that changes when an operation waits that the driving task may not know of.
    #[cfg(feature = "tokio")]
    pub(crate) fn wait_count(&self) -> u32 {
        self.waits.load(SeqCst)
    }

    /// Returns true if anything drives the runtime.
    pub(crate) fn is_driven(&self) -> bool {
        self.has_threads() || self.has_tasks()
    }

    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks.load(SeqCst) > 0
    }

    /// Records that the runtime closes, and that its driving task may have ended.
    pub(super) fn end(&self) {
        self.told.store(true, SeqCst);
    }

    fn has_threads(&self) -> bool {
        self.threads.load(SeqCst) > 0
    }

    /// Returns the number of threads in `block_on` that wait.
    pub(crate) fn waiting_threads(&self) -> u32 {
        self.waiting.load(Relaxed)
    }
}

impl<'a> TurnMakerGuard<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for TurnMakerGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl RuntimeShared {
    /// Returns true if this thread may make turns although it is not in `block_on`.
    pub(super) fn may_turn_foreign(&self) -> bool {
        self.host.is_none() && !executor::is_progress_paused()
    }

    /// Returns how many turns a poll by a foreign executor makes, and whether a sleeper must be notified of them.
    #[cold]
    pub(super) fn foreign_poll_turns(&self, engine: &mut Engine, short: u32) -> (u32, bool) {
        if !self.may_turn_foreign() || self.drivers.has_threads() {
            return (0, false);
        }
        let mut disturbed = false;
        if engine.watch.is_guarded() {
            if self.seat.is_taken() {
                return (0, false);
            }
            // A task on tokio sleeps. It will be notified of the turns, and handle what they leave.
            engine.watch.wake_up();
            disturbed = true;
        }
        disturbed |= engine.watch.count_turn();
        let is_worth_it = short > 1 && VAIN.get() < VAIN_MAX;
        (if is_worth_it { short * LONGER } else { short }, disturbed)
    }

    /// Records that a poll by a foreign executor found its result.
    #[cold]
    pub(super) fn record_foreign_ready(&self) {
        VAIN.set(0);
    }

    /// Records that a poll by a foreign executor is pending. Must be called without a lock.
    #[cold]
    pub(crate) fn record_foreign_pending(&self) {
        if !self.may_turn_foreign() {
            return;
        }
        VAIN.set(VAIN.get().saturating_add(1));
        if self.drivers.has_threads() {
            return;
        }
        if self.drivers.has_tasks() {
            self.drivers.waits.fetch_add(1, SeqCst);
            self.seat.wake_next();
        } else if !self.agent.is_started() {
            self.drivers.lookout.set_up();
        } else if !self.is_seat_taken() {
            self.agent.check_now();
        }
    }
}

impl RuntimeShared {
    /// Runs ready tasks on this thread, which waits for one, if nothing else runs tasks. `waker` is woken when other
    /// tasks become ready. Returns true if any task ran.
    #[cold]
    pub(crate) fn run_tasks_foreign(&self, waker: &Waker) -> bool {
        if !self.may_turn_foreign() || self.drivers.is_driven() {
            return false;
        }
        let mut helpers = lock(&self.drivers.helpers);
        if !helpers.iter().any(|known| known.will_wake(waker)) {
            helpers.push(waker.clone());
        }
        drop(helpers);
        if !self.has_tasks() || RUNS.replace(true) {
            return false; // inside a task: the code that runs it will run the others
        }
        executor::run_tasks(self);
        RUNS.set(false);
        true
    }

    /// Wakes the futures that help to run tasks, because a task is ready.
    pub(super) fn wake_task_helpers(&self) {
        if self.drivers.is_driven() {
            return;
        }
        let helpers = mem::take(&mut *lock(&self.drivers.helpers));
        helpers
            .into_iter()
            .for_each(|waker| contain_panic(|| waker.wake()));
    }

    /// Called when a thread in `block_on` is about to sleep. Warns once if a task on tokio should drive the runtime but
    /// does not exist.
    pub(crate) fn warn_of_tokio(&self) {
        if self.settings.progress != ProgressMode::Tokio || self.drivers.told.swap(true, SeqCst) {
            return;
        }
        let line = format!(
            "ripstop: rank {}: RIPSTOP_PROGRESS=tokio, and no task drives this runtime, so no operation progresses while \
             this rank computes: spawn `runtime.drive_on_tokio()` on tokio, or unset the variable\n",
            self.place.rank
        );
        // A failed write is ignored, because the warning is only a hint.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

thread_local! {
    /// True while this thread runs tasks for a future that waits for one.
    static RUNS: Cell<bool> = const { Cell::new(false) };
    /// Number of consecutive polls that have made turns without a result.
    static VAIN: Cell<u32> = const { Cell::new(0) };
}

/// After this many polls without a result, peers do not answer immediately. Then a poll makes no more turns than inside
/// `block_on`.
const VAIN_MAX: u32 = 3;

/// Factor by which a poll makes more turns than inside `block_on`: about the time that it takes to wake a thread.
const LONGER: u32 = 10;
