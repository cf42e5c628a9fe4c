//! Tests of the descriptor for another event loop.

use std::time::Duration;

use super::{BackendBed, HANG, SHORT, readable, ring, silence};

claims!(
    prepared_without_events_the_descriptor_is_silent,
    prepared_the_descriptor_tells_of_every_kind_of_event,
);

fn prepared_without_events_the_descriptor_is_silent(bed: BackendBed) {
    let (mut bed, fds) = BackendBed::with_fds(1)(bed);
    let fd = bed.backend.readable_fd();
    for _ in 0..3 {
        bed.bell.arm();
        ring(&fds[0]);
        silence(&fds[0]);
        bed.backend.prepare().unwrap();
        bed.backend.prepare().unwrap();
        assert!(!readable(&fd, SHORT));
    }
}

fn prepared_the_descriptor_tells_of_every_kind_of_event(bed: BackendBed) {
    let (mut bed, fds) = BackendBed::with_fds(1)(bed);
    let (fd, bell, notifier) = (
        bed.backend.readable_fd(),
        bed.bell.clone(),
        bed.backend.notifier(),
    );
    let events: [&dyn Fn(); 3] = [&|| bell.ring(), &|| ring(&fds[0]), &|| notifier.notify()];
    for event in events.iter().cycle().take(9) {
        for after in [true, false] {
            bed.bell.arm();
            if after {
                bed.backend.prepare().unwrap();
            }
            event();
            if !after {
                bed.backend.prepare().unwrap();
            }
            assert!(readable(&fd, HANG));
            silence(&fds[0]);
            bed.bell.disarm();
            silence(&bed.bell.fd);
        }
        bed.bell.arm();
        // Only the next `prepare` takes the notifier's state into account.
        bed.backend.prepare().unwrap();
        bed.backend.prepare().unwrap();
        assert!(!readable(&fd, Duration::ZERO));
    }
}
