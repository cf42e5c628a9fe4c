//! Futures that sleep until a deadline.

use std::{
    collections::BTreeMap,
    panic::Location,
    task::{Poll, Waker},
    time::Duration,
};

use super::EngineCore;
use crate::{clock::ClockTime, reactor::TimerId, view::PublishedSleep};

/// Identifies one sleeping future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SleeperId(u32);

/// What a future sleeps for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepCall {
    pub(crate) duration: Duration,
    /// Source line of the application's call; `None` for a sleep of the runtime itself.
    pub(crate) at: Option<&'static Location<'static>>,
}

/// A sleeping future.
struct Sleeper {
    timer: TimerId,
    call: SleepCall,
    waker: Option<Waker>,
}

/// All sleeping futures.
#[derive(Default)]
pub(super) struct SleeperTable {
    asleep: BTreeMap<SleeperId, Sleeper>,
    made: u32,
    /// True once there are no turns any more, so that no timer can expire.
    ended: bool,
}

impl SleeperTable {
    pub(super) fn are_waited_for(&self) -> bool {
        self.asleep.values().any(|sleeper| sleeper.waker.is_some())
    }

    /// Returns the sleep of the application that began first, if a future awaits one.
    pub(super) fn published(&self) -> Option<PublishedSleep> {
        self.asleep.iter().find_map(|(id, sleeper)| {
            let at = sleeper.call.at.filter(|_| sleeper.waker.is_some())?;
            Some(PublishedSleep {
                number: id.0,
                nanos: u64::try_from(sleeper.call.duration.as_nanos()).unwrap_or(u64::MAX),
                at: format!("{}:{}", at.file(), at.line()),
            })
        })
    }
}

/// Least timer key of sleepers. Smaller keys are those of operations, whose slots never become that large.
pub(super) const KEYS: u64 = (u32::MAX as u64) << 32;

impl EngineCore {
    pub(crate) fn fall_asleep(&mut self, deadline: ClockTime, call: SleepCall) -> SleeperId {
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
        let waker = None;
        let entry = Sleeper { timer, call, waker };
        self.sleepers.asleep.insert(sleeper, entry);
        sleeper
    }

    /// Returns ready once the deadline has passed.
    pub(crate) fn poll_sleeper(&mut self, sleeper: SleeperId, waker: &Waker) -> Poll<()> {
        let Some(entry) = self.sleepers.asleep.get_mut(&sleeper) else {
            return Poll::Ready(());
        };
        let place = &mut entry.waker;
        if place.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            let before = place.replace(waker.clone());
            self.p2p.common.let_go(before);
        }
        Poll::Pending
    }

    /// Removes a sleeper whose future was dropped.
    pub(crate) fn wake_sleeper(&mut self, sleeper: SleeperId) {
        if let Some(entry) = self.sleepers.asleep.remove(&sleeper) {
            self.p2p.common.timers.cancel(entry.timer);
            self.p2p.common.let_go(entry.waker);
        }
    }

    /// Wakes all sleepers, because the runtime has ended. Later ones are ready immediately.
    pub(crate) fn end_sleepers(&mut self) {
        self.sleepers.ended = true;
        let asleep = std::mem::take(&mut self.sleepers.asleep);
        let wakers = asleep.into_values().filter_map(|sleeper| sleeper.waker);
        self.p2p.common.wakers.extend(wakers);
    }

    /// Wakes a sleeper whose deadline has passed.
    pub(super) fn expire_sleeper(&mut self, key: u64) {
        let sleeper = SleeperId(u32::try_from(key & u64::from(u32::MAX)).unwrap_or_default());
        if let Some(entry) = self.sleepers.asleep.remove(&sleeper) {
            self.p2p.common.wakers.extend(entry.waker);
        }
    }
}
