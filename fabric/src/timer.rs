//! Time for retries: a clock that starts with the driver, and a timer descriptor.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// A clock in picoseconds that starts with the driver, and its alarm.
#[derive(Debug)]
pub(crate) struct RetryTimer {
    fd: Arc<OwnedFd>,
    /// Time on the system's clock when this clock started, in nanoseconds.
    start: u64,
    set: Option<u64>,
}

impl RetryTimer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        Ok(Self {
            fd,
            start: nanoseconds(),
            set: None,
        })
    }

    pub(crate) fn now(&self) -> u64 {
        (nanoseconds() - self.start).saturating_mul(PS_PER_NS)
    }

    pub(crate) fn wait_on(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Does the same as [`set`](Self::set), unless the descriptor is or will be readable before that time.
    pub(crate) fn set_if_earlier(&mut self, at: u64) -> io::Result<()> {
        if self.set.is_some_and(|set| set <= at) {
            return Ok(());
        }
        self.set(Some(at))
    }

    /// Makes the descriptor readable from this time on, or never.
    pub(crate) fn set(&mut self, at: Option<u64>) -> io::Result<()> {
        if self.set == at && at.is_none_or(|at| at > self.now()) {
            return Ok(());
        }
        // A time of 0 would switch the timer off.
        let at_ns = at.map_or(0, |at| (self.start + at.div_ceil(PS_PER_NS)).max(1));
        let timespec = |ns: u64| Timespec {
            tv_sec: i64::try_from(ns / NS_PER_S).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % NS_PER_S).unwrap_or(0),
        };
        let spec = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(at_ns),
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec)?;
        self.set = at;
        Ok(())
    }
}

fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, rest] = [now.tv_sec, now.tv_nsec].map(|n| u64::try_from(n).unwrap_or(0));
    seconds * NS_PER_S + rest
}

const NS_PER_S: u64 = 1_000_000_000;

/// Returns the earlier of the next time that is known, if there is one, and another.
pub(crate) fn earlier(next: Option<u64>, at: u64) -> u64 {
    next.map_or(at, |next| next.min(at))
}

/// Returns a time as this clock counts it.
pub(crate) fn picoseconds(time: Duration) -> u64 {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    nanoseconds.saturating_mul(PS_PER_NS)
}

const PS_PER_NS: u64 = 1000;

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::RetryTimer;

    #[test]
    fn the_alarm_rings_when_it_is_time_and_not_before_and_can_be_switched_off() {
        let mut timer = RetryTimer::new().unwrap();
        let fd = timer.wait_on();
        let rings = |ms: i64| {
            let limit = Timespec {
                tv_sec: 0,
                tv_nsec: ms * 1_000_000,
            };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
        };
        assert!(!rings(1), "it was never set");
        let at = timer.now() + 20_000_000_000;
        timer.set(Some(at)).unwrap();
        assert!(rings(900) && timer.now() >= at, "20 ms are over");
        timer.set(None).unwrap();
        assert!(!rings(1), "it was switched off");
    }
}
