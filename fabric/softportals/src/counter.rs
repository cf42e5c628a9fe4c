//! Counters, and the operations that wait for them.

use std::collections::BTreeMap;

use crate::interface::Command;

/// What a counter has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the specification's pair")]
pub struct Count {
    /// Successes, or their bytes.
    pub success: u64,
    /// Failures.
    pub failure: u64,
}

impl Count {
    /// What thresholds of triggered operations are compared with.
    #[must_use]
    pub const fn sum(self) -> u64 {
        self.success.saturating_add(self.failure)
    }

    /// Whether it may be added: successes or failures, as the specification has it, not both at once.
    pub(crate) const fn is_increment(self) -> bool {
        self.success == 0 || self.failure == 0
    }

    /// Whether a wait for so many successes ends: when they are there, or with the first failure, which may mean that they never
    /// will be.
    #[must_use]
    pub const fn ends_wait(self, successes: u64) -> bool {
        self.success >= successes || self.failure > 0
    }
}

/// A count, and what it sets off.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) count: Count,
    /// By threshold, then in the order in which they were posted.
    waiting: BTreeMap<(u64, u64), Command>,
    posted: u64,
}

impl Counter {
    /// Wraps, as counters that are never set back have to.
    pub(crate) const fn add(&mut self, by: Count) {
        self.count.success = self.count.success.wrapping_add(by.success);
        self.count.failure = self.count.failure.wrapping_add(by.failure);
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn post(&mut self, threshold: u64, command: Command) {
        self.waiting.insert((threshold, self.posted), command);
        self.posted += 1;
    }

    /// The next operation whose threshold is reached.
    pub(crate) fn fire(&mut self) -> Option<Command> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= self.count.sum()).then(|| first.remove())
    }

    pub(crate) fn cancel(&mut self) {
        self.waiting.clear();
    }
}
