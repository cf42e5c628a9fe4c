//! What a [`HookDriver`](super::HookDriver) does to the traffic that passes through it.

use std::{collections::BTreeMap, fmt, ops::Range};

use super::HookTap;
use crate::{driver::WorldRank, random::SeededRandom};

/// Faults, scripts and traces for one [`HookDriver`](super::HookDriver). The default only counts.
#[derive(Default)]
pub struct HookPlan {
    pub(super) faults: HookFaults,
    pub(super) tap: HookTap,
    fixed: BTreeMap<(WorldRank, u64), HookAction>,
    script: Option<HookScript>,
}

type HookScript = Box<dyn FnMut(&HookMessage<'_>) -> HookAction + Send>;

/// Random faults. They apply to messages as they are posted; one-sided commands can only be refused (`full`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookFaults {
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

/// An outgoing message, as seen by a [script](HookPlan::script).
#[derive(Clone, Copy, Debug)]
pub struct HookMessage<'a> {
    /// Receiver of the message.
    pub to: WorldRank,
    /// Messages to that peer before this one, including lost ones but not refused ones.
    pub nth: u64,
    /// Header of the message.
    pub header: &'a [u8],
    /// Body of the message.
    pub body: &'a [u8],
}

/// Faults of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookAction {
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

impl HookPlan {
    /// Returns a plan that only counts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds random faults.
    #[must_use]
    pub fn faults(self, faults: HookFaults) -> Self {
        Self { faults, ..self }
    }

    /// Applies `action` once, to message number `nth` (from 0) to `to`.
    #[must_use]
    pub fn nth(mut self, to: WorldRank, nth: u64, action: HookAction) -> Self {
        self.fixed.insert((to, nth), action);
        self
    }

    /// Drops message number `nth` (from 0) to `to`.
    #[must_use]
    pub fn drop_nth(self, to: WorldRank, nth: u64) -> Self {
        self.nth(to, nth, HookAction::Drop)
    }

    /// Asks `script` about every message for which there is no [`nth`](Self::nth). If it refuses a message with
    /// [`HookAction::Full`], it is asked again about the same message.
    #[must_use]
    pub fn script(
        self,
        script: impl FnMut(&HookMessage<'_>) -> HookAction + Send + 'static,
    ) -> Self {
        Self {
            script: Some(Box::new(script)),
            ..self
        }
    }

    /// Records all traffic. Read it through [`HookDriver::tap`](super::HookDriver::tap).
    #[must_use]
    pub fn record(self) -> Self {
        self.tap.record_all();
        self
    }

    /// Calls `observer` for all traffic, on the thread that uses the driver.
    #[must_use]
    pub fn observe(self, observer: impl FnMut(&super::TrafficEvent) + Send + 'static) -> Self {
        self.tap.observe(Box::new(observer));
        self
    }

    /// Returns true if messages to a peer can be reordered.
    pub(super) fn can_reorder(&self) -> bool {
        self.faults.reorder > 0
    }

    /// Returns true if messages can be lost or duplicated.
    pub(super) fn can_lose(&self) -> bool {
        let fixed = self
            .fixed
            .values()
            .any(|action| matches!(action, HookAction::Drop | HookAction::Duplicate));
        self.faults.drop > 0.0 || self.faults.duplicate > 0.0 || fixed || self.script.is_some()
    }

    /// Decides what happens to this message.
    pub(super) fn choose_action(
        &mut self,
        message: &HookMessage<'_>,
        random: &mut SeededRandom,
    ) -> HookAction {
        let scripted = match self.fixed.remove(&(message.to, message.nth)) {
            Some(action) => action,
            None => self
                .script
                .as_mut()
                .map_or(HookAction::Pass, |script| script(message)),
        };
        match scripted {
            HookAction::Pass => self.faults.choose_action(random),
            action => action,
        }
    }
}

impl HookFaults {
    fn choose_action(&self, random: &mut SeededRandom) -> HookAction {
        if random.chance(self.full) {
            HookAction::Full
        } else if random.chance(self.drop) {
            HookAction::Drop
        } else if random.chance(self.duplicate) {
            HookAction::Duplicate
        } else {
            HookAction::Pass
        }
    }

    /// Returns the number of turns for which a message is held.
    pub(super) fn hold_turns(&self, random: &mut SeededRandom) -> u64 {
        // A message must wait for others if they are to overtake it.
        random.within(self.delay.clone()) + random.within(0..u64::from(self.reorder) + 1)
    }
}

impl From<HookFaults> for HookPlan {
    fn from(faults: HookFaults) -> Self {
        Self::new().faults(faults)
    }
}

impl fmt::Debug for HookPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plan = f.debug_struct("HookPlan");
        plan.field("faults", &self.faults)
            .field("fixed", &self.fixed)
            .field("script", &self.script.is_some())
            .finish()
    }
}
