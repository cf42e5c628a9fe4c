//! Futures that sleep until a deadline.

use std::{
    collections::BTreeMap,
    task::{Poll, Waker},
};

use super::EngineCore;
use crate::{clock::ClockTime, reactor::TimerId};

/// Identifies one sleeping future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SleeperId(u32);

/// All sleeping futures.
#[derive(Default)]
pub(super) struct SleeperTable {
    asleep: BTreeMap<SleeperId, (TimerId, Option<Waker>)>,
    made: u32,
    /// True once there are no turns any more, so that no timer can expire.
    ended: bool,
}

impl SleeperTable {
    pub(super) fn are_waited_for(&self) -> bool {
        self.asleep.values().any(|(_, waker)| waker.is_some())
    }
}

/// Least timer key of sleepers. Smaller keys are those of operations, whose slots never become that large.
pub(super) const KEYS: u64 = (u32::MAX as u64) << 32;

impl EngineCore {
    pub(crate) fn fall_asleep(&mut self, deadline: ClockTime) -> SleeperId {
        let sleeper = SleeperId(self.sleepers.made);
        self.sleepers.made = self.sleepers.made.wrapping_add(1);
        if self.sleepers.ended {
            return sleeper; // it is ready immediately
        }
        let timer = self
            .p2p
            .common
            .timers
            .insert(deadline, KEYS | u64::from(sleeper.0));
        self.sleepers.asleep.insert(sleeper, (timer, None));
        sleeper
    }

    /// Returns ready once the deadline has passed.
    pub(crate) fn poll_sleeper(&mut self, sleeper: SleeperId, waker: &Waker) -> Poll<()> {
        let Some((_, place)) = self.sleepers.asleep.get_mut(&sleeper) else {
            return Poll::Ready(());
        };
        if place.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            let before = place.replace(waker.clone());
            self.p2p.common.let_go(before);
        }
        Poll::Pending
    }

    /// Removes a sleeper whose future was dropped.
    pub(crate) fn wake_sleeper(&mut self, sleeper: SleeperId) {
        if let Some((timer, waker)) = self.sleepers.asleep.remove(&sleeper) {
            self.p2p.common.timers.cancel(timer);
            self.p2p.common.let_go(waker);
        }
    }

    /// Wakes all sleepers, because the runtime has ended. Later ones are ready immediately.
    pub(crate) fn end_sleepers(&mut self) {
        self.sleepers.ended = true;
        let asleep = std::mem::take(&mut self.sleepers.asleep);
        let wakers = asleep.into_values().filter_map(|(_, waker)| waker);
        self.p2p.common.wakers.extend(wakers);
    }

    /// Wakes a sleeper whose deadline has passed.
    pub(super) fn expire_sleeper(&mut self, key: u64) {
        let sleeper = SleeperId(u32::try_from(key & u64::from(u32::MAX)).unwrap_or_default());
        if let Some((_, waker)) = self.sleepers.asleep.remove(&sleeper) {
            self.p2p.common.wakers.extend(waker);
        }
    }
}
