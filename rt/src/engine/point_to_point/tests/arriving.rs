//! Receives whose buffers are lent to messages that have begun to arrive.
#![expect(unsafe_code, reason = "writes to memory as a driver does")]

use ripstop_fabric::driver::{DownCause, MessagePlace, PayloadView, Sink};

use super::{
    alone::{LoneRank, lone_ranks, op_info},
    scripted_driver::{exact, header, write},
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    ops::{OpInfo, OpTicket},
};

type Recv = OpTicket<Vec<u8>>;

const PEER: WorldRank = WorldRank(1);

/// A rank whose driver never reports anything by itself.
struct Rank(LoneRank);

impl Rank {
    fn new() -> Self {
        Self(lone_ranks(3, |_| {}).swap_remove(0))
    }

    fn recv(&mut self, info: &OpInfo, len: usize) -> Recv {
        let ticket = self.0.core.p2p.common.ops.hold_recv(*info, vec![0; len]);
        self.0.post(ticket.op);
        ticket
    }

    /// Asks for the place of a message of the peer with this tag.
    fn place(&mut self, tag: u32, len: usize) -> Option<MessagePlace> {
        self.0.core.place(PEER, &header(&exact(tag)), len)
    }

    /// Reports that this body is in its place, after writing it there.
    fn placed(&mut self, place: MessagePlace, tag: u32, body: &[u8]) {
        write(place.into, body);
        // SAFETY: the place is valid until this call returns it.
        let lent = unsafe { PayloadView::from_raw(place.into.start(), body.len()) };
        let header = header(&exact(tag));
        self.0.core.placed(place.token, PEER, &header, lent);
    }

    fn whole(&mut self, tag: u32, body: &[u8]) {
        let body = PayloadView::from_slice(body);
        self.0.core.message(PEER, &header(&exact(tag)), body);
    }

    fn is_done(&mut self, recv: &Recv) -> bool {
        self.0.core.p2p.common.is_done(recv.op)
    }

    fn got(&mut self, recv: &Recv) -> Vec<u8> {
        let (outcome, bytes) = self.0.core.p2p.common.take_recv(recv).expect("it is done");
        let landed = outcome.expect("a message");
        bytes[..landed.bytes].to_vec()
    }

    fn failure(&mut self, recv: &Recv) -> ErrorKind {
        let (outcome, _) = self.0.core.p2p.common.take_recv(recv).expect("it is done");
        outcome.expect_err("an error").kind
    }

    /// Has the driver report that the rest of a message will not come, as after the loss of its connection.
    fn lose(&mut self, place: MessagePlace) {
        self.0.core.returned(place.token);
        self.0.core.peer_down(PEER, DownCause::Failed);
    }
}

#[test]
fn a_message_goes_to_the_receive_that_was_posted_first() {
    let mut rank = Rank::new();
    let other = rank.recv(&exact(2), 10);
    let wild = rank.recv(&op_info(None, Some(1)), 10);
    let later = rank.recv(&exact(1), 10);
    let place = rank.place(1, 7).expect("a receive waits");
    assert_eq!(place.into.len(), 7);
    // The next message of the peer cannot overtake it, but one of another peer can arrive.
    let third = PayloadView::from_slice(b"of the third");
    let info = header(&exact(2));
    rank.0.core.message(WorldRank(2), &info, third);
    write(place.into, b"a b");
    assert!(!rank.is_done(&wild));
    rank.placed(place, 1, b"a body.");
    assert_eq!(rank.got(&wild), b"a body.");
    assert!(!rank.is_done(&later) && !rank.is_done(&other));
    rank.whole(1, b"second");
    assert_eq!(rank.got(&later), b"second");
}

#[test]
fn a_message_that_no_receive_can_take_has_no_place_and_changes_nothing() {
    let mut rank = Rank::new();
    assert!(rank.place(1, 7).is_none(), "nothing is posted");
    let short = rank.recv(&exact(1), 6);
    assert!(rank.place(1, 7).is_none(), "it is too short");
    rank.whole(1, b"a body.");
    assert!(matches!(
        rank.failure(&short),
        ErrorKind::Truncated { sent: 7, room: 6 }
    ));
    // The message stays, and the next receive gets it.
    let next = rank.recv(&exact(1), 7);
    assert_eq!(rank.got(&next), b"a body.");
    let mistyped = rank.recv(&OpInfo { sig: 8, ..exact(1) }, 10);
    assert!(rank.place(1, 7).is_none(), "it has another type");
    rank.whole(1, b"a body.");
    assert!(matches!(
        rank.failure(&mistyped),
        ErrorKind::TypeMismatch { .. }
    ));
    let next = rank.recv(&exact(1), 7);
    assert_eq!(rank.got(&next), b"a body.");
    let probe = rank.recv(
        &OpInfo {
            probe: true,
            ..exact(3)
        },
        0,
    );
    assert!(rank.place(3, 7).is_none(), "a probe takes no bytes");
    rank.whole(3, b"a body.");
    assert!(rank.is_done(&probe));
}

#[test]
fn hostile_headers_have_no_place() {
    let mut rank = Rank::new();
    let _recv = rank.recv(&op_info(None, None), 1000);
    let good = header(&exact(1));
    for len in 0..good.len() {
        assert!(rank.0.core.place(PEER, &good[..len], 10).is_none());
    }
    for kind in (0..=255).filter(|kind| *kind != good[0]) {
        let bad = [&[kind][..], &good[1..]].concat();
        assert!(rank.0.core.place(PEER, &bad, 10).is_none(), "kind {kind}");
    }
    assert!(rank.place(1, usize::MAX).is_none());
    assert!(rank.place(1, 10).is_some());
}

#[test]
fn a_message_of_a_receive_that_was_dropped_half_way_goes_to_the_next_one() {
    for posted_before_the_end in [false, true] {
        let mut rank = Rank::new();
        let dropped = rank.recv(&exact(1), 10);
        let place = rank.place(1, 10).expect("a receive waits");
        write(place.into, b"half");
        rank.0.core.p2p.drop_recv(dropped.op);
        // The buffer is still there for the rest.
        let early = posted_before_the_end.then(|| rank.recv(&exact(1), 10));
        rank.placed(place, 1, b"whole body");
        let next = early.unwrap_or_else(|| rank.recv(&exact(1), 10));
        assert_eq!(rank.got(&next), b"whole body");
        assert!(
            rank.0.core.p2p.common.ops.get(dropped.op).is_none(),
            "it is released"
        );
    }
}

#[test]
fn a_receive_whose_message_arrives_is_not_canceled() {
    let mut rank = Rank::new();
    let recv = rank.recv(&exact(1), 10);
    let place = rank.place(1, 10).expect("a receive waits");
    assert!(!rank.0.core.p2p.unpost(recv.op, ErrorKind::TimedOut));
    rank.placed(place, 1, b"whole body");
    assert_eq!(rank.got(&recv), b"whole body");
}

#[test]
fn a_connection_lost_half_way_fails_the_receive_once_its_buffer_is_back() {
    let mut rank = Rank::new();
    let recv = rank.recv(&exact(1), 10);
    let place = rank.place(1, 10).expect("a receive waits");
    // The failure may be known before the driver sees it.
    rank.0.core.lose(PEER, DownCause::Failed);
    assert!(!rank.is_done(&recv), "the driver writes there");
    write(place.into, b"half");
    rank.lose(place);
    assert!(matches!(
        rank.failure(&recv),
        ErrorKind::PeerFailed { rank: 1, .. }
    ));
}

#[test]
fn a_connection_lost_half_way_leaves_nothing_of_a_dropped_receive() {
    for followed in [false, true] {
        let mut rank = Rank::new();
        let dropped = rank.recv(&exact(1), 10);
        let place = rank.place(1, 10).expect("a receive waits");
        rank.0.core.p2p.drop_recv(dropped.op);
        let follower = followed.then(|| rank.recv(&exact(1), 10));
        rank.lose(place);
        assert!(
            rank.0.core.p2p.common.ops.get(dropped.op).is_none(),
            "it is released"
        );
        if let Some(follower) = follower {
            assert!(matches!(
                rank.failure(&follower),
                ErrorKind::PeerFailed { .. }
            ));
        }
        assert!(rank.place(1, 10).is_none(), "the peer is down");
    }
}
