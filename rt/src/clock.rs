//! The clock of the runtime, so that a simulation can control it. No other code in this crate reads the system's time.

use std::{
    ops::Add,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// A point in time, in nanoseconds since its [`Clock`] was made. Times of different clocks cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClockTime(u64);

impl ClockTime {
    /// Returns the time `nanos` nanoseconds after the clock was made.
    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock was made.
    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the duration from `earlier` until this time; zero if `earlier` is later.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates: a duration too long to count (584 years) gives the last possible time.
impl Add<Duration> for ClockTime {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(nanos_of(later)))
    }
}

/// A source of time. Clones return the same time.
#[derive(Clone, Debug)]
pub(crate) struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    System {
        start: Instant,
    },
    /// A clock that other code advances.
    Virtual {
        nanos: Arc<AtomicU64>,
    },
}

impl Clock {
    /// Returns the system's monotonic clock, starting at 0 now.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that may ask"
    )]
    pub(crate) fn system() -> Self {
        Self(ClockSource::System {
            start: Instant::now(),
        })
    }

    /// Returns a clock that shows the value of `nanos`, which must never decrease.
    pub(crate) fn of(nanos: Arc<AtomicU64>) -> Self {
        Self(ClockSource::Virtual { nanos })
    }

    /// Returns a clock that stays at 0 until [`advance`](Self::advance) is called.
    #[cfg(test)]
    pub(crate) fn manual() -> Self {
        Self::of(Arc::default())
    }

    /// Returns the present time. Never decreases.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that may ask"
    )]
    pub(crate) fn now(&self) -> ClockTime {
        match &self.0 {
            ClockSource::System { start } => {
                ClockTime(nanos_of(Instant::now().saturating_duration_since(*start)))
            }
            ClockSource::Virtual { nanos } => ClockTime(nanos.load(Ordering::Acquire)),
        }
    }

    /// Advances a manual clock and all its clones.
    ///
    /// # Panics
    /// Panics if this is the system's clock.
    #[cfg(test)]
    pub(crate) fn advance(&self, by: Duration) {
        match &self.0 {
            ClockSource::System { .. } => {
                panic!("Clock::advance on the system's clock: only a manual clock can be moved")
            }
            ClockSource::Virtual { nanos } => {
                let _ = nanos.fetch_add(nanos_of(by), Ordering::AcqRel);
            }
        }
    }
}

/// Returns the time of the machine's monotonic clock, which all its processes share, in nanoseconds.
pub fn machine_nanos() -> u64 {
    let time = Duration::try_from(clock_gettime(ClockId::Monotonic));
    time.map_or(0, nanos_of)
}

fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Clock, ClockTime};
    use std::time::Duration;

    #[test]
    fn a_manual_clock_moves_only_when_told_and_its_clones_move_with_it() {
        let clock = Clock::manual();
        let clone = clock.clone();
        assert_eq!(clone.now(), ClockTime::default());
        clock.advance(Duration::from_micros(7));
        assert_eq!(clone.now().nanos(), 7_000);
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = Clock::system();
        let mut last = clock.now();
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn time_saturates_instead_of_wrapping() {
        let last = ClockTime::from_nanos(u64::MAX);
        assert_eq!(last + Duration::MAX, last);
        assert_eq!(ClockTime::default().since(last), Duration::ZERO);
        assert_eq!(
            last.since(ClockTime::from_nanos(u64::MAX - 5)),
            Duration::from_nanos(5)
        );
    }
}
