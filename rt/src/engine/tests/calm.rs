//! Messages of a peer that go straight into the expected receive, and each way out of that.

use std::panic::Location;

use ripstop_fabric::{
    driver::{DownCause, PayloadView, Sink},
    random::SeededRandom,
};

use super::world::{CTX, Net, World, failed_rank, op_info};
use crate::{
    clock::ClockTime,
    engine::{Engine, SendStart, calm_switch, commons::CalmState},
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::{ChannelInfo, OpInfo, OpTicket, PlacedBytes},
    proto::wire::EagerHeader,
};

/// Room of each receive, in bytes.
pub(super) const ROOM: usize = 8;

pub(super) type Recv = OpTicket<[u8; ROOM]>;

/// Two ranks whose driver keeps order and reports failures. The tests look at rank 1, and rank 0 sends.
struct CalmPair(World);

impl CalmPair {
    fn new() -> Self {
        let net = Net {
            looks: true,
            ..reliable()
        };
        let mut pair = Self(World::new(2, net));
        let first = pair.post(&op_info(Some(0), Some(9)));
        pair.send(&op_info(Some(1), Some(9)), &[9]);
        pair.turn();
        assert_eq!(pair.taken(&first), ([9, 0, 0, 0, 0, 0, 0, 0], 1));
        pair
    }

    /// Posts a receive at rank 1.
    fn post(&mut self, info: &OpInfo) -> Recv {
        post(&mut self.0.engines[1], info)
    }

    /// Posts a receive at rank 1, of which only its slot knows.
    fn expect(&mut self, info: &OpInfo) -> Recv {
        let recv = self.post(info);
        assert!(self.0.engines[1].is_expected(recv.op));
        recv
    }

    /// Posts a receive at rank 1 like [`expect`](Self::expect), whose message comes to a place.
    fn expect_in_place(&mut self, info: &OpInfo) -> OpTicket<PlacedBytes> {
        let engine = &mut self.0.engines[1];
        let channel = ChannelInfo::new(*info, 0, WorldRank(1));
        let recv = engine.expect_in_place(&channel, Location::caller(), ROOM);
        recv.expect("nothing unusual is known")
    }

    /// Takes a receive that has ended from its place: the message, or the error.
    fn placed(&mut self, recv: &OpTicket<PlacedBytes>) -> Result<Vec<u8>, ErrorKind> {
        let mut buf = Vec::<u8>::with_capacity(ROOM);
        let common = &mut self.0.engines[1].core.p2p.common;
        let outcome = common.take_place(recv, &mut buf);
        let outcome = outcome.expect("the receive has ended");
        outcome.map_err(|failure| failure.kind)?;
        Ok(buf)
    }

    /// Sends from rank 0, at once.
    fn send(&mut self, info: &OpInfo, bytes: &[u8]) {
        assert!(send(&mut self.0.engines[0], info, bytes));
    }

    /// Makes the turn of a poll at rank 1.
    fn turn(&mut self) {
        self.0.engines[1].turn(ClockTime::default());
    }

    /// Looks for the message of the expected receive at rank 1, after a turn.
    fn look(&mut self) -> bool {
        self.0.engines[1].look_for_expected(true)
    }

    fn is_calm(&self) -> bool {
        self.0.engines[1].core.p2p.common.calm != CalmState::Disturbed
    }

    fn taken(&mut self, recv: &Recv) -> ([u8; ROOM], usize) {
        self.received(recv).expect("the receive has its message")
    }

    fn received(&mut self, recv: &Recv) -> Result<([u8; ROOM], usize), ErrorKind> {
        received(&mut self.0.engines[1], recv).expect("the receive has ended")
    }
}

pub(super) fn reliable() -> Net {
    Net {
        reliable: true,
        detects_death: true,
        ..Net::default()
    }
}

/// Posts a receive as a call of the application does.
pub(super) fn post(engine: &mut Engine, info: &OpInfo) -> Recv {
    let (recv, is_posted) = engine.recv_calmly(info, Location::caller(), [0; ROOM]);
    if !is_posted {
        engine.disturb();
        engine.post(recv.op);
    }
    recv
}

/// Sends as a call of the application does. Returns false if the message cannot leave at once.
fn send(engine: &mut Engine, info: &OpInfo, bytes: &[u8]) -> bool {
    engine.send_calmly(info, bytes) || {
        engine.disturb();
        engine.try_send(info, bytes).expect("the peer lives")
    }
}

/// Takes a receive that has ended: its buffer, and the length of the message.
pub(super) fn received(
    engine: &mut Engine,
    recv: &Recv,
) -> Option<Result<([u8; ROOM], usize), ErrorKind>> {
    let (outcome, buf) = engine.core.p2p.common.take_recv(recv)?;
    Some(match outcome {
        Ok(landed) => Ok((buf, landed.bytes)),
        Err(failure) => Err(failure.kind),
    })
}

fn of_type(sig: u64, info: OpInfo) -> OpInfo {
    OpInfo { sig, ..info }
}

#[test]
fn a_message_goes_into_the_expected_receive_and_leaves_the_calm() {
    let mut pair = CalmPair::new();
    let postings = pair.0.engines[1].core.p2p.tables().counts().0;
    for number in 0..5 {
        let recv = pair.expect(&op_info(Some(0), Some(3)));
        pair.send(&op_info(Some(1), Some(3)), &[number; 4]);
        pair.turn();
        assert!(pair.is_calm());
        let four = [number, number, number, number, 0, 0, 0, 0];
        assert_eq!(pair.taken(&recv), (four, 4));
    }
    let counts = pair.0.engines[1].core.p2p.tables().counts();
    assert_eq!(counts, (postings, 6), "no receive was posted");
}

#[test]
fn a_look_finds_the_message_of_the_expected_receive_and_leaves_the_calm() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    assert!(!pair.look(), "nothing was sent");
    pair.send(&op_info(Some(1), Some(3)), &[7]);
    assert!(pair.look() && pair.is_calm());
    assert_eq!(pair.taken(&recv), ([7, 0, 0, 0, 0, 0, 0, 0], 1));
}

#[test]
fn a_look_finds_a_message_that_fills_the_expected_receive() {
    let mut pair = CalmPair::new();
    for number in 0..5 {
        let recv = pair.expect(&op_info(Some(0), Some(3)));
        assert!(!pair.look(), "nothing was sent");
        pair.send(&op_info(Some(1), Some(3)), &[number; ROOM]);
        assert!(pair.look() && pair.is_calm());
        assert_eq!(pair.taken(&recv), ([number; ROOM], ROOM));

        let recv = pair.expect_in_place(&op_info(Some(0), Some(3)));
        pair.send(&op_info(Some(1), Some(3)), &[number; ROOM]);
        assert!(pair.look() && pair.is_calm());
        assert_eq!(pair.placed(&recv).expect("its message"), [number; ROOM]);
    }
}

/// Sends that wait for the peer's word do not end the calm. A message that is found by a look may bring that word.
#[test]
fn credits_of_a_message_that_is_found_by_a_look_let_queued_sends_leave() {
    let mut pair = CalmPair::new();
    let info = op_info(Some(0), Some(5));
    let mut left = 0;
    while matches!(pair.0.engines[1].try_send(&info, &[0; 100]), Ok(true)) {
        left += 1;
        assert!(left < 100_000, "a sender has an end of its credits");
    }
    let SendStart::InFlight(queued) = pair.0.send(1, 0, 5, [1_u8; 100]) else {
        panic!("there is no room");
    };
    for _ in 0..left {
        let recv = pair.0.recv(0, Some(1), Some(5));
        pair.0.engines[0].turn(ClockTime::default());
        drop(pair.0.received(0, &recv));
    }
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    pair.send(&op_info(Some(1), Some(3)), &[3; ROOM]);
    assert!(!pair.look() && !pair.is_calm(), "a turn is due");
    pair.turn();
    assert_eq!(pair.taken(&recv), ([3; ROOM], ROOM));
    assert!(pair.0.is_done(1, &queued), "the credits have come");
}

/// A message of a collective is recorded by its number, too, so the driver must not copy it on its own.
#[test]
fn a_message_of_a_collective_is_not_taken_by_its_header() {
    let mut pair = CalmPair::new();
    let of_collective = |info| OpInfo {
        ctx: CTX + 1,
        ..info
    };
    let recv = pair.expect(&of_collective(op_info(Some(0), Some(3))));
    pair.send(&of_collective(op_info(Some(1), Some(3))), &[7; ROOM]);
    assert!(!pair.look() && !pair.is_calm());
    assert_eq!(pair.taken(&recv), ([7; ROOM], ROOM));
}

#[test]
fn a_look_that_finds_another_message_leaves_the_rest_to_a_turn() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    pair.send(&op_info(Some(1), Some(4)), &[4]);
    pair.send(&op_info(Some(1), Some(3)), &[3]);
    assert!(!pair.look() && !pair.is_calm());
    assert!(!pair.look(), "no receive is expected");
    pair.turn();
    assert_eq!(pair.taken(&recv), ([3, 0, 0, 0, 0, 0, 0, 0], 1));
    let other = pair.post(&op_info(Some(0), Some(4)));
    assert_eq!(pair.taken(&other), ([4, 0, 0, 0, 0, 0, 0, 0], 1));
}

#[test]
fn a_receive_from_any_rank_is_left_to_turns() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(None, Some(3)));
    pair.send(&op_info(Some(1), Some(3)), &[7]);
    assert!(!pair.look());
    pair.turn();
    assert_eq!(pair.taken(&recv), ([7, 0, 0, 0, 0, 0, 0, 0], 1));
}

#[test]
fn a_message_that_was_there_before_a_poll_leaves_a_turn_to_it() {
    let mut pair = CalmPair::new();
    for _ in 0..3 {
        let recv = pair.expect(&op_info(Some(0), Some(3)));
        pair.send(&op_info(Some(1), Some(3)), &[7]);
        assert!(!pair.0.engines[1].look_for_expected(false));
        assert_eq!(pair.taken(&recv).0[0], 7);
    }
}

#[test]
fn looks_that_find_their_messages_leave_at_least_every_33rd_to_a_turn() {
    let mut pair = CalmPair::new();
    let mut found_in_a_row = Vec::new();
    for _ in 0..10 {
        let found = (0..100).take_while(|&number| {
            let recv = pair.expect(&op_info(Some(0), Some(3)));
            pair.send(&op_info(Some(1), Some(3)), &[number]);
            let has_come = pair.look();
            if !has_come {
                pair.turn();
                pair.0.engines[0].turn(ClockTime::default());
            }
            assert_eq!(pair.taken(&recv).0[0], number);
            has_come
        });
        found_in_a_row.push(found.count());
    }
    // A message that is due to the peer asks for a turn sooner.
    assert_eq!(found_in_a_row.iter().max(), Some(&32), "{found_in_a_row:?}");
}

#[test]
fn a_message_comes_to_a_place_in_the_calm_and_after_it() {
    let mut pair = CalmPair::new();
    for number in 0..5 {
        let recv = pair.expect_in_place(&op_info(Some(0), Some(3)));
        pair.send(&op_info(Some(1), Some(3)), &[number; 4]);
        pair.turn();
        assert!(pair.is_calm());
        assert_eq!(pair.placed(&recv).expect("its message"), [number; 4]);

        let recv = pair.expect_in_place(&op_info(Some(0), Some(3)));
        pair.0.engines[1].disturb();
        pair.send(&op_info(Some(1), Some(3)), &[number; 5]);
        pair.turn();
        assert_eq!(pair.placed(&recv).expect("its message"), [number; 5]);
    }
}

#[test]
fn a_place_is_left_by_an_error_of_the_message_or_of_the_peer() {
    let mut pair = CalmPair::new();
    let recv = pair.expect_in_place(&op_info(Some(0), Some(3)));
    pair.send(&of_type(8, op_info(Some(1), Some(3))), &[5]);
    pair.turn();
    let failure = pair.placed(&recv).expect_err("another type");
    assert!(matches!(failure, ErrorKind::TypeMismatch { .. }));
    let again = pair.post(&of_type(8, op_info(Some(0), Some(3))));
    assert_eq!(pair.received(&again).expect("it has stayed").1, 1);

    let recv = pair.expect_in_place(&op_info(Some(0), Some(3)));
    pair.send(&op_info(Some(1), Some(3)), &[5; ROOM + 1]);
    pair.turn();
    let failure = pair.placed(&recv).expect_err("too long");
    assert!(matches!(failure, ErrorKind::Truncated { sent: 9, room: 8 }));
    let stored = pair.0.recv(1, Some(0), Some(3));
    assert_eq!(pair.0.received(1, &stored).1, [5; ROOM + 1]);

    let recv = pair.expect_in_place(&op_info(Some(0), Some(3)));
    let core = &mut pair.0.engines[1].core;
    core.peer_down(WorldRank(0), DownCause::Failed);
    let failure = pair.placed(&recv).expect_err("the peer has failed");
    assert!(matches!(failure, ErrorKind::PeerFailed { rank: 0, .. }));
}

#[test]
fn a_message_in_a_place_returns_to_the_queue_when_its_receive_is_dropped() {
    let mut pair = CalmPair::new();
    let recv = pair.expect_in_place(&op_info(Some(0), Some(3)));
    pair.send(&op_info(Some(1), Some(3)), &[1; 3]);
    pair.send(&op_info(Some(1), Some(3)), &[2; 3]);
    pair.turn();
    let engine = &mut pair.0.engines[1];
    engine.disturb();
    engine.core.p2p.drop_recv(recv.op);
    engine.flush();
    for number in 1..3 {
        let recv = pair.post(&op_info(Some(0), Some(3)));
        let (buf, len) = pair.received(&recv).expect("in the order of arrival");
        assert_eq!((buf[0], len), (number, 3));
    }
}

#[test]
fn a_message_of_another_type_fails_the_receive_and_stays() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    pair.send(&of_type(8, op_info(Some(1), Some(3))), &[5]);
    pair.turn();
    let failure = pair.received(&recv).expect_err("another type");
    assert!(matches!(failure, ErrorKind::TypeMismatch { .. }));
    let again = pair.post(&of_type(8, op_info(Some(0), Some(3))));
    assert_eq!(pair.received(&again).expect("it has stayed").1, 1);
}

#[test]
fn a_message_that_is_too_long_fails_the_receive_and_stays() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    pair.send(&op_info(Some(1), Some(3)), &[5; ROOM + 1]);
    pair.turn();
    let failure = pair.received(&recv).expect_err("too long");
    assert!(matches!(failure, ErrorKind::Truncated { sent: 9, room: 8 }));
    let stored = pair.0.recv(1, Some(0), Some(3));
    assert_eq!(pair.0.received(1, &stored).1, [5; ROOM + 1]);
}

#[test]
fn a_message_of_another_tag_or_communicator_does_not_match() {
    let other_tag = op_info(Some(1), Some(4));
    let other_ctx = OpInfo {
        ctx: CTX + 2,
        ..op_info(Some(1), Some(3))
    };
    for other in [other_tag, other_ctx] {
        let mut pair = CalmPair::new();
        let both = &mut pair.0.engines;
        both.iter_mut()
            .for_each(|engine| engine.join(CTX + 2, &RankGroup::First(2)));
        let recv = pair.expect(&op_info(Some(0), Some(3)));
        pair.send(&other, &[5]);
        pair.turn();
        assert!(!pair.0.is_done(1, &recv));
        pair.send(&op_info(Some(1), Some(3)), &[6]);
        pair.turn();
        assert_eq!(pair.received(&recv).expect("its message").0[0], 6);
        let from_zero = OpInfo {
            peer: Some(WorldRank(0)),
            ..other
        };
        let recv = pair.post(&from_zero);
        assert_eq!(pair.received(&recv).expect("it has waited").0[0], 5);
    }
}

#[test]
fn a_second_message_in_one_turn_waits_for_the_second_receive() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    pair.send(&op_info(Some(1), Some(3)), &[1]);
    pair.send(&op_info(Some(1), Some(3)), &[2]);
    pair.turn();
    assert_eq!(pair.received(&recv).expect("the first").0[0], 1);
    let recv = pair.post(&op_info(Some(0), Some(3)));
    assert_eq!(pair.received(&recv).expect("the second").0[0], 2);
}

#[test]
fn a_receive_that_is_posted_between_gets_the_later_message() {
    let mut pair = CalmPair::new();
    let any = pair.expect(&op_info(None, None));
    let exact = pair.post(&op_info(Some(0), Some(3)));
    pair.0.engines[1].disturb();
    pair.send(&op_info(Some(1), Some(3)), &[1]);
    pair.send(&op_info(Some(1), Some(3)), &[2]);
    pair.turn();
    assert_eq!(pair.received(&any).expect("posted first").0[0], 1);
    assert_eq!(pair.received(&exact).expect("posted second").0[0], 2);
}

#[test]
fn a_peer_that_fails_in_the_turn_fails_the_receive() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    pair.0.engines[1]
        .core
        .peer_down(WorldRank(0), DownCause::Failed);
    let (outcome, _) = pair.0.received(1, &recv);
    assert_eq!(failed_rank(&outcome), Some(0));
}

#[test]
fn a_malformed_message_is_refused() {
    let mut pair = CalmPair::new();
    let recv = pair.expect(&op_info(Some(0), Some(3)));
    let header: EagerHeader = op_info(Some(1), Some(3)).eager();
    let header = bytemuck::bytes_of(&header);
    let body = PayloadView::from_slice(&[1]);
    let core = &mut pair.0.engines[1].core;
    core.message(WorldRank(0), &header[..header.len() - 1], body);
    core.message(WorldRank(0), &header[..3], body);
    assert_eq!(core.p2p.common.refused, 2);
    assert!(!pair.0.is_done(1, &recv));
}

/// A sender may have so many messages at a receiver, and must be told when they have left.
#[test]
fn a_sender_gets_its_room_back() {
    for len in [1, ROOM] {
        let mut pair = CalmPair::new();
        let mut found = 0;
        for _ in 0..100_000 {
            let recv = pair.post(&op_info(Some(0), Some(3)));
            pair.send(&op_info(Some(1), Some(3)), &[1; ROOM][..len]);
            found += u32::from(pair.look());
            pair.turn();
            assert_eq!(pair.taken(&recv).1, len);
            let sender = &mut pair.0.engines[0];
            sender.turn(ClockTime::default());
        }
        assert!(found > 50_000, "{found} messages were found by a look");
    }
}

/// The same random calls of three ranks, with and without the short way, have the same outcomes.
#[test]
fn the_short_way_between_ranks_ends_as_the_ordinary_one() {
    let first = calm_switch::first_seed();
    let mut straight = 0;
    for seed in first..first + 2000 {
        let mut run = |is_off| {
            calm_switch::set_off(is_off);
            let mut program = PairProgram::new(seed);
            (0..25).for_each(|step| program.step(step));
            calm_switch::set_off(false);
            straight += program.straight;
            program.seen
        };
        assert_eq!(run(false), run(true), "SEED={seed}");
    }
    assert!(
        straight > 1000,
        "only {straight} messages took the short way"
    );
}

const RANKS: u32 = 3;

/// One run of a random program.
struct PairProgram {
    world: World,
    random: SeededRandom,
    /// Receives that have not ended, with their ranks and the steps that posted them.
    receives: Vec<(usize, u32, Recv)>,
    seen: Vec<String>,
    /// Turns that left the calm and completed the expected receive.
    straight: u32,
}

impl PairProgram {
    fn new(seed: u64) -> Self {
        let mut world = World::new(RANKS, reliable());
        for engine in &mut world.engines {
            let ops = &mut engine.core.p2p.common.ops;
            let first = ops.hold_recv(op_info(None, None), [0; ROOM]);
            drop(ops.release(first.op)); // the slot of the expected receive is allocated with the first one
        }
        Self {
            world,
            random: SeededRandom::new(seed),
            receives: Vec::new(),
            seen: Vec::new(),
            straight: 0,
        }
    }

    fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.random.within(0..u64::from(end))).expect("a small number")
    }

    fn open(&mut self, end: u32) -> Option<u32> {
        let value = self.below(end);
        (self.below(4) > 0).then_some(value)
    }

    fn step(&mut self, step: usize) {
        let rank = self.below(RANKS);
        if self.below(2) == 0 {
            self.exchange(step, rank);
        } else {
            self.disturb(step, rank);
        }
        self.take_done(step);
    }

    /// Posts a receive and sends its message, sometimes with another call between.
    fn exchange(&mut self, step: usize, rank: u32) {
        let (from, tag) = ((rank + 1) % RANKS, self.below(2));
        let recv = post(
            &mut self.world.engines[rank as usize],
            &of_type(0, op_info(Some(from), Some(tag))),
        );
        self.receives.push((step, rank, recv));
        if self.below(4) == 0 {
            self.disturb(step, rank);
        }
        let info = of_type(0, op_info(Some(rank), Some(tag)));
        let engine = &mut self.world.engines[from as usize];
        assert!(send(engine, &info, &[3; 4]));
        self.turn(rank);
    }

    fn disturb(&mut self, step: usize, rank: u32) {
        match self.below(9) {
            0..=1 => self.post(step, rank),
            2..=4 => self.send(step, rank),
            5..=7 => self.turn(rank),
            _ => self.drop_one(),
        }
    }

    fn post(&mut self, step: usize, rank: u32) {
        let (source, tag) = (self.open(RANKS), self.open(2));
        let source = source.filter(|&source| source != rank);
        let sig = u64::from(self.below(8) / 7);
        let info = of_type(sig, op_info(source, tag));
        let recv = post(&mut self.world.engines[rank as usize], &info);
        self.receives.push((step, rank, recv));
    }

    fn send(&mut self, step: usize, rank: u32) {
        let to = (rank + 1 + self.below(RANKS - 1)) % RANKS;
        let tag = self.below(2);
        let sig = u64::from(self.below(8) / 7);
        let len = self.below(u32::try_from(ROOM).expect("a small number") + 2) as usize;
        let info = of_type(sig, op_info(Some(to), Some(tag)));
        let byte = u8::try_from(step % 251).expect("a byte");
        assert!(send(
            &mut self.world.engines[rank as usize],
            &info,
            &[byte; ROOM + 2][..len]
        ));
    }

    fn turn(&mut self, rank: u32) {
        let engine = &mut self.world.engines[rank as usize];
        let was_expecting = engine.core.p2p.common.calm == CalmState::Expecting;
        engine.turn(ClockTime::default());
        let is_straight = was_expecting && engine.core.p2p.common.calm == CalmState::Calm;
        self.straight += u32::from(is_straight);
    }

    fn drop_one(&mut self) {
        if self.receives.is_empty() {
            return;
        }
        let end = u32::try_from(self.receives.len()).expect("a small number");
        let at = self.below(end) as usize;
        let (_, rank, recv) = self.receives.remove(at);
        let engine = &mut self.world.engines[rank as usize];
        engine.disturb();
        engine.core.p2p.drop_recv(recv.op);
        engine.flush();
    }

    fn take_done(&mut self, step: usize) {
        let (engines, seen) = (&mut self.world.engines, &mut self.seen);
        self.receives.retain(|(posted, rank, recv)| {
            let Some(end) = received(&mut engines[*rank as usize], recv) else {
                return true;
            };
            seen.push(format!("{posted} of {rank} ended in {step}: {end:?}"));
            false
        });
    }
}
