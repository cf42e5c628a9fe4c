//! Peers that are given up while they are alive.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketType, bind, getsockname, socket},
};

use super::{HangGuard, HeardEvents, LONG_GET, Pair, pair_with_a_long_get};
use crate::{
    driver::{DownCause, Driver, DriverCommand, PostResult, WorldRank},
    tcp::{
        handshake::{GiveUpReason, TcpIdentity},
        injected_errors::{FailingCall, inject, left},
        unmet_goodbyes::GOODBYES_MAX,
    },
};

/// Has rank 0 send a message, and give rank 1 up. Returns what rank 1 hears, and its evidence.
fn given_up(mut pair: Pair, why: Option<GiveUpReason>) -> (HeardEvents, String) {
    let last = DriverCommand::Message {
        to: WorldRank(1),
        header: b"last",
        body: b"",
    };
    assert!(matches!(pair.ranks[0].post(last), PostResult::Posted));
    let core = pair.ranks[0].core();
    core.give_up(1, why, "it has no life".to_owned());
    assert_eq!(core.notices.len(), usize::from(why.is_some()));
    let (mut heard, guard) = (HeardEvents::default(), HangGuard::new("the end"));
    while heard.down.is_empty() || !pair.ranks[0].core().notices.is_empty() {
        pair.turn_of_the_tricked();
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(pair.heard.down, [DownCause::Failed]);
    let evidence = |rank: usize, pair: &mut Pair| {
        let peer = &pair.ranks[rank].core().peers[1 - rank];
        peer.evidence.clone().unwrap()
    };
    assert_eq!(evidence(0, &mut pair), "it has no life");
    (heard, evidence(1, &mut pair))
}

#[test]
fn a_peer_that_is_given_up_learns_why_after_what_was_sent_before() {
    for (why, word) in [
        (GiveUpReason::LongPackets, "one MTU"),
        (GiveUpReason::Damaged, "a checksum is wrong"),
        (GiveUpReason::Nonsense, "same version"),
    ] {
        let (heard, evidence) = given_up(Pair::new(), Some(why));
        assert_eq!((heard.messages, heard.down), (1, vec![DownCause::Failed]));
        assert!(evidence.starts_with("rank 0 (127.0.0.1:"), "{evidence}");
        assert!(evidence.contains("has given this rank up"), "{evidence}");
        assert!(evidence.contains(word), "{evidence}");
    }
}

#[test]
fn a_peer_that_cannot_answer_learns_from_the_reset_that_it_is_given_up() {
    let (heard, evidence) = given_up(Pair::new(), None);
    assert_eq!((heard.messages, heard.down), (1, vec![DownCause::Failed]));
    assert!(evidence.contains("reset"), "{evidence}");
}

#[test]
fn a_peer_whose_get_this_rank_has_no_memory_to_answer_is_given_up() {
    let (mut pair, key, [memory, into]) = pair_with_a_long_get();
    inject(FailingCall::Copy, &[libc::ENOMEM]);
    let withdraw = DriverCommand::Withdraw { key };
    assert!(matches!(pair.ranks[0].post(withdraw), PostResult::Posted));
    assert_eq!(left(), 0);
    memory.write(0, &vec![9; LONG_GET]);
    let (mut heard, guard) = (HeardEvents::default(), HangGuard::new("both ends"));
    while heard.down.is_empty() || pair.heard.down.is_empty() {
        pair.turn_of_the_tricked();
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(pair.heard.down, [DownCause::Failed]);
    assert_eq!((heard.completed, heard.failed), (0, 1));
    let mut got = vec![0; LONG_GET];
    into.read(0, &mut got);
    assert!(
        !got.contains(&9),
        "the owner's next use of the memory was sent"
    );
    let evidence = |rank: usize, pair: &mut Pair| {
        let peer = &pair.ranks[rank].core().peers[1 - rank];
        peer.evidence.clone().unwrap()
    };
    let own = evidence(0, &mut pair);
    let place = "a get of rank 1 (127.0.0.1:";
    for words in ["no memory to answer", place, "run fewer ranks"] {
        assert!(own.contains(words), "{own}");
    }
    let of_peer = evidence(1, &mut pair);
    assert!(of_peer.contains("reset"), "{of_peer}");
}

#[test]
fn a_peer_that_sends_nonsense_learns_it() {
    let mut pair = Pair::new();
    pair.say(&[0xff; 64]);
    let (mut heard, guard) = (HeardEvents::default(), HangGuard::new("the end"));
    while heard.down.is_empty() {
        pair.turn_of_the_tricked();
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    let evidence = pair.ranks[1].core().peers[0].evidence.clone().unwrap();
    assert!(evidence.contains("same version"), "{evidence}");
}

#[test]
fn a_notice_that_is_not_read_delays_the_reset_only_for_a_while() {
    let mut pair = Pair::new();
    let core = pair.ranks[0].core();
    core.give_up(1, Some(GiveUpReason::LongPackets), String::new());
    assert_eq!(core.notices.len(), 1);
    let guard = HangGuard::new("the end of the notice");
    while !pair.ranks[0].core().notices.is_empty() {
        assert_eq!(seen_by_the_peer(&mut pair), PollFlags::empty());
        pair.turn_of_the_tricked();
        guard.check();
    }
    let guard = HangGuard::new("the reset");
    while !seen_by_the_peer(&mut pair).contains(PollFlags::ERR) {
        guard.check();
    }
    // The notice is still there for the peer, too.
    let (mut heard, guard) = (HeardEvents::default(), HangGuard::new("the end"));
    while heard.down.is_empty() {
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(heard.down, [DownCause::Failed]);
}

/// Returns what the socket of rank 1 has to report, and leaves it there.
fn seen_by_the_peer(pair: &mut Pair) -> PollFlags {
    let core = pair.ranks[1].core();
    let name = core.peers[0].connection.as_ref().unwrap().socket;
    let socket = core.sockets.get(name).unwrap().socket().unwrap();
    let mut seen = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut seen, Some(&at_once)).unwrap();
    seen[0].revents()
}

/// Changes where rank 0 believes that rank 1 listens.
fn move_peer(pair: &mut Pair, to: SocketAddr) {
    let endpoints = &mut pair.ranks[0].core().peers[1].address.endpoints;
    endpoints.truncate(1);
    (endpoints[0].ip, endpoints[0].port) = (to.ip(), to.port());
}

#[test]
fn a_notice_ends_at_a_program_that_answers_without_end() {
    let mut pair = Pair::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    move_peer(&mut pair, listener.local_addr().unwrap());
    let core = pair.ranks[0].core();
    core.give_up(1, Some(GiveUpReason::Nonsense), String::new());
    assert_eq!(core.notices.len(), 1);
    let program = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let guard = HangGuard::new("the end of the connection");
        while stream.write_all(&[7; 4096]).is_ok() {
            guard.check();
        }
    });
    let guard = HangGuard::new("the end of the notice");
    while !pair.ranks[0].core().notices.is_empty() {
        pair.turn_of_the_tricked();
        guard.check();
    }
    program.join().unwrap();
}

#[test]
fn too_many_notices_leave_a_peer_with_the_reset() {
    let mut pair = Pair::new();
    let core = pair.ranks[0].core();
    let any = core.peers[1].connection.as_ref().unwrap().socket;
    core.notices = vec![any; GOODBYES_MAX];
    core.give_up(1, Some(GiveUpReason::Damaged), String::new());
    assert_eq!(core.notices.len(), GOODBYES_MAX);
    let (mut heard, guard) = (HeardEvents::default(), HangGuard::new("the end"));
    while heard.down.is_empty() {
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    let evidence = pair.ranks[1].core().peers[0].evidence.clone().unwrap();
    assert!(evidence.contains("reset"), "{evidence}");
}

#[test]
fn a_rank_ends_whose_notice_no_peer_takes() {
    // No process listens at a socket that is only bound.
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let nowhere = SocketAddr::try_from(getsockname(&bound).unwrap()).unwrap();
    // The other peer listens, but makes no turns.
    for at in [Some(nowhere), None] {
        let mut pair = Pair::new();
        if let Some(at) = at {
            move_peer(&mut pair, at);
        }
        let core = pair.ranks[0].core();
        core.give_up(1, Some(GiveUpReason::LongPackets), String::new());
        // The kernel may refuse the connection at once where no process listens.
        assert!(at.is_some() || core.notices.len() == 1);
        core.begin_close(DownCause::Finished);
        assert!(core.finish(Duration::from_secs(120)), "{at:?}");
        assert!(core.notices.is_empty(), "{at:?}");
    }
}

#[test]
fn a_notice_of_an_earlier_run_of_a_rank_is_ignored() {
    let mut pair = Pair::new();
    let core = pair.ranks[0].core();
    let incarnation = core.peers[1].address.incarnation;
    for (rank, incarnation) in [(1, incarnation ^ 1), (7, incarnation)] {
        let from = TcpIdentity { rank, incarnation };
        core.hear_give_up(from, GiveUpReason::Damaged);
    }
    let _ = pair.ranks[0].progress(16, &mut pair.heard);
    assert_eq!(pair.heard.down, []);
    assert!(pair.ranks[0].core().peers[1].ended.is_none());
}
