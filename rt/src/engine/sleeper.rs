//! Futures that wait for a time.

use std::{
    collections::BTreeMap,
    task::{Poll, Waker},
};

use super::Core;
use crate::{clock::Time, reactor::TimerId};

/// Names one sleeping future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sleeper(u32);

/// Those that sleep.
#[derive(Default)]
pub(super) struct Sleepers {
    asleep: BTreeMap<Sleeper, (TimerId, Option<Waker>)>,
    made: u32,
    /// There are no turns any more in which the time of any could come.
    ended: bool,
}

impl Sleepers {
    pub(super) fn are_waited_for(&self) -> bool {
        self.asleep.values().any(|(_, waker)| waker.is_some())
    }
}

/// Timer keys from here on are sleepers; below are operations, whose slots never get that high.
pub(super) const KEYS: u64 = (u32::MAX as u64) << 32;

impl Core {
    pub(crate) fn fall_asleep(&mut self, deadline: Time) -> Sleeper {
        let sleeper = Sleeper(self.sleepers.made);
        self.sleepers.made = self.sleepers.made.wrapping_add(1);
        if self.sleepers.ended {
            return sleeper; // it is over at once
        }
        let timer = self.timers.insert(deadline, KEYS | u64::from(sleeper.0));
        self.sleepers.asleep.insert(sleeper, (timer, None));
        sleeper
    }

    /// Ready when its time has come.
    pub(crate) fn poll_sleeper(&mut self, sleeper: Sleeper, waker: &Waker) -> Poll<()> {
        let Some((_, place)) = self.sleepers.asleep.get_mut(&sleeper) else {
            return Poll::Ready(());
        };
        if place.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            let before = place.replace(waker.clone());
            self.let_go(before);
        }
        Poll::Pending
    }

    /// The future is gone.
    pub(crate) fn wake_sleeper(&mut self, sleeper: Sleeper) {
        if let Some((timer, waker)) = self.sleepers.asleep.remove(&sleeper) {
            self.timers.cancel(timer);
            self.let_go(waker);
        }
    }

    /// The runtime is over: all are ready, also those to come.
    pub(crate) fn end_sleepers(&mut self) {
        self.sleepers.ended = true;
        let asleep = std::mem::take(&mut self.sleepers.asleep);
        let wakers = asleep.into_values().filter_map(|(_, waker)| waker);
        self.wakers.extend(wakers);
    }

    /// Its time has come.
    pub(super) fn expire_sleeper(&mut self, key: u64) {
        let sleeper = Sleeper(u32::try_from(key & u64::from(u32::MAX)).unwrap_or_default());
        if let Some((_, waker)) = self.sleepers.asleep.remove(&sleeper) {
            self.wakers.extend(waker);
        }
    }
}
