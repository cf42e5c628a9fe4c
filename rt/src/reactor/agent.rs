//! The progress agent: a thread that takes the seat while the application computes.
//!
//! The agent checks once per tick whether application threads still make turns, so it costs nothing for an application
//! that is often in `await`. After a whole tick without a turn, it takes the seat and sleeps on the driver's events
//! like an application thread. While an application thread sleeps in the seat, the agent has nothing to check, and
//! sleeps without a tick until it is woken.
//!
//! If the agent found work while the application computed, it will probably do so again soon. So its ticks are short
//! for a while. With short ticks, the agent also takes the seat from an application that is in `await` less often than
//! once per short tick.

use std::{
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    executor::without_turns,
    shared::RuntimeShared,
    sync::{self, AtomicBool, Thread},
    threads::processor_nanos,
};

/// Length of a tick: so long that it costs almost nothing (one short wake-up per millisecond), and short compared with
/// any computation worth overlapping.
const TICK: Duration = Duration::from_millis(1);

/// Length of a tick with more ranks than processors, where the ticks of all ranks add up on each processor.
const TICK_CROWDED: Duration = Duration::from_millis(4);

/// Number of short ticks in a tick. At this rate, the checks of a rank cost at most 1 % of a processor, and several
/// ranks on one processor cost no more than that each.
const SHORT: u32 = 4;

/// Number of short ticks without work after which the agent returns to long ticks. This is 0.1 s, or 0.4 s on crowded
/// processors, which is longer than most programs compute between two exchanges.
const KEEN: u32 = 400;

/// Handle of the agent for threads that wake and stop it.
#[derive(Debug, Default)]
pub(crate) struct ProgressAgent {
    thread: OnceLock<Thread>,
    /// Thread id in the operating system.
    number: OnceLock<rustix::thread::Pid>,
    /// True if there is work that no application thread will do soon.
    hurried: AtomicBool,
    /// True while the agent sleeps without a tick.
    deep: AtomicBool,
    stopped: AtomicBool,
}

impl ProgressAgent {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts the agent's thread, which ends when the runtime is stopped or dropped.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub(crate) fn start(shared: &Arc<RuntimeShared>) -> std::io::Result<JoinHandle<()>> {
        let weak = Arc::downgrade(shared);
        let tick = if shared.place.crowded {
            TICK_CROWDED
        } else {
            TICK
        };
        thread::Builder::new()
            .name(agent_name(shared.place.rank.0))
            .stack_size(256 << 10)
            .spawn(move || without_turns(|| run(&weak, tick)))
    }

    /// Registers the calling thread as the agent's.
    pub(super) fn begin(&self) {
        let first = self.thread.set(sync::current());
        debug_assert!(first.is_ok(), "an agent is started once");
        let _first = self.number.set(rustix::thread::gettid());
    }

    /// Returns true if the agent was started.
    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        self.thread.get().is_some()
    }

    /// Makes the agent check now, and not at its next tick, whether application threads make turns.
    pub(crate) fn check_now(&self) {
        if let Some(thread) = self.thread.get()
            && !self.hurried.swap(true, Ordering::SeqCst)
        {
            thread.unpark();
        }
    }

    /// Returns the processor time that the agent has used; `None` without an agent, or if the system does not report
    /// it.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let number = self.number.get()?.as_raw_nonzero().get();
        let nanos = processor_nanos("self", number.cast_unsigned())?;
        Some(Duration::from_nanos(nanos))
    }

    /// Wakes the agent because an application thread leaves the seat, so that the agent checks for turns again.
    pub(crate) fn wake_agent(&self) {
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

    /// Sleeps until woken or stopped, if the seat is taken.
    pub(super) fn sleep_deep(&self, is_seat_taken: impl FnOnce() -> bool) {
        self.deep.store(true, Ordering::SeqCst);
        // A thread that leaves the seat after this store sees it. If the seat was left before, the next check finds it
        // free.
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

/// Returns the name of the agent's thread.
pub(crate) fn agent_name(rank: u32) -> String {
    format!("ripstop-{rank}")
}

fn run(shared: &Weak<RuntimeShared>, tick: Duration) {
    if let Some(shared) = shared.upgrade() {
        shared.agent.begin();
    }
    let mut seen = None;
    let mut pace = AgentPace { tick, keen: 0 };
    loop {
        // The agent holds no strong reference while parked, so that the runtime can be dropped meanwhile.
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

/// Decides how soon the agent checks again.
struct AgentPace {
    tick: Duration,
    /// Remaining short ticks.
    keen: u32,
}

impl AgentPace {
    fn next(&mut self) -> Duration {
        if self.keen == 0 {
            return self.tick;
        }
        self.keen -= 1;
        self.tick / SHORT
    }
}

/// Called after a whole tick without a turn of the application, which computes, or sleeps in the seat. Returns true if
/// there was work to do.
fn look_after(shared: &RuntimeShared, turns: u64) -> bool {
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
        let mut pace = AgentPace {
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
