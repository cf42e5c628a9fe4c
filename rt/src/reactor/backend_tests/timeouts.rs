//! Tests of the duration of a sleep.

use std::time::{Duration, Instant};

use super::{BackendBed, guarded, notify_when_asleep};

claims!(
    a_timeout_is_not_early,
    a_timeout_of_zero_returns,
    a_timeout_without_end_is_accepted,
);

fn a_timeout_is_not_early(mut bed: BackendBed) {
    bed.bell.arm();
    for micros in [1, 90, 1_300, 9_999, 12_345] {
        let (timeout, start) = (Duration::from_micros(micros), Instant::now());
        bed.backend.sleep(Some(timeout)).unwrap();
        assert!(
            start.elapsed() >= timeout,
            "{timeout:?} took {:?}",
            start.elapsed()
        );
    }
}

fn a_timeout_of_zero_returns(mut bed: BackendBed) {
    bed.bell.arm();
    guarded(|| (0..100).for_each(|_| bed.backend.sleep(Some(Duration::ZERO)).unwrap()));
}

fn a_timeout_without_end_is_accepted(mut bed: BackendBed) {
    bed.bell.arm();
    let notifier = bed.backend.notifier();
    for timeout in [
        Some(Duration::MAX),
        Some(Duration::from_secs(1 << 40)),
        None,
    ] {
        notifier.notify();
        guarded(|| bed.backend.sleep(timeout).unwrap());
        let waker = notify_when_asleep(&notifier);
        guarded(|| bed.backend.sleep(timeout).unwrap());
        waker.join().unwrap();
    }
}
