//! Peers that are given up while they are alive.

use super::{HangGuard, HeardEvents, Pair};
use crate::{
    driver::{DownCause, Driver, DriverCommand, PostResult, WorldRank},
    tcp::{
        handshake::{GiveUpReason, TcpIdentity},
        host_name::HostName,
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
        let place = format!("rank 0{} (127.0.0.1:", HostName::own());
        assert!(evidence.starts_with(&place), "{evidence}");
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
        pair.turn_of_the_tricked();
        guard.check();
    }
    // The notice is still there for the peer, and so is the reset.
    let (mut heard, guard) = (HeardEvents::default(), HangGuard::new("the end"));
    while heard.down.is_empty() {
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(heard.down, [DownCause::Failed]);
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
