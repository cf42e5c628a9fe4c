//! Counters and the operations that wait for them.

use std::collections::BTreeMap;

use crate::interface::NiCommand;

/// Value of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the specification's pair")]
pub struct SoftCtValue {
    /// Successes, or their bytes.
    pub success: u64,
    /// Failures.
    pub failure: u64,
}

impl SoftCtValue {
    /// Returns the sum of successes and failures, which is compared with the thresholds of triggered operations.
    #[must_use]
    pub const fn sum(self) -> u64 {
        self.success.saturating_add(self.failure)
    }

    /// Returns true if this is a valid increment: the specification allows successes or failures, not both.
    pub(crate) const fn is_increment(self) -> bool {
        self.success == 0 || self.failure == 0
    }

    /// Returns true if a wait for `successes` ends: when they are reached, or on the first failure, after which they may never
    /// be.
    #[must_use]
    pub const fn ends_wait(self, successes: u64) -> bool {
        self.success >= successes || self.failure > 0
    }
}

/// A counter and the operations it triggers.
#[derive(Debug, Default)]
pub(crate) struct SoftCounter {
    pub(crate) count: SoftCtValue,
    /// Operations by threshold, then by the order in which they were posted.
    waiting: BTreeMap<(u64, u64), NiCommand>,
    posted: u64,
}

impl SoftCounter {
    /// Adds to the counter, and wraps on overflow: a counter that is never reset must not stop.
    pub(crate) const fn add(&mut self, by: SoftCtValue) {
        self.count.success = self.count.success.wrapping_add(by.success);
        self.count.failure = self.count.failure.wrapping_add(by.failure);
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn post(&mut self, threshold: u64, command: NiCommand) {
        self.waiting.insert((threshold, self.posted), command);
        self.posted += 1;
    }

    /// Removes and returns the next operation whose threshold is reached.
    pub(crate) fn fire(&mut self) -> Option<NiCommand> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= self.count.sum()).then(|| first.remove())
    }

    pub(crate) fn cancel(&mut self) {
        self.waiting.clear();
    }
}
