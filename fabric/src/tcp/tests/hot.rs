//! Peers that keep sending are heard without questions for events.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{HangGuard, HeardSenders, ranks};
use crate::{
    driver::{ArmResult, Driver, DriverCommand, PostResult, WorldRank},
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

/// Two ranks, of which rank 1 has sent so much that epoll does not report its socket to rank 0 any more.
fn in_dialogue() -> ([Tcp; 2], HeardSenders) {
    let mut ranks = ranks([0, 1]);
    let mut heard = HeardSenders::default();
    let guard = HangGuard::new("the dialogue");
    while ranks[0].core().sockets.unreported.is_none() {
        let before = heard.from[1];
        all_send(&mut ranks[1..]);
        while heard.from[1] == before {
            let _ = ranks[0].progress(16, &mut heard);
            let _ = ranks[1].progress(1, &mut HeardSenders::default());
            guard.check();
        }
    }
    (ranks, heard)
}

#[test]
fn what_comes_to_a_socket_that_is_not_reported_keeps_the_rank_awake() {
    let ([mut zero, one], mut heard) = in_dialogue();
    let before = heard.from[1];
    all_send(&mut [one]);
    let guard = HangGuard::new("the bytes");
    while !has_bytes(&mut zero, 1) {
        guard.check();
    }
    assert_eq!(zero.arm(), ArmResult::Busy);
    let _ = zero.progress(16, &mut heard);
    assert_eq!(heard.from[1], before + 1);
}

#[test]
fn a_rank_that_sleeps_is_woken_by_the_socket_that_was_not_reported() {
    let ([mut zero, one], mut heard) = in_dialogue();
    let (before, mut one) = (heard.from[1], [one]);
    let guard = HangGuard::new("the sleep");
    while zero.arm() == ArmResult::Busy {
        let _ = zero.progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(zero.core().sockets.unreported, None);
    all_send(&mut one);
    let asleep = zero.core().wait_on();
    let limit = Timespec::try_from(Duration::from_secs(60)).unwrap();
    let woken = poll(&mut [PollFd::new(&*asleep, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(woken, 1, "nothing wakes the rank");
    while heard.from[1] == before {
        let _ = zero.progress(16, &mut heard);
        guard.check();
    }
}

#[test]
fn a_socket_that_is_not_reported_is_when_it_has_room_again() {
    let ([mut zero, mut one], mut heard) = in_dialogue();
    let body = vec![7; 100_000];
    let (mut heard_there, mut posted) = (HeardSenders::default(), 0);
    let message = || DriverCommand::Message {
        to: WorldRank(1),
        header: b"",
        body: &body,
    };
    while matches!(zero.post(message()), PostResult::Posted) {
        posted += 1;
    }
    let guard = HangGuard::new("all bodies");
    while heard_there.from[0] < posted {
        let _ = zero.progress(16, &mut heard);
        let _ = one.progress(16, &mut heard_there);
        guard.check();
    }
}

#[test]
fn the_end_of_a_peer_whose_socket_is_not_reported_is_noticed() {
    let ([mut zero, one], mut heard) = in_dialogue();
    drop(one);
    let guard = HangGuard::new("the end");
    while zero.core().peers[1].ended.is_none() {
        let _ = zero.progress(16, &mut heard);
        guard.check();
    }
}
