//! Receives that lend their buffers to a scripted driver.

use std::sync::{Arc, Mutex, MutexGuard};

use ripstop_fabric::{
    driver::{CommandToken, TagBuffer},
    random::SeededRandom,
};

use super::{
    alone::{LoneFlush, LoneRank, op_info},
    scripted_driver::{
        DriverScript, ScriptedDriver, ScriptedReport, exact, header, lock, message, placed, token,
    },
};
use crate::{
    engine::commons::lone_rank::lone_setup,
    error::ErrorKind,
    group::WorldRank,
    ops::{OpInfo, OpOutcome, OpTicket},
    proto::wire::EagerHeader,
};

/// One rank over a scripted driver.
struct Rank {
    lone: LoneRank,
    script: Arc<Mutex<DriverScript>>,
}

type Recv = OpTicket<Vec<u8>>;

impl Rank {
    fn new() -> Self {
        let (driver, script) = ScriptedDriver::new();
        let setup = lone_setup(&driver, 0, 2);
        let lone = LoneRank::new(Box::new(driver), setup);
        Self { lone, script }
    }

    fn script(&self) -> MutexGuard<'_, DriverScript> {
        lock(&self.script)
    }

    fn says(&mut self, says: impl IntoIterator<Item = ScriptedReport>) {
        self.script().next.extend(says);
        self.turn();
    }

    fn turn(&mut self) {
        self.lone.turn();
    }

    fn recv(&mut self, info: &OpInfo, len: usize) -> Recv {
        let ticket = self.lone.core.p2p.common.ops.hold_recv(*info, vec![0; len]);
        self.lone.post(ticket.op);
        ticket
    }

    /// Posts a receive with this tag from rank 1, and checks that its buffer is lent.
    fn lend(&mut self, tag: u32, len: usize) -> Recv {
        let before = self.script().lent.len();
        let recv = self.recv(&exact(tag), len);
        assert_eq!(self.script().lent.len(), before + 1, "it is lent");
        recv
    }

    fn is_done(&mut self, recv: &Recv) -> bool {
        self.lone.core.p2p.common.is_done(recv.op)
    }

    fn end(&mut self, recv: &Recv) -> (OpOutcome, Vec<u8>) {
        let taken = self.lone.core.p2p.common.take_recv(recv);
        taken.expect("it is done")
    }

    /// Returns the bytes that a receive got.
    fn got(&mut self, recv: &Recv) -> Vec<u8> {
        let (outcome, bytes) = self.end(recv);
        let landed = outcome.expect("a message");
        bytes[..landed.bytes].to_vec()
    }

    fn failure(&mut self, recv: &Recv) -> ErrorKind {
        let (outcome, _) = self.end(recv);
        outcome.expect_err("an error").kind
    }
}

#[test]
fn a_message_that_was_placed_is_received_where_it_is() {
    let mut rank = Rank::new();
    let recv = rank.lend(1, 20);
    let offer = rank.script().lent[&token(&recv)];
    assert_eq!(
        (offer.header_len, offer.into.len()),
        (size_of::<EagerHeader>(), 20)
    );
    rank.says([placed(&recv, 1, b"placed bytes")]);
    assert_eq!(rank.got(&recv), b"placed bytes");
    assert!(rank.script().asked.is_empty());
}

#[test]
fn only_exact_receives_of_some_length_lend_their_buffers() {
    let mut rank = Rank::new();
    let longest = rank.lone.core.p2p.common.paths.to(WorldRank(1)).eager_max();
    for (info, len) in [
        (exact(1), 7),
        (exact(1), longest + 1),
        (op_info(None, Some(1)), 20),
    ] {
        rank.recv(&info, len);
        assert!(rank.script().lent.is_empty(), "{len} bytes");
    }
    // The wildcard receive is still waiting.
    rank.recv(&exact(1), 20);
    assert!(rank.script().lent.is_empty());
    let mut rank = Rank::new();
    rank.script().full = true;
    let recv = rank.recv(&exact(1), 20);
    rank.says([message(1, b"as ever")]);
    assert_eq!(rank.got(&recv), b"as ever");
}

#[test]
fn a_message_that_came_otherwise_waits_until_the_buffer_is_back() {
    for yields in [true, false] {
        let mut rank = Rank::new();
        rank.script().yields = yields;
        let recv = rank.lend(1, 20);
        rank.says([message(1, b"in a slab")]);
        if !yields {
            assert!(!rank.is_done(&recv), "the driver may still write");
            assert_eq!(rank.script().asked, [token(&recv)]);
            rank.says([ScriptedReport::Returned(token(&recv))]);
        }
        assert_eq!(rank.got(&recv), b"in a slab");
    }
}

#[test]
fn two_messages_that_came_in_each_others_way_are_swapped() {
    let mut rank = Rank::new();
    let [first, second] = [1, 1].map(|tag| rank.lend(tag, 20));
    rank.says([message(1, b"the first")]);
    assert!(!rank.is_done(&first), "the second is on its way into it");
    rank.says([placed(&first, 1, b"the second")]);
    assert_eq!(rank.got(&first), b"the first");
    assert!(!rank.is_done(&second), "its own buffer is lent as well");
    rank.says([placed(&second, 1, b"the third")]);
    assert_eq!(rank.got(&second), b"the second");
    let third = rank.recv(&exact(1), 20);
    assert_eq!(rank.got(&third), b"the third");
}

#[test]
fn a_message_that_was_placed_for_another_is_copied_there() {
    let mut rank = Rank::new();
    let [lent, other] = [1, 2].map(|tag| rank.lend(tag, 20));
    rank.script().yields = true;
    rank.says([placed(&lent, 2, b"for the other")]);
    assert_eq!(rank.got(&other), b"for the other");
    assert!(!rank.is_done(&lent));
    rank.says([message(1, b"its own")]);
    assert_eq!(rank.got(&lent), b"its own", "it is not lent any more");
}

#[test]
fn a_receive_that_is_given_up_keeps_its_buffer_until_the_driver_gives_it_back() {
    for says in 0..2 {
        let mut rank = Rank::new();
        let recv = rank.lend(1, 20);
        assert!(rank.lone.core.p2p.unpost(recv.op, ErrorKind::Cancelled));
        rank.lone.flush();
        assert!(!rank.is_done(&recv));
        if says == 0 {
            rank.says([ScriptedReport::Returned(token(&recv))]);
        } else {
            rank.says([placed(&recv, 1, b"nobody's")]);
        }
        assert!(matches!(rank.failure(&recv), ErrorKind::Cancelled));
        let next = rank.recv(&exact(1), 20);
        assert_eq!(rank.is_done(&next), says == 1, "the message is not lost");
    }
}

#[test]
fn a_buffer_that_was_dropped_goes_when_it_is_back_and_its_messages_to_others() {
    for matched in [false, true] {
        let mut rank = Rank::new();
        let recv = rank.lend(1, 20);
        if matched {
            rank.says([message(1, b"kept for it")]);
        }
        rank.lone.core.p2p.drop_recv(recv.op);
        rank.lone.flush();
        rank.says([]);
        assert!(
            rank.lone.core.p2p.common.garbage.is_empty(),
            "it may be written to"
        );
        rank.says([placed(&recv, 1, b"came late")]);
        assert_eq!(rank.lone.core.p2p.common.garbage.len(), 1, "it is let go");
        assert!(rank.lone.core.p2p.common.ops.get(recv.op).is_none());
        let expected: &[&[u8]] = if matched {
            &[b"kept for it", b"came late"]
        } else {
            &[b"came late"]
        };
        for body in expected {
            let next = rank.recv(&exact(1), 20);
            assert_eq!(rank.got(&next), *body);
        }
    }
}

#[test]
fn a_message_of_another_type_or_too_long_fails_its_receive_and_goes_on() {
    let mut rank = Rank::new();
    let strange = OpInfo { sig: 8, ..exact(1) };
    let recv = rank.lend(1, 20);
    rank.says([ScriptedReport::Placed(
        token(&recv),
        header(&strange),
        b"strange bytes".to_vec(),
    )]);
    assert!(matches!(
        rank.failure(&recv),
        ErrorKind::TypeMismatch { .. }
    ));
    let next = rank.recv(&strange, 20);
    assert_eq!(rank.got(&next), b"strange bytes");

    let [short, long] = [12, 30].map(|len| rank.lend(1, len));
    rank.says([message(1, b"too long for the first one")]);
    assert!(!rank.is_done(&short));
    rank.says([
        placed(&short, 1, b"the next"),
        ScriptedReport::Returned(token(&long)),
    ]);
    assert!(matches!(
        rank.failure(&short),
        ErrorKind::Truncated { sent: 26, room: 12 }
    ));
    assert_eq!(rank.got(&long), b"too long for the first one");
}

#[test]
fn the_end_of_a_peer_ends_its_receives_when_their_buffers_are_back() {
    let mut rank = Rank::new();
    let both = [1, 2].map(|tag| rank.lend(tag, 20));
    rank.says([ScriptedReport::Down]);
    assert!(both.iter().all(|recv| !rank.is_done(recv)));
    rank.says(
        both.each_ref()
            .map(|recv| ScriptedReport::Returned(token(recv))),
    );
    for recv in &both {
        let why = rank.failure(recv);
        assert!(
            matches!(why, ErrorKind::PeerFailed { rank: 1, .. }),
            "{why:?}"
        );
    }
}

/// A rank whose adapter places all messages that it can, next to one whose adapter places none.
struct Both {
    lending: Rank,
    plain: Rank,
    receives: Vec<[Option<Recv>; 2]>,
    placed: u32,
}

impl Both {
    fn new() -> Self {
        let [lending, plain] = [(); 2].map(|()| Rank::new());
        plain.script().full = true;
        Self {
            lending,
            plain,
            receives: Vec::new(),
            placed: 0,
        }
    }

    fn each(&mut self) -> [&mut Rank; 2] {
        [&mut self.lending, &mut self.plain]
    }

    fn recv(&mut self, info: &OpInfo, len: usize) {
        let both = self.each().map(|rank| Some(rank.recv(info, len)));
        self.receives.push(both);
    }

    /// Delivers a message to both ranks. The adapter decides immediately where to place it, and the rank learns of that later.
    fn comes(&mut self, info: &OpInfo, body: &[u8]) {
        let (head, tag) = (header(info), info.tag.unwrap_or(0));
        let mut script = self.lending.script();
        let fits = |(_, offer): &(&CommandToken, &TagBuffer)| {
            offer.tag.tag == tag && offer.into.len() >= body.len()
        };
        let found = script.lent.iter().find(fits).map(|(token, _)| *token);
        let says = match found {
            Some(token) => {
                let offer = script.lent.remove(&token).expect("just found");
                script.taken.insert(token, offer);
                self.placed += 1;
                ScriptedReport::Placed(token, head.clone(), body.to_vec())
            }
            None => ScriptedReport::Message(head.clone(), body.to_vec()),
        };
        script.next.push_back(says);
        drop(script);
        let says = ScriptedReport::Message(head, body.to_vec());
        self.plain.script().next.push_back(says);
    }

    /// Returns the buffers that the engine has asked for, except those into which a message is being written.
    fn give_back(&self) {
        let mut script = self.lending.script();
        let asked = std::mem::take(&mut script.asked);
        let waits = |token: &CommandToken| script.lent.contains_key(token);
        let back: Vec<_> = asked.into_iter().filter(waits).collect();
        for token in back {
            script.lent.remove(&token);
            script.next.push_back(ScriptedReport::Returned(token));
        }
    }

    fn turn(&mut self) {
        self.each().into_iter().for_each(Rank::turn);
    }

    fn cancel(&mut self, at: usize) {
        let [lending, plain] = &self.receives[at];
        let ops = [lending, plain].map(|recv| recv.as_ref().map(|recv| recv.op));
        for (rank, op) in self.each().into_iter().zip(ops) {
            if let Some(op) = op {
                rank.lone.core.p2p.unpost(op, ErrorKind::Cancelled);
                rank.lone.flush();
            }
        }
    }

    fn drop_recv(&mut self, at: usize) {
        let both = std::mem::take(&mut self.receives[at]);
        for (rank, recv) in self.each().into_iter().zip(both) {
            if let Some(recv) = recv {
                rank.lone.core.p2p.drop_recv(recv.op);
                rank.lone.flush();
            }
        }
    }

    /// Returns how a receive ended on both ranks, in words.
    fn ends(&mut self, at: usize) -> [Option<String>; 2] {
        let both = std::mem::take(&mut self.receives[at]);
        let mut ends = [None, None];
        for ((rank, recv), end) in self.each().into_iter().zip(both).zip(&mut ends) {
            let Some(recv) = recv.filter(|recv| rank.is_done(recv)) else {
                continue;
            };
            let (outcome, bytes) = rank.end(&recv);
            *end = Some(match outcome {
                Ok(landed) => format!("{} {:?}", landed.tag, &bytes[..landed.bytes]),
                Err(failure) => format!("{:?}", failure.kind),
            });
        }
        ends
    }
}

/// Whichever way messages take, receives end as if no buffer had been lent.
#[test]
fn what_the_adapter_places_changes_nothing_but_copies() {
    let mut placed = 0;
    for seed in 0..400 {
        let mut random = SeededRandom::new(seed);
        let mut both = Both::new();
        both.lending.script().yields = random.chance(0.5);
        for number in 0..120_u8 {
            let mut below = |end: usize| {
                let number = random.within(0..end as u64);
                usize::try_from(number).expect("it is small")
            };
            let tag = u32::try_from(below(3)).expect("it is small");
            let (len, some) = (8 + below(8), below(both.receives.len()));
            match random.within(0..16) {
                0..5 => both.recv(&exact(tag), len),
                5 => both.recv(&op_info(None, Some(tag)), len),
                6 => both.recv(&op_info(Some(1), None), len),
                7..12 => {
                    let sig = if random.chance(0.1) { 8 } else { 7 };
                    both.comes(&OpInfo { sig, ..exact(tag) }, &vec![number; len]);
                }
                // Make a turn first: the two ranks only agree on what a receive has matched when both have handled all messages.
                12 if !both.receives.is_empty() => {
                    both.turn();
                    both.cancel(some);
                }
                13 if !both.receives.is_empty() => {
                    both.turn();
                    both.drop_recv(some);
                }
                14 => both.give_back(),
                _ => both.turn(),
            }
        }
        for _ in 0..both.receives.len() {
            both.turn();
            both.give_back();
        }
        both.turn();
        let end = both.receives.len();
        (0..200).for_each(|_| both.recv(&op_info(None, None), 16));
        both.turn();
        for at in 0..both.receives.len() {
            let [lending, plain] = both.ends(at);
            assert_eq!(lending, plain, "seed {seed}, receive {at} of {end}");
        }
        placed += both.placed;
    }
    assert!(placed > 400, "{placed} placed in all stories");
}
