//! Bookkeeping between application threads and the agent: turns, the seat, and sleeping threads.

use crate::clock::ClockTime;

/// State that the agent and the application threads share. The engine's lock guards it, because both hold that lock for
/// a turn anyway.
#[derive(Debug, Default)]
pub(crate) struct SleepWatch {
    /// Turns made by application threads.
    pub(crate) turns: u64,
    /// True while the agent has the seat.
    agent_sits: bool,
    /// True while an application thread sleeps with the driver armed for it.
    ///
    /// A turn of another thread would disarm the driver, and no event would wake the sleeper any more. So other threads
    /// make no turns, and events are left to the sleeper.
    guarded: bool,
    /// True while an application thread or the agent sleeps with the driver armed for it.
    asleep: bool,
    /// Time when the sleeper wakes up if nothing happens before.
    until: Option<ClockTime>,
    /// True while the runtime is closing. The closing thread makes all turns, because it waits for events that wake no
    /// future, so the agent stays out.
    closing: bool,
}

impl SleepWatch {
    /// Counts a turn of an application thread. Returns true if the agent must be notified to leave the seat.
    pub(crate) fn count_turn(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.agent_sits
    }

    /// Records that the runtime closes. Returns true if the agent must be notified to leave the seat.
    pub(crate) fn close(&mut self) -> bool {
        self.closing = true;
        self.agent_sits
    }

    /// Lets the agent take or keep the seat, unless the runtime closes, or application threads made turns since the
    /// agent saw `seen` of them. Returns true if it may.
    pub(crate) fn let_agent_sit(&mut self, seen: u64) -> bool {
        self.agent_sits = self.turns == seen && !self.closing;
        self.agent_sits
    }

    /// Records that a thread is about to sleep on the armed driver, until `until` at the latest. If the sleeper is the
    /// agent, turns stay allowed, because a turn notifies the agent.
    pub(crate) fn fall_asleep(&mut self, until: Option<ClockTime>) {
        self.guarded = !self.agent_sits;
        self.asleep = true;
        self.until = until;
    }

    /// Returns true if the sleeping thread would wake up too late for a deadline.
    pub(crate) fn oversleeps(&self, due: Option<ClockTime>) -> bool {
        let oversleeps = |due| self.until.is_none_or(|until| due < until);
        self.asleep && due.is_some_and(oversleeps)
    }

    pub(crate) fn wake_up(&mut self) {
        (self.guarded, self.asleep) = (false, false);
    }

    /// Returns true if a thread sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Returns true if turns are left to a sleeping thread.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded
    }

    pub(crate) fn leave(&mut self) {
        self.agent_sits = false;
    }
}
