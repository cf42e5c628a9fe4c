//! More messages than there is room for, also over drivers that lose them, and where a rank closes.
#![expect(clippy::print_stdout, reason = "seeds are printed")]

use ripstop_fabric::random::SeededRandom;

use super::world::{DETECT, Net, TICK, World, op_info};
use crate::{
    engine::{
        SendStart,
        point_to_point::tests::held_back::{ROOM, id_of, payload},
    },
    error::ErrorKind,
    ops::OpTicket,
    proto::wire::OpId,
};

fn small_world(ranks: u32, reliable: bool, loss: u64) -> World {
    let net = Net {
        reliable,
        loss,
        detects_death: true,
        ..Net::default()
    };
    World::with(ranks, net, |setup| setup.store.messages = ROOM)
}

#[test]
fn the_last_of_many_messages_is_received_first_although_the_driver_keeps_no_order() {
    let count = 3_000;
    let mut world = small_world(2, false, 0);
    for id in 0..count {
        let _ = world.send(1, 0, 1, payload(id, 4));
    }
    let _ = world.send(1, 0, 2, payload(count, 4));
    world.run_for(100 * TICK);
    let mut recv_now = |tag| {
        let recv = world.recv(0, Some(1), Some(tag));
        let (outcome, buf) = world.await_recv(0, &recv);
        assert!(outcome.is_ok(), "{outcome:?}");
        assert!(world.engines[0].core.p2p.stored() <= ROOM);
        id_of(&buf)
    };
    assert_eq!(recv_now(2), count);
    for id in 0..count {
        assert_eq!(recv_now(1), id);
    }
}

#[test]
fn a_rank_that_closes_lets_those_go_that_it_has_no_room_for() {
    let mut world = small_world(3, true, 0);
    let mut sends = Vec::new();
    for id in 0..200 {
        sends.push((
            1 + id % 2,
            world.send_sync(1 + id % 2, 0, id, payload(id, 4)),
        ));
    }
    world.run_for(DETECT);
    world.engines[0].begin_close();
    world.run_for(DETECT);
    for (rank, send) in sends {
        let (outcome, _) = world.sent(rank, &send);
        let finished = |kind: &ErrorKind| matches!(kind, ErrorKind::PeerFinished { rank: 0 });
        assert!(matches!(outcome, Err(why) if finished(&why.kind)));
    }
    assert!(world.engines[0].is_closed());
}

/// One message of the random test.
struct Sent {
    from: u32,
    tag: u32,
    op: Option<OpTicket<Vec<u8>>>,
    /// True once the send was given up. It is then withdrawn or received.
    given_up: bool,
    withdrawn: bool,
    /// Number of the receive that got it.
    got: Option<usize>,
}

struct Receive {
    from: Option<u32>,
    tag: Option<u32>,
    ticket: Option<OpTicket<Vec<u8>>>,
}

/// Random test in which rank 0 receives from two other ranks, and perhaps from itself, with the state of all three.
struct Chaos {
    world: World,
    first_sender: u32,
    random: SeededRandom,
    sent: Vec<Sent>,
    receives: Vec<Receive>,
}

impl Chaos {
    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("small");
        usize::try_from(self.random.within(0..limit)).expect("small")
    }

    fn small(&mut self, limit: u32) -> u32 {
        u32::try_from(self.random.within(0..u64::from(limit))).expect("small")
    }

    fn act(&mut self, gentle: bool) {
        match self.small(if gentle { 9 } else { 11 }) {
            0..=3 => self.send(),
            4 | 5 => self.post(),
            6 => self.unpost(),
            7 => self.withdraw(),
            8 => self.probe(gentle),
            _ => self.forsake(),
        }
        if self.random.chance(0.3) {
            self.step();
        }
    }

    fn step(&mut self) {
        self.world.step();
        let stored = self.world.engines[0].core.p2p.stored();
        assert!(stored <= ROOM, "{stored} messages are stored");
        for at in 0..self.receives.len() {
            let ticket = self.receives[at].ticket.take();
            if let Some(ticket) = ticket {
                if self.world.is_done(0, &ticket) {
                    self.land(at, &ticket);
                } else {
                    self.receives[at].ticket = Some(ticket);
                }
            }
        }
    }

    fn land(&mut self, at: usize, ticket: &OpTicket<Vec<u8>>) {
        let (outcome, buf) = self.world.received(0, ticket);
        match outcome {
            Ok(landed) => {
                let sent = &mut self.sent[id_of(&buf) as usize];
                assert_eq!((landed.source.0, landed.tag), (sent.from, sent.tag));
                assert_eq!(sent.got.replace(at), None, "a message came twice");
            }
            Err(why) => assert!(matches!(why.kind, ErrorKind::TimedOut), "{why:?}"),
        }
    }

    fn send(&mut self) {
        let (from, tag) = (self.sender(), self.small(4));
        let id = u32::try_from(self.sent.len()).expect("few");
        let len = if self.random.chance(0.2) { 20_000 } else { 4 };
        let started = self.world.send(from, 0, tag, payload(id, len));
        let op = match started {
            SendStart::InFlight(ticket) => Some(ticket),
            _ => None,
        };
        self.sent.push(Sent {
            from,
            tag,
            op,
            given_up: false,
            withdrawn: false,
            got: None,
        });
    }

    fn sender(&mut self) -> u32 {
        self.first_sender + self.small(3 - self.first_sender)
    }

    /// Returns a source and a tag. Each is a wildcard once in `open` times.
    fn want(&mut self, open: u32) -> (Option<u32>, Option<u32>) {
        let (from, tag) = (self.sender(), self.small(4));
        let [name_from, name_tag] = [(); 2].map(|()| self.small(open) > 0);
        (name_from.then_some(from), name_tag.then_some(tag))
    }

    fn post(&mut self) {
        let (from, tag) = self.want(3);
        let ticket = Some(self.world.recv(0, from, tag));
        self.receives.push(Receive { from, tag, ticket });
    }

    fn unpost(&mut self) {
        if let Some(op) = self.some_receive() {
            self.world.engines[0]
                .core
                .p2p
                .unpost(op, ErrorKind::TimedOut);
        }
    }

    fn forsake(&mut self) {
        if let Some(op) = self.some_receive() {
            self.world.engines[0].core.p2p.drop_recv(op);
            let is_it = |receive: &Receive| receive.ticket.as_ref().is_some_and(|it| it.op == op);
            let it = self.receives.iter_mut().find(|receive| is_it(receive));
            it.expect("just found").ticket = None;
        }
    }

    fn some_receive(&mut self) -> Option<OpId> {
        let posted = self
            .receives
            .iter()
            .filter_map(|receive| receive.ticket.as_ref());
        let posted: Vec<OpId> = posted.map(|ticket| ticket.op).collect();
        (!posted.is_empty()).then(|| posted[self.below(posted.len())])
    }

    fn withdraw(&mut self) {
        let at = self.below(self.sent.len().max(1));
        let Some(sent) = self.sent.get_mut(at) else {
            return;
        };
        if let Some(op) = &sent.op {
            let core = &mut self.world.engines[sent.from as usize].core;
            core.p2p.withdraw(op.op, ErrorKind::TimedOut);
            sent.given_up = true;
        }
    }

    /// Makes a matched probe, and receives or returns its message.
    fn probe(&mut self, gentle: bool) {
        let (from, tag) = self.want(2);
        let engine = &mut self.world.engines[0];
        let Some(landed) = engine.core.p2p.try_probe(&op_info(from, tag)) else {
            return;
        };
        if gentle || self.random.chance(0.5) {
            let named = op_info(Some(landed.source.0), Some(landed.tag));
            let ticket = engine.core.p2p.common.ops.hold_growing::<u8>(named);
            engine.recv_probed(ticket.op, &landed);
            let ticket = Some(ticket);
            self.receives.push(Receive { from, tag, ticket });
        } else {
            engine.return_probed(&landed);
        }
    }

    /// Receives everything that is left, by tag and in random order. Messages in front of it must not block it.
    fn drain(&mut self) {
        for at in 0..self.receives.len() {
            if let Some(ticket) = &self.receives[at].ticket {
                let op = ticket.op;
                self.world.engines[0]
                    .core
                    .p2p
                    .unpost(op, ErrorKind::TimedOut);
            }
        }
        let mut turns = 0;
        while self
            .sent
            .iter()
            .any(|sent| sent.given_up && sent.op.is_some())
        {
            self.step();
            self.settle_sends();
            turns += 1;
            assert!(turns < LONG, "a send that was given up goes on for ever");
        }
        loop {
            let left = self
                .sent
                .iter()
                .filter(|sent| sent.got.is_none() && !sent.withdrawn);
            let left: Vec<(u32, u32)> = left.map(|sent| (sent.from, sent.tag)).collect();
            if left.is_empty() {
                break;
            }
            let (from, tag) = left[self.below(left.len())];
            let from = self.random.chance(0.7).then_some(from);
            let recv = self.world.recv(0, from, Some(tag));
            let at = self.receives.len();
            let tag = Some(tag);
            self.receives.push(Receive {
                from,
                tag,
                ticket: Some(recv),
            });
            let mut turns = 0;
            while self.receives[at].ticket.is_some() {
                self.step();
                turns += 1;
                assert!(turns < LONG, "a receive waits for ever");
            }
        }
    }

    /// Records the sends that were withdrawn.
    fn settle_sends(&mut self) {
        for sent in &mut self.sent {
            let core = &mut self.world.engines[sent.from as usize].core;
            if let Some(op) = sent.op.take_if(|op| core.p2p.common.is_done(op.op)) {
                let (outcome, _) = core.p2p.common.take_send(&op).expect("it is done");
                sent.withdrawn = outcome.is_err();
                assert!(
                    !sent.withdrawn || sent.got.is_none(),
                    "received and withdrawn"
                );
            }
        }
    }

    /// Checks MPI's order: of two messages of one sender that fit the receive of the second, an earlier receive got the first.
    fn check_order(&self) {
        for (id, late) in self.sent.iter().enumerate() {
            let Some(got) = late.got else { continue };
            let receive = &self.receives[got];
            let fits = |sent: &&Sent| {
                sent.from == late.from
                    && !sent.withdrawn
                    && receive.tag.is_none_or(|tag| tag == sent.tag)
            };
            for early in self.sent[..id].iter().filter(fits) {
                let earlier = early.got.is_some_and(|it| it < got);
                let by = receive.from;
                assert!(
                    earlier,
                    "message {id} overtook one of tag {} ({by:?})",
                    early.tag
                );
            }
        }
    }
}

/// Most turns to wait: a hundred times the longest timeout.
const LONG: u32 = 800_000;

fn chaos(seed: u64, reliable: bool, loss: u64, gentle: bool) {
    chaos_from(1, seed, reliable, loss, gentle);
}

fn chaos_from(first_sender: u32, seed: u64, reliable: bool, loss: u64, gentle: bool) {
    println!(
        "first sender {first_sender}, seed {seed}, reliable {reliable}, loss {loss}, gentle {gentle}"
    );
    let mut chaos = Chaos {
        world: small_world(3, reliable, loss),
        first_sender,
        random: SeededRandom::new(seed),
        sent: Vec::new(),
        receives: Vec::new(),
    };
    for _ in 0..600 {
        chaos.act(gentle);
    }
    chaos.drain();
    if gentle {
        chaos.check_order();
    }
    for sent in &chaos.sent {
        assert!(sent.got.is_some() != sent.withdrawn);
    }
    let core = &mut chaos.world.engines[0].core;
    assert_eq!(core.p2p.stored(), 0, "everything was received");
    assert_eq!(core.p2p.common.refused, 0);
}

#[test]
fn every_message_is_received_once_in_order_whatever_is_sent_sought_withdrawn_and_given_up() {
    // The last two seeds have found faults.
    for seed in (0..60).chain([1279, 2771]) {
        chaos(seed, true, 0, true);
    }
    for seed in 60..75 {
        chaos(seed, false, 0, true);
        chaos(seed, false, 30, true);
    }
}

#[test]
fn messages_of_a_rank_to_itself_keep_the_order_also_past_the_driver() {
    for seed in 200..260 {
        chaos_from(0, seed, true, 0, true);
        chaos_from(0, seed, true, 0, false);
    }
    for seed in 260..270 {
        chaos_from(0, seed, false, 30, true);
    }
}

#[test]
fn nothing_is_lost_when_receives_are_dropped_and_probed_messages_returned() {
    for seed in 100..150 {
        chaos(seed, true, 0, false);
    }
    for seed in 150..160 {
        chaos(seed, false, 30, false);
    }
}
