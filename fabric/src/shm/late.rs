//! Who was wanted and has not come to the board yet, and until when that is no failure.
//!
//! A rank that has come is in a process, which is watched; of one that has not, only time tells.

use std::{collections::BTreeMap, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::epoll::{self, EventData, EventFlags},
    time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
        clock_gettime, timerfd_create, timerfd_settime,
    },
};

/// The ranks that are waited for.
#[derive(Debug)]
pub(super) struct Late {
    patience: Duration,
    /// By rank, on the system's clock.
    until: BTreeMap<u32, Duration>,
    /// Rings when the first of them is late; made when the first is waited for.
    timer: Option<OwnedFd>,
}

impl Late {
    pub(super) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            until: BTreeMap::new(),
            timer: None,
        }
    }

    /// Waits for `rank` from now on, if it was not waited for. `epoll` becomes readable when it is late.
    pub(super) fn expect(&mut self, rank: u32, epoll: &OwnedFd) {
        if self.until.contains_key(&rank) {
            return;
        }
        self.until.insert(rank, now().saturating_add(self.patience));
        if self.timer.is_none() {
            self.timer = timer(epoll);
        }
        if self.until.len() == 1 {
            self.set(); // who is waited for later is late later
        }
    }

    /// Waits for `rank` no longer.
    pub(super) fn met(&mut self, rank: u32) {
        if self.until.remove(&rank).is_some() {
            self.set();
        }
    }

    /// Those that are late. They are not waited for any more.
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

    /// Without a descriptor, who is late is noticed when something else wakes this rank.
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

/// The machine's time: it is processes that are waited for, and they are never simulated.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// What the descriptor that is slept on says of the timer: no process has this number.
const TIMER: u64 = u64::MAX;
