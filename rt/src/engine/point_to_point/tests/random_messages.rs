//! Random sends, receives, drops and withdrawals between a few ranks.
#![expect(clippy::print_stdout, reason = "seeds are printed")]

use ripstop_fabric::random::SeededRandom;

use super::alone::{LoneFlush, LoneRank, lone_ranks, op_info};
use crate::{engine::SendStart, error::ErrorKind, group::WorldRank, ops::OpTicket};

/// Smallest possible room for unexpected messages, in messages.
const ROOM: usize = 16;

/// Most turns of all ranks until anything that can complete has completed.
const LONG: u32 = 100_000;

struct Sent {
    from: u32,
    to: u32,
    tag: u32,
    len: usize,
    /// The send, until its buffer is back.
    ticket: Option<OpTicket<Vec<u8>>>,
    /// True if the sender has tried to withdraw it.
    given_up: bool,
    withdrawn: bool,
    /// Number of the receive that got it.
    got: Option<usize>,
}

struct Receive {
    on: u32,
    from: Option<u32>,
    tag: Option<u32>,
    ticket: Option<OpTicket<Vec<u8>>>,
}

struct RandomProgram {
    random: SeededRandom,
    ranks: Vec<LoneRank>,
    sent: Vec<Sent>,
    receives: Vec<Receive>,
    /// True if receives are dropped, after which messages come back.
    drops: bool,
}

/// Returns the content of a message: its number, and bytes that depend on it.
fn payload(id: usize, len: usize) -> Vec<u8> {
    let number = u32::try_from(id).expect("few");
    let rest = (4..len).map(|at| (at ^ id).to_le_bytes()[0]);
    number.to_ne_bytes().into_iter().chain(rest).collect()
}

impl RandomProgram {
    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("small");
        usize::try_from(self.random.within(0..limit)).expect("small")
    }

    fn small(&mut self, limit: u32) -> u32 {
        u32::try_from(self.random.within(0..u64::from(limit))).expect("small")
    }

    fn any_rank(&mut self) -> u32 {
        let size = u32::try_from(self.ranks.len()).expect("few");
        self.small(size)
    }

    fn rank(&mut self, rank: u32) -> &mut LoneRank {
        &mut self.ranks[rank as usize]
    }

    fn act(&mut self) {
        match self.small(if self.drops { 11 } else { 9 }) {
            0..=3 => self.send(),
            4..=6 => self.post(),
            7 => self.cancel_receive(),
            8 => self.withdraw(),
            9 => self.drop_receive(),
            _ => self.detach_send(),
        }
        if self.random.chance(0.3) {
            self.step();
        }
    }

    fn send(&mut self) {
        let (from, to, tag) = (self.any_rank(), self.any_rank(), self.small(3));
        let len = [4, 4, 100, 20_000, 60_000][self.below(5)];
        let info = op_info(Some(to), Some(tag));
        let buf = payload(self.sent.len(), len);
        let ticket = match self.rank(from).send(info, buf) {
            SendStart::InFlight(ticket) => Some(ticket),
            SendStart::Sent(_) => None,
            SendStart::Refused(kind, _) => panic!("{kind:?}"),
        };
        self.sent.push(Sent {
            from,
            to,
            tag,
            len,
            ticket,
            given_up: false,
            withdrawn: false,
            got: None,
        });
    }

    fn post(&mut self) {
        let (on, from, tag) = (self.any_rank(), self.any_rank(), self.small(3));
        let [is_from, is_tagged] = [(); 2].map(|()| self.small(3) > 0);
        self.post_for(on, is_from.then_some(from), is_tagged.then_some(tag));
    }

    fn post_for(&mut self, on: u32, from: Option<u32>, tag: Option<u32>) {
        let ticket = Some(self.rank(on).recv(op_info(from, tag)));
        self.receives.push(Receive {
            on,
            from,
            tag,
            ticket,
        });
    }

    /// Returns the number of a receive that is not known to be complete.
    fn any_receive(&mut self) -> Option<usize> {
        let open = (0..self.receives.len()).filter(|&at| self.receives[at].ticket.is_some());
        let open: Vec<usize> = open.collect();
        (!open.is_empty()).then(|| open[self.below(open.len())])
    }

    fn cancel_receive(&mut self) {
        if let Some(at) = self.any_receive() {
            self.cancel(at);
        }
    }

    fn cancel(&mut self, at: usize) {
        let Receive { on, ticket, .. } = &self.receives[at];
        if let Some(ticket) = ticket {
            let p2p = &mut self.ranks[*on as usize].core.p2p;
            p2p.unpost(ticket.op, ErrorKind::TimedOut);
        }
    }

    fn drop_receive(&mut self) {
        if let Some(at) = self.any_receive()
            && let Some(ticket) = self.receives[at].ticket.take()
        {
            let on = self.receives[at].on;
            self.rank(on).core.p2p.drop_recv(ticket.op);
        }
    }

    fn any_send(&mut self) -> Option<usize> {
        (!self.sent.is_empty()).then(|| self.below(self.sent.len()))
    }

    fn withdraw(&mut self) {
        if let Some(id) = self.any_send()
            && let Some(ticket) = &self.sent[id].ticket
        {
            let p2p = &mut self.ranks[self.sent[id].from as usize].core.p2p;
            p2p.withdraw(ticket.op, ErrorKind::TimedOut);
            self.sent[id].given_up = true;
        }
    }

    /// Drops the future of a send, which goes on.
    fn detach_send(&mut self) {
        if let Some(id) = self.any_send()
            && !self.sent[id].given_up
            && let Some(ticket) = self.sent[id].ticket.take()
        {
            let from = self.sent[id].from;
            self.rank(from).core.p2p.common.detach(ticket.op);
        }
    }

    /// Lets each rank make a turn, and takes what has completed. Returns true if anything happened.
    fn step(&mut self) -> bool {
        let mut happened = false;
        for rank in &mut self.ranks {
            happened |= rank.turn();
            rank.core.p2p.common.wakers.clear();
            rank.core.p2p.common.garbage.clear();
            let stored = rank.core.p2p.stored();
            assert!(stored <= ROOM, "{stored} messages are stored");
        }
        for at in 0..self.receives.len() {
            self.take_received(at);
        }
        for sent in &mut self.sent {
            let common = &mut self.ranks[sent.from as usize].core.p2p.common;
            if let Some(ticket) = sent.ticket.take_if(|ticket| common.is_done(ticket.op)) {
                let (outcome, buf) = common.take_send(&ticket).expect("it is done");
                assert_eq!(buf.len(), sent.len);
                sent.withdrawn = outcome.is_err();
                assert!(sent.given_up || !sent.withdrawn, "{outcome:?}");
            }
        }
        happened
    }

    fn take_received(&mut self, at: usize) {
        let receive = &mut self.receives[at];
        let common = &mut self.ranks[receive.on as usize].core.p2p.common;
        let Some(ticket) = receive.ticket.take_if(|ticket| common.is_done(ticket.op)) else {
            return;
        };
        let (outcome, buf) = common.take_recv(&ticket).expect("it is done");
        match outcome {
            Ok(landed) => {
                let id = u32::from_ne_bytes([buf[0], buf[1], buf[2], buf[3]]) as usize;
                let sent = &mut self.sent[id];
                assert_eq!((landed.source.0, landed.tag), (sent.from, sent.tag));
                assert_eq!(receive.on, sent.to);
                assert!(buf == payload(id, sent.len), "message {id} has other bytes");
                assert_eq!(sent.got.replace(at), None, "message {id} came twice");
            }
            Err(failure) => assert!(matches!(failure.kind, ErrorKind::TimedOut), "{failure:?}"),
        }
    }

    fn run_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut turns = 0;
        while !is_so(self) {
            self.step();
            turns += 1;
            assert!(turns < LONG, "{what} for ever");
        }
    }

    /// Ends what is open, and receives everything that is left, in random order.
    fn finish(&mut self) {
        for at in 0..self.receives.len() {
            self.cancel(at);
        }
        self.run_until("a withdrawn send goes on", |program| {
            let mut given_up = program.sent.iter().filter(|sent| sent.given_up);
            given_up.all(|sent| sent.ticket.is_none())
        });
        self.run_until("a matched receive goes on", |program| {
            let mut receives = program.receives.iter();
            receives.all(|receive| receive.ticket.is_none())
        });
        loop {
            let left = self.sent.iter();
            let left = left.filter(|sent| sent.got.is_none() && !sent.withdrawn);
            let left: Vec<_> = left.map(|sent| (sent.to, sent.from, sent.tag)).collect();
            if left.is_empty() {
                break;
            }
            let (on, from, tag) = left[self.below(left.len())];
            let from = self.random.chance(0.7).then_some(from);
            let tag = self.random.chance(0.7).then_some(tag);
            self.post_for(on, from, tag);
            self.run_until("a receive waits", |program| {
                program
                    .receives
                    .last()
                    .is_none_or(|last| last.ticket.is_none())
            });
        }
        self.run_until("a send goes on", |program| {
            program.sent.iter().all(|sent| sent.ticket.is_none())
        });
        while self.step() {}
    }

    /// Checks MPI's order: of two messages of one sender that fit the receive of the second, an earlier receive got the first.
    fn check_order(&self) {
        for (id, late) in self.sent.iter().enumerate() {
            let Some(got) = late.got else { continue };
            let receive = &self.receives[got];
            let is_before = |early: &&Sent| {
                (early.from, early.to) == (late.from, late.to)
                    && !early.withdrawn
                    && receive.tag.is_none_or(|tag| tag == early.tag)
            };
            for early in self.sent[..id].iter().filter(is_before) {
                assert!(
                    early.got.is_some_and(|it| it < got),
                    "message {id} overtook one of tag {} at a receive from {:?}",
                    early.tag,
                    receive.from
                );
            }
        }
    }

    /// Checks that each message was received or withdrawn, and that all ranks are as at the start.
    fn check_end(&mut self) {
        for (id, sent) in self.sent.iter().enumerate() {
            assert!(sent.got.is_some() != sent.withdrawn, "message {id}");
        }
        let size = u32::try_from(self.ranks.len()).expect("few");
        for rank in &mut self.ranks {
            for peer in 0..size {
                rank.core.p2p.common.say_credits(WorldRank(peer));
            }
            rank.flush();
        }
        while self.step() {}
        for (rank, me) in self.ranks.iter_mut().zip(0..) {
            let p2p = &mut rank.core.p2p;
            assert_eq!(p2p.common.refused, 0, "messages that rank {me} refused");
            assert_eq!(p2p.stored(), 0, "messages stored at rank {me}");
            assert!(p2p.tables().is_idle(), "receives or messages at rank {me}");
            let left = p2p.common.ops.select(|_| true);
            assert!(left.is_empty(), "operations left at rank {me}: {left:?}");
            assert_eq!((p2p.common.offers, p2p.common.commands_in_flight), (0, 0));
            assert!(p2p.common.commands.is_empty() && p2p.common.exposed.is_settled());
            for peer in 0..size {
                let spent = p2p.common.peers.peer_mut(WorldRank(peer)).credits.spent();
                assert_eq!(spent, 0, "credits of rank {me} at rank {peer}");
            }
        }
    }
}

fn run_random_program(seed: u64, drops: bool) {
    let mut random = SeededRandom::new(seed);
    let size = u32::try_from(random.within(2..5)).expect("few");
    println!("seed {seed}, drops {drops}: {size} ranks");
    let ranks = lone_ranks(size, |setup| setup.store.messages = ROOM);
    let mut program = RandomProgram {
        random,
        ranks,
        sent: Vec::new(),
        receives: Vec::new(),
        drops,
    };
    for _ in 0..400 {
        program.act();
    }
    program.finish();
    if !drops {
        program.check_order();
    }
    program.check_end();
}

#[test]
fn messages_keep_their_order_whatever_is_sent_received_canceled_and_withdrawn() {
    for seed in 0..20 {
        run_random_program(seed, false);
    }
}

#[test]
fn each_message_is_received_once_although_receives_are_dropped() {
    for seed in 20..40 {
        run_random_program(seed, true);
    }
}
