//! Peers that keep sending are heard without questions for events.

use super::{HangGuard, HeardSenders, ranks};
use crate::{
    driver::{Driver, DriverCommand, PostResult, WorldRank},
    tcp::Tcp,
};

/// Has each rank send an empty message to rank 0, which has heard the earlier ones.
fn all_send(others: &mut [Tcp]) {
    for other in others {
        let message = DriverCommand::Message {
            to: WorldRank(0),
            header: b"",
            body: b"",
        };
        assert!(matches!(other.post(message), PostResult::Posted));
        let _ = other.progress(1, &mut HeardSenders::default());
    }
}

/// Returns true if the socket of this peer has something to read.
fn has_bytes(zero: &mut Tcp, rank: usize) -> bool {
    let core = zero.core();
    let name = core.peers[rank].connection.as_ref().unwrap().socket;
    let socket = core.sockets.get(name).unwrap().fd.as_ref().unwrap();
    rustix::io::ioctl_fionread(socket).unwrap() > 0
}

#[test]
fn a_turn_hears_a_few_peers_that_keep_sending_and_asks_for_events_rarely() {
    let [mut zero, mut others @ ..] = ranks([0, 1, 2, 3, 4]);
    let mut heard = HeardSenders::default();
    all_send(&mut others);
    let guard = HangGuard::new("the first messages");
    while heard.from != [0, 1, 1, 1, 1] {
        let _ = zero.progress(16, &mut heard);
        for other in &mut others {
            let _ = other.progress(1, &mut HeardSenders::default());
        }
        guard.check();
    }
    let mut asked = 0;
    for round in 2..20 {
        all_send(&mut others);
        let guard = HangGuard::new("arrivals");
        while !(1..5).all(|rank| has_bytes(&mut zero, rank)) {
            guard.check();
        }
        let before = zero.core().counters.checks.get();
        let _ = zero.progress(16, &mut heard);
        // The first rounds may find changes that are noted since the ranks met.
        if round >= 4 {
            assert_eq!(heard.from, [0, round, round, round, round]);
            asked += zero.core().counters.checks.get() - before;
        } else {
            while heard.from != [0, round, round, round, round] {
                let _ = zero.progress(16, &mut heard);
                guard.check();
            }
        }
    }
    assert_eq!(asked, 2, "questions in 16 turns");
}
