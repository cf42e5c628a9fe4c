//! The clocks of a measurement. Nanoseconds of one clock can be compared between the processes of a node.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the nanoseconds since some moment in the past, the same moment for all processes of this machine.
#[inline]
pub(crate) fn now() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Returns the processor time, in nanoseconds, of all threads of this process.
pub(super) fn cpu() -> u64 {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// Returns the processor time, in nanoseconds, of the other threads of this process.
pub(super) fn other_threads() -> u64 {
    cpu().saturating_sub(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

/// Sleeps for `duration`.
#[expect(
    clippy::disallowed_methods,
    reason = "a rank that is away from its runtime does not await the runtime's sleep"
)]
pub(super) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Computes for `duration`, and touches nothing but registers and the clock. Returns the times of start and end.
pub(super) fn compute(duration: Duration) -> (u64, u64) {
    let start = now();
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut x = 1.0_f64;
    while now() - start < nanos {
        for _ in 0..10_000 {
            x = std::hint::black_box(x * 1.000_001 + 1e-9);
        }
    }
    (start, now())
}

#[inline]
fn nanos(time: Timespec) -> u64 {
    // The system's clocks are never negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_computation_takes_as_long_as_it_was_asked_to() {
        let before = cpu();
        let (start, end) = compute(Duration::from_millis(2));
        assert!(end - start >= 2_000_000 && cpu() > before);
    }
}
