//! Tests that a notifier ends sleeps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use super::{BackendBed, notify_when_asleep, readable, until};

claims!(
    a_notification_before_the_sleep_is_not_lost,
    a_notification_during_the_sleep_ends_it,
    a_notification_ends_one_sleep_only,
    notifications_to_an_awake_reactor_make_no_system_call,
    ten_thousand_notified_sleeps_and_answers,
    a_notifier_outlives_its_backend,
);

fn a_notification_before_the_sleep_is_not_lost(mut bed: BackendBed) {
    bed.bell.arm();
    bed.backend.notifier().notify();
    assert!(bed.wakes());
}

fn a_notification_during_the_sleep_ends_it(mut bed: BackendBed) {
    bed.bell.arm();
    let waker = notify_when_asleep(&bed.backend.notifier());
    bed.sleep();
    waker.join().unwrap();
}

fn a_notification_ends_one_sleep_only(mut bed: BackendBed) {
    bed.bell.arm();
    for _ in 0..3 {
        bed.backend.notifier().notify();
        assert!(bed.wakes());
        assert!(bed.sleeps_on());
        let waker = notify_when_asleep(&bed.backend.notifier());
        bed.sleep();
        waker.join().unwrap();
        assert!(bed.sleeps_on());
    }
}

fn notifications_to_an_awake_reactor_make_no_system_call(bed: BackendBed) {
    let notifier = bed.backend.notifier();
    (0..1000).for_each(|_| notifier.notify());
    assert!(
        !readable(&notifier.doorbell(), Duration::ZERO),
        "the doorbell was rung"
    );
}

fn ten_thousand_notified_sleeps_and_answers(mut bed: BackendBed) {
    const ROUNDS: u32 = 10_000;
    bed.bell.arm();
    let (asked, answered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let asker = {
        let (notifier, asked, answered) = (
            bed.backend.notifier(),
            Arc::clone(&asked),
            Arc::clone(&answered),
        );
        thread::spawn(move || {
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::Relaxed); // `notify` publishes it
                notifier.notify();
                until(|| answered.load(Ordering::Acquire) == round);
            }
        })
    };
    for round in 1..=ROUNDS {
        while asked.load(Ordering::Relaxed) < round {
            bed.sleep();
        }
        answered.store(round, Ordering::Release);
    }
    asker.join().unwrap();
}

fn a_notifier_outlives_its_backend(bed: BackendBed) {
    let notifier = bed.backend.notifier();
    drop(bed);
    notifier.notify();
}
