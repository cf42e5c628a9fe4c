//! The progress agent: it takes the seat while the application computes.
//!
//! It looks every tick whether an application still makes turns, so an application that is in and out of `await` pays nothing
//! for it. After a whole tick without a turn it takes the seat and sleeps on the driver's events like anybody else. While an
//! application sleeps in the seat there is nothing to look at, and the agent sleeps without a tick until it is roused.
//!
//! An application that had something moved for it while it computed will soon do so again: for a while then, ticks are short, and
//! one that is in and out of `await` more seldom than that has the agent come and go.

use std::{
    fs,
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    executor::without_turns,
    shared::Shared,
    sync::{self, AtomicBool, Thread},
};

/// Long enough to cost nothing (one short wake-up in a thousand microseconds), short against any computation worth hiding.
const TICK: Duration = Duration::from_millis(1);

/// With more ranks than processors the ticks of all ranks add up on each of them.
const TICK_CROWDED: Duration = Duration::from_millis(4);

/// How many short ticks there are in a tick. As seldom as this the looks of a rank cost a hundredth of a processor at most; of
/// several on one processor, no more than that each.
const SHORT: u32 = 4;

/// So many short ticks pass before an agent that found nothing to do goes back to long ones: a tenth of a second, or four where
/// ranks are crowded, longer than most programs compute between two exchanges.
const KEEN: u32 = 400;

/// The agent, seen by those who rouse and stop it.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    thread: OnceLock<Thread>,
    /// The system's name for it.
    number: OnceLock<rustix::thread::Pid>,
    /// There is work that nobody else will do soon.
    hurried: AtomicBool,
    /// Sleeps without a tick.
    deep: AtomicBool,
    stopped: AtomicBool,
}

impl Agent {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts the thread. It ends when the runtime is stopped or gone.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
        let weak = Arc::downgrade(shared);
        let tick = if shared.place.crowded {
            TICK_CROWDED
        } else {
            TICK
        };
        let name = format!("ripstop-{}", shared.place.rank);
        thread::Builder::new()
            .name(name)
            .stack_size(256 << 10)
            .spawn(move || without_turns(|| run(&weak, tick)))
    }

    /// The calling thread is the agent's.
    pub(super) fn begin(&self) {
        let first = self.thread.set(sync::current());
        debug_assert!(first.is_ok(), "an agent is started once");
        let _first = self.number.set(rustix::thread::gettid());
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.thread.get().is_some()
    }

    /// Has it look now, and not at its next tick, whether somebody makes turns.
    pub(crate) fn hurry(&self) {
        if let Some(thread) = self.thread.get()
            && !self.hurried.swap(true, Ordering::SeqCst)
        {
            thread.unpark();
        }
    }

    /// Processor time that it has had; `None` without an agent, or where the system does not say.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let number = self.number.get()?.as_raw_nonzero();
        let stat = fs::read_to_string(format!("/proc/self/task/{number}/schedstat")).ok()?;
        let nanos = stat.split(' ').next()?.parse().ok()?;
        Some(Duration::from_nanos(nanos))
    }

    /// An application leaves the seat: from now on its turns must be watched again.
    pub(crate) fn rouse(&self) {
        if self.deep.load(Ordering::SeqCst)
            && self.deep.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Sleeps until roused or stopped, if the seat is taken.
    pub(super) fn sleep_deep(&self, is_seat_taken: impl FnOnce() -> bool) {
        self.deep.store(true, Ordering::SeqCst);
        // Whoever leaves the seat after this store sees it; if the seat was left before, the next look finds it free.
        if is_seat_taken() {
            while self.deep.load(Ordering::SeqCst) && !self.is_stopped() {
                sync::park();
            }
        }
        self.deep.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

fn run(shared: &Weak<Shared>, tick: Duration) {
    if let Some(shared) = shared.upgrade() {
        shared.agent.begin();
    }
    let mut seen = None;
    let mut pace = Pace { tick, keen: 0 };
    loop {
        thread::park_timeout(pace.next());
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if shared.agent.is_stopped() {
            return;
        }
        let turns = shared.turns();
        let hurried = shared.agent.hurried.swap(false, Ordering::SeqCst);
        if (hurried || seen == Some(turns)) && look_after(&shared, turns) {
            pace.keen = KEEN;
        }
        seen = Some(turns);
    }
}

/// How soon the agent looks again.
struct Pace {
    tick: Duration,
    /// Short ticks that are left.
    keen: u32,
}

impl Pace {
    fn next(&mut self) -> Duration {
        if self.keen == 0 {
            return self.tick;
        }
        self.keen -= 1;
        self.tick / SHORT
    }
}

/// No application has made a turn for a whole tick: it computes, or it sleeps in the seat. Whether there was something to do.
fn look_after(shared: &Shared, turns: u64) -> bool {
    let events = shared.agent_in_seat(turns);
    if events.is_none() {
        shared.agent.sleep_deep(|| shared.is_seat_taken());
    }
    events > Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_had_something_to_do_looks_more_often_for_a_while() {
        let mut pace = Pace {
            tick: TICK,
            keen: 0,
        };
        assert_eq!(pace.next(), TICK);
        pace.keen = KEEN;
        let while_keen: Duration = (0..KEEN).map(|_| pace.next()).sum();
        assert_eq!(while_keen, TICK / SHORT * KEEN);
        assert_eq!(pace.next(), TICK);
    }
}
