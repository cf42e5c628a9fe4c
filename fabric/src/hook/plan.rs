//! What a [`Hook`](super::Hook) does to the traffic that passes through it.

use std::{collections::BTreeMap, fmt, ops::Range};

use super::Tap;
use crate::{driver::Peer, random::Random};

/// Faults, scripts and traces for one [`Hook`](super::Hook). The default only counts.
#[derive(Default)]
pub struct Plan {
    pub(super) faults: Faults,
    pub(super) tap: Tap,
    fixed: BTreeMap<(Peer, u64), Action>,
    script: Option<Script>,
}

type Script = Box<dyn FnMut(&Outgoing<'_>) -> Action + Send>;

/// Random faults. They apply to messages as they are posted; one-sided commands can only be refused (`full`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a message is lost.
    pub drop: f64,
    /// Probability that a message arrives twice.
    pub duplicate: f64,
    /// Most later messages to the same peer that may overtake a message; 0 keeps the order.
    pub reorder: u32,
    /// Turns of [`progress`](crate::driver::Driver::progress) for which a message is held. Without `reorder`, the order is kept.
    pub delay: Range<u64>,
    /// Probability that a command is answered with `Full`.
    pub full: f64,
    /// Seed of all faults: the same seed and the same calls give the same faults.
    pub seed: u64,
}

/// An outgoing message, as seen by a [script](Plan::script).
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Receiver of the message.
    pub to: Peer,
    /// Messages to that peer before this one, including lost ones but not refused ones.
    pub nth: u64,
    /// Header of the message.
    pub header: &'a [u8],
    /// Body of the message.
    pub body: &'a [u8],
}

/// What happens to one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Whatever the random faults decide.
    Pass,
    /// The message is lost.
    Drop,
    /// The message arrives twice.
    Duplicate,
    /// The message is held for this many turns, and later messages to the same peer wait behind it.
    Delay(u64),
    /// The command is returned as `Full`.
    Full,
}

impl Plan {
    /// Returns a plan that only counts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds random faults.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Applies `action` once, to message number `nth` (from 0) to `to`.
    #[must_use]
    pub fn nth(mut self, to: Peer, nth: u64, action: Action) -> Self {
        self.fixed.insert((to, nth), action);
        self
    }

    /// Drops message number `nth` (from 0) to `to`.
    #[must_use]
    pub fn drop_nth(self, to: Peer, nth: u64) -> Self {
        self.nth(to, nth, Action::Drop)
    }

    /// Asks `script` about every message for which there is no [`nth`](Self::nth). If it refuses a message with [`Action::Full`],
    /// it is asked again about the same message.
    #[must_use]
    pub fn script(self, script: impl FnMut(&Outgoing<'_>) -> Action + Send + 'static) -> Self {
        Self {
            script: Some(Box::new(script)),
            ..self
        }
    }

    /// Records all traffic. Read it through [`Hook::tap`](super::Hook::tap).
    #[must_use]
    pub fn record(self) -> Self {
        self.tap.record_all();
        self
    }

    /// Calls `observer` for all traffic, on the thread that uses the driver.
    #[must_use]
    pub fn observe(self, observer: impl FnMut(&super::Passed) + Send + 'static) -> Self {
        self.tap.observe(Box::new(observer));
        self
    }

    /// Returns true if messages to a peer can be reordered.
    pub(super) fn reorders(&self) -> bool {
        self.faults.reorder > 0
    }

    /// Returns true if messages can be lost or duplicated.
    pub(super) fn loses(&self) -> bool {
        let fixed = self
            .fixed
            .values()
            .any(|action| matches!(action, Action::Drop | Action::Duplicate));
        self.faults.drop > 0.0 || self.faults.duplicate > 0.0 || fixed || self.script.is_some()
    }

    /// Decides what happens to this message.
    pub(super) fn judge(&mut self, message: &Outgoing<'_>, random: &mut Random) -> Action {
        let scripted = match self.fixed.remove(&(message.to, message.nth)) {
            Some(action) => action,
            None => self
                .script
                .as_mut()
                .map_or(Action::Pass, |script| script(message)),
        };
        match scripted {
            Action::Pass => self.faults.judge(random),
            action => action,
        }
    }
}

impl Faults {
    fn judge(&self, random: &mut Random) -> Action {
        if random.chance(self.full) {
            Action::Full
        } else if random.chance(self.drop) {
            Action::Drop
        } else if random.chance(self.duplicate) {
            Action::Duplicate
        } else {
            Action::Pass
        }
    }

    /// Returns the number of turns for which a message is held.
    pub(super) fn turns(&self, random: &mut Random) -> u64 {
        // A message must wait for others if they are to overtake it.
        random.within(self.delay.clone()) + random.within(0..u64::from(self.reorder) + 1)
    }
}

impl From<Faults> for Plan {
    fn from(faults: Faults) -> Self {
        Self::new().faults(faults)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plan = f.debug_struct("Plan");
        plan.field("faults", &self.faults)
            .field("fixed", &self.fixed)
            .field("script", &self.script.is_some())
            .finish()
    }
}
