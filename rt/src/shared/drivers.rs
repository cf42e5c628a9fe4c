//! What drives the runtime besides the agent, and futures that are polled where nothing does: by an executor that knows nothing
//! of this runtime.
//!
//! Such a poll makes turns by itself for a moment, as an answer from another processor comes within one mostly, and a thread
//! that is woken instead takes twenty times as long. When that was in vain, whatever drives the runtime is told that something
//! waits; and where nothing drives it, a [`Lookout`] is set up.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst},
};

use super::Shared;
use crate::{engine::Engine, executor, reactor::Lookout};

/// Who makes turns.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    /// Threads in `block_on`.
    threads: AtomicUsize,
    /// Tasks on tokio.
    tasks: AtomicUsize,
    /// So often a poll elsewhere was in vain.
    waits: AtomicU32,
    pub(crate) lookout: Lookout,
}

/// Until it is dropped, something drives the runtime.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a AtomicUsize);

impl Drivers {
    /// The calling thread is in `block_on`.
    pub(crate) fn thread(&self) -> Counted<'_> {
        Counted::new(&self.threads)
    }

    /// A task on tokio drives the runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn task(&self) -> Counted<'_> {
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

    fn has_threads(&self) -> bool {
        self.threads.load(SeqCst) > 0
    }
}

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
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

thread_local! {
    /// Polls in a row that have made turns in vain.
    static VAIN: Cell<u32> = const { Cell::new(0) };
}

/// After so many, peers do not answer at once, and turns are made for no longer than in `block_on`, which goes on with them.
const VAIN_MAX: u32 = 3;

/// So many times longer than in `block_on`: about as long as it takes to wake a thread.
const LONGER: u32 = 10;
