//! Ranks that this rank waits for and that have not arrived on the board, each with a deadline.
//!
//! A rank that has arrived has a process, which is watched instead. For a rank that has not, only the time shows a failure.

use std::{collections::BTreeMap, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::epoll::{self, EventData, EventFlags},
    time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
        clock_gettime, timerfd_create, timerfd_settime,
    },
};

/// The ranks that this rank waits for.
#[derive(Debug)]
pub(super) struct AbsentRanks {
    patience: Duration,
    /// Deadline of each rank, on the system's monotonic clock.
    until: BTreeMap<u32, Duration>,
    /// Timer for the earliest deadline, created for the first rank waited for.
    timer: Option<OwnedFd>,
}

impl AbsentRanks {
    pub(super) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            until: BTreeMap::new(),
            timer: None,
        }
    }

    /// Waits for `rank` from now on, unless it is waited for already. `epoll` becomes readable at its deadline.
    pub(super) fn expect(&mut self, rank: u32, epoll: &OwnedFd) {
        if self.until.contains_key(&rank) {
            return;
        }
        self.until.insert(rank, now().saturating_add(self.patience));
        if self.timer.is_none() {
            self.timer = timer(epoll);
        }
        if self.until.len() == 1 {
            self.set(); // Later ranks have later deadlines.
        }
    }

    /// Stops waiting for `rank`.
    pub(super) fn stop_expecting(&mut self, rank: u32) {
        if self.until.remove(&rank).is_some() {
            self.set();
        }
    }

    /// Takes the ranks whose deadline has passed. They are not waited for any more.
    pub(super) fn overdue(&mut self) -> Vec<u32> {
        if self.until.is_empty() {
            return Vec::new();
        }
        let now = now();
        let overdue = self.until.extract_if(.., |_, until| *until <= now);
        let overdue = overdue.map(|(rank, _)| rank).collect();
        self.set();
        overdue
    }

    /// Sets the timer to the earliest deadline. Without a timer, a deadline is noticed when something else wakes this rank.
    fn set(&self) {
        let Some(timer) = &self.timer else { return };
        let first = self.until.values().min().copied().unwrap_or_default();
        let never = Timespec::default();
        let spec = Itimerspec {
            it_interval: never,
            it_value: Timespec::try_from(first).unwrap_or(never),
        };
        let set = timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec);
        debug_assert!(set.is_ok(), "a time of the clock: {set:?}");
    }
}

fn timer(epoll: &OwnedFd) -> Option<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
    let added = epoll::add(epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN);
    added.is_ok().then_some(timer)
}

/// Returns the real time: the ranks waited for are processes, and these are never simulated.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// Epoll data of the timer. No process has this name.
const TIMER: u64 = u64::MAX;
