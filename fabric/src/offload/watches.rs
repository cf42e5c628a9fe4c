//! Thresholds that a rank waits for.

use super::{LocalCounter, counter::NEVER_REACHED};
use crate::driver::CommandToken;

/// Counters that a rank's driver was asked to watch. A check costs a load for each of them, and nothing if there are none.
#[derive(Debug, Default)]
pub(crate) struct ThresholdWatches {
    watched: Vec<ThresholdWatch>,
}

#[derive(Debug)]
struct ThresholdWatch {
    counter: LocalCounter,
    threshold: u64,
    token: CommandToken,
}

impl ThresholdWatches {
    pub(crate) const fn new() -> Self {
        Self {
            watched: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, counter: &LocalCounter, threshold: u64, token: CommandToken) {
        let watched = ThresholdWatch {
            counter: counter.clone(),
            threshold,
            token,
        };
        self.watched.push(watched);
        self.wake_for(counter);
    }

    /// Notes that the owner has added to a counter itself, so that peers have less to add until it must be woken.
    pub(crate) fn owner_counted(&self, counter: &LocalCounter) {
        self.wake_for(counter);
    }

    /// Removes a watch.
    pub(crate) fn remove(&mut self, token: CommandToken) {
        if let Some(at) = self
            .watched
            .iter()
            .position(|watched| watched.token == token)
        {
            self.take(at);
        }
    }

    /// Returns true if no counter is watched.
    pub(crate) const fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Returns true if any watched counter matches.
    pub(crate) fn watches_any(&self, which: impl Fn(&LocalCounter) -> bool) -> bool {
        self.watched.iter().any(|watched| which(&watched.counter))
    }

    /// Removes and returns a watch whose threshold is reached.
    pub(crate) fn pop_reached(&mut self) -> Option<CommandToken> {
        let at = self.watched.iter().position(ThresholdWatch::is_reached)?;
        Some(self.take(at))
    }

    /// Returns true if the threshold of any watch is reached.
    #[inline]
    pub(crate) fn is_reached(&self) -> bool {
        self.watched.iter().any(ThresholdWatch::is_reached)
    }

    /// Removes a watch. The others stay in order, so that thresholds reached at the same time are reported in the order of
    /// watching.
    fn take(&mut self, at: usize) -> CommandToken {
        let ThresholdWatch { counter, token, .. } = self.watched.remove(at);
        self.wake_for(&counter);
        token
    }

    /// Makes a counter wake its owner for the least of its thresholds.
    fn wake_for(&self, counter: &LocalCounter) {
        let same = self
            .watched
            .iter()
            .filter(|watched| watched.counter.is_same(counter));
        let least = same.map(|watched| watched.threshold).min();
        counter.set_wake_threshold(least.unwrap_or(NEVER_REACHED));
    }
}

impl ThresholdWatch {
    #[inline]
    fn is_reached(&self) -> bool {
        self.counter.value() >= self.threshold
    }
}
