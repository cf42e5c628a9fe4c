//! What a [`Hook`](super::Hook) does to the traffic that passes it.

use std::{collections::BTreeMap, fmt, ops::Range};

use super::Tap;
use crate::{driver::Peer, random::Random};

/// Faults, scripts and traces for one [`Hook`](super::Hook). The default does nothing but count.
#[derive(Default)]
pub struct Plan {
    pub(super) faults: Faults,
    pub(super) tap: Tap,
    fixed: BTreeMap<(Peer, u64), Action>,
    script: Option<Script>,
}

type Script = Box<dyn FnMut(&Outgoing<'_>) -> Action + Send>;

/// Faults by chance. Each applies to messages as they are posted; one-sided commands are only refused (`full`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// The probability that a message is lost.
    pub drop: f64,
    /// The probability that a message arrives twice.
    pub duplicate: f64,
    /// How many later messages to the same peer may overtake one; 0 keeps the order.
    pub reorder: u32,
    /// How many turns of [`progress`](crate::driver::Driver::progress) a message is held. Alone it keeps the order.
    pub delay: Range<u64>,
    /// The probability that a command is answered with `Full`.
    pub full: f64,
    /// Decides all of the above: the same seed and the same calls give the same faults.
    pub seed: u64,
}

/// A message on its way out, as a [script](Plan::script) sees it.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Where it goes.
    pub to: Peer,
    /// How many messages went to that peer before it, lost ones included and refused ones not.
    pub nth: u64,
    /// Its header.
    pub header: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
}

/// What happens to one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// What chance decides.
    Pass,
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It is held for so many turns, and later messages to the same peer wait behind it.
    Delay(u64),
    /// The command comes back as `Full`.
    Full,
}

impl Plan {
    /// Nothing but counting.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Faults by chance.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Does `action` to the `nth` message (from 0) to `to`, once.
    #[must_use]
    pub fn nth(mut self, to: Peer, nth: u64, action: Action) -> Self {
        self.fixed.insert((to, nth), action);
        self
    }

    /// Loses the `nth` message (from 0) to `to`.
    #[must_use]
    pub fn drop_nth(self, to: Peer, nth: u64) -> Self {
        self.nth(to, nth, Action::Drop)
    }

    /// Asks `script` about every message that no [`nth`](Self::nth) is about. It is asked again about a message that it
    /// refused with [`Action::Full`].
    #[must_use]
    pub fn script(self, script: impl FnMut(&Outgoing<'_>) -> Action + Send + 'static) -> Self {
        Self {
            script: Some(Box::new(script)),
            ..self
        }
    }

    /// Records all that passes; read it through [`Hook::tap`](super::Hook::tap).
    #[must_use]
    pub fn record(self) -> Self {
        self.tap.record_all();
        self
    }

    /// Calls `observer` for all that passes, on the thread that uses the driver.
    #[must_use]
    pub fn observe(self, observer: impl FnMut(&super::Passed) + Send + 'static) -> Self {
        self.tap.observe(Box::new(observer));
        self
    }

    /// Whether messages to a peer can change places.
    pub(super) fn reorders(&self) -> bool {
        self.faults.reorder > 0
    }

    /// Whether messages can be lost or come twice.
    pub(super) fn loses(&self) -> bool {
        let fixed = self
            .fixed
            .values()
            .any(|action| matches!(action, Action::Drop | Action::Duplicate));
        self.faults.drop > 0.0 || self.faults.duplicate > 0.0 || fixed || self.script.is_some()
    }

    /// What happens to this message.
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

    /// Turns that a message is held.
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
