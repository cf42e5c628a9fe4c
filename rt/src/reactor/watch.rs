//! Whether applications make turns, and whether the agent sits.

use crate::clock::Time;

/// How the agent and the applications see each other; guarded by the engine's lock, which both hold for a turn anyway.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Turns made by applications.
    pub(crate) turns: u64,
    /// The agent has the seat.
    agent_sits: bool,
    /// An application is asleep, and the driver armed for it. A turn of another thread would disarm it, and nobody would ever
    /// ring: what comes is the sleeper's.
    guarded: bool,
    /// An application or the agent is asleep, and the driver armed for it.
    asleep: bool,
    /// When it wakes up if nothing happens before.
    until: Option<Time>,
    /// The runtime is closing. Who closes it waits for what no waker tells of, and makes all turns: the agent stays out.
    closing: bool,
}

impl Watch {
    /// An application makes turns. Whether the agent must be told to leave the seat.
    pub(crate) fn announce(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.agent_sits
    }

    /// The runtime closes. Whether the agent must be told to leave the seat.
    pub(crate) fn close(&mut self) -> bool {
        self.closing = true;
        self.agent_sits
    }

    /// The agent sits down, or stays, unless there were turns after the ones that it has seen.
    pub(crate) fn sit(&mut self, seen: u64) -> bool {
        self.agent_sits = self.turns == seen && !self.closing;
        self.agent_sits
    }

    /// Somebody is about to sleep on an armed driver, until then at the latest. The agent is told of turns instead.
    pub(crate) fn fall_asleep(&mut self, until: Option<Time>) {
        self.guarded = !self.agent_sits;
        self.asleep = true;
        self.until = until;
    }

    /// Whether whoever is asleep would come too late for what is due then.
    pub(crate) fn oversleeps(&self, due: Option<Time>) -> bool {
        let oversleeps = |due| self.until.is_none_or(|until| due < until);
        self.asleep && due.is_some_and(oversleeps)
    }

    pub(crate) fn wake_up(&mut self) {
        (self.guarded, self.asleep) = (false, false);
    }

    /// Whether anybody sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Whether turns are left to a sleeper.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded
    }

    pub(crate) fn leave(&mut self) {
        self.agent_sits = false;
    }
}
