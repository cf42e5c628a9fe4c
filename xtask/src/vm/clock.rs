//! The rate of this machine's time stamp counter.
//!
//! An emulated processor's counter runs at that rate. The guest's kernel would measure the rate at its start, and on a busy
//! host be wrong by a factor of up to ten. So the rate is passed to it.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "reading the counter is an intrinsic")
)]

use std::{
    thread,
    time::{Duration, Instant},
};

/// Returns the ticks per millisecond, within half a percent.
pub(super) fn khz() -> u64 {
    let first = ClockReading::best();
    loop {
        thread_sleep(PAUSE);
        let last = ClockReading::best();
        let passed = last.at.duration_since(first.at);
        if (first.doubt + last.doubt) * 200 < passed {
            return rate(last.ticks.wrapping_sub(first.ticks), passed);
        }
    }
}

/// A reading of the counter, with the time and its uncertainty.
struct ClockReading {
    ticks: u64,
    at: Instant,
    doubt: Duration,
}

impl ClockReading {
    /// Returns the reading that was interrupted least, of a few.
    fn best() -> Self {
        let first = Self::take();
        (1..TRIES).fold(first, |best, _| {
            let next = Self::take();
            if next.doubt < best.doubt { next } else { best }
        })
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "compares the counter with the clock"
    )]
    fn take() -> Self {
        let before = Instant::now();
        let ticks = ticks();
        let doubt = before.elapsed();
        Self {
            ticks,
            at: before + doubt / 2,
            doubt,
        }
    }
}

fn rate(ticks: u64, passed: Duration) -> u64 {
    let khz = u128::from(ticks) * 1_000_000 / passed.as_nanos().max(1);
    u64::try_from(khz).unwrap_or(u64::MAX)
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86_64 processor has the instruction, and Linux lets programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Never called: the guest is refused on other machines.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[expect(clippy::disallowed_methods, reason = "no runtime here to wait in")]
fn thread_sleep(time: Duration) {
    thread::sleep(time);
}

const PAUSE: Duration = Duration::from_millis(50);
const TRIES: u32 = 8;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::rate;

    #[test]
    fn a_rate_is_ticks_per_millisecond() {
        assert_eq!(rate(300_000_000, Duration::from_millis(100)), 3_000_000);
        assert_eq!(rate(0, Duration::ZERO), 0);
    }
}
