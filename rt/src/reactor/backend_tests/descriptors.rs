//! Tests that watched descriptors end sleeps.

use std::{sync::Arc, thread};

use super::{BackendBed, ring, silence, until};

claims!(
    a_readable_descriptor_ends_every_sleep_until_it_is_drained,
    any_of_many_descriptors_ends_the_sleep,
    all_of_many_descriptors_at_once_are_one_wake,
    a_watched_descriptor_stays_open,
);

fn a_readable_descriptor_ends_every_sleep_until_it_is_drained(bed: BackendBed) {
    let (mut bed, fds) = BackendBed::with_fds(1)(bed);
    bed.bell.arm();
    assert!(bed.sleeps_on());
    ring(&fds[0]);
    assert!(bed.wakes());
    assert!(bed.wakes());
    silence(&fds[0]);
    assert!(bed.sleeps_on());
    // Filling and draining the descriptor while awake leaves no trace.
    ring(&fds[0]);
    silence(&fds[0]);
    assert!(bed.sleeps_on());
}

fn any_of_many_descriptors_ends_the_sleep(bed: BackendBed) {
    let (mut bed, fds) = BackendBed::with_fds(100)(bed);
    bed.bell.arm();
    for fd in &fds {
        let waker = {
            let (fd, notifier) = (Arc::clone(fd), bed.backend.notifier());
            thread::spawn(move || {
                until(|| notifier.is_asleep());
                ring(&fd);
            })
        };
        bed.sleep();
        waker.join().unwrap();
        silence(fd);
    }
    assert!(bed.sleeps_on());
}

fn all_of_many_descriptors_at_once_are_one_wake(bed: BackendBed) {
    let (mut bed, fds) = BackendBed::with_fds(300)(bed);
    bed.bell.arm();
    for _ in 0..3 {
        fds.iter().for_each(ring);
        assert!(bed.wakes());
        fds.iter().for_each(silence);
        assert!(bed.sleeps_on());
    }
}

fn a_watched_descriptor_stays_open(bed: BackendBed) {
    let (mut bed, fds) = BackendBed::with_fds(1)(bed);
    let other_end = fds[0].try_clone().unwrap();
    drop(fds);
    bed.bell.arm();
    assert!(bed.sleeps_on());
    ring(&other_end);
    assert!(bed.wakes());
}
