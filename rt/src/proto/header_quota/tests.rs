#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::collections::VecDeque;

use ripstop_fabric::random::SeededRandom;

use super::{
    BlockedQueue, FetchCandidate, FetchResult, HeaderQuota, HeaderRoom, PeerQuota, QueueFront,
    QuotaGrants,
};
use crate::group::WorldRank;

/// Reference implementation of a queue: a list that is searched.
#[derive(Default)]
struct Plain {
    all: Vec<Entry>,
    curious: bool,
    known: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    item: u32,
    ctx: u32,
    tag: u32,
    out: bool,
}

impl Plain {
    fn first_of(&self, ctx: u32, tag: Option<u32>) -> Option<usize> {
        let fits = |entry: &Entry| entry.ctx == ctx && tag.is_none_or(|tag| tag == entry.tag);
        self.all.iter().position(fits)
    }

    fn held(&self, at: usize) -> FetchCandidate {
        let Entry { ctx, tag, .. } = self.all[at];
        let first = self.first_of(ctx, None) == Some(at);
        FetchCandidate { ctx, tag, first }
    }

    fn push(&mut self, item: u32, ctx: u32, tag: u32) -> Option<FetchCandidate> {
        let known = self.first_of(ctx, Some(tag)).is_some();
        let out = false;
        self.all.push(Entry {
            item,
            ctx,
            tag,
            out,
        });
        (self.curious && !known).then(|| self.held(self.all.len() - 1))
    }

    fn front(&self) -> QueueFront<u32> {
        match self.all.first() {
            None => QueueFront::Nothing,
            Some(entry) if entry.out => QueueFront::Out(entry.item),
            Some(entry) => QueueFront::Waiting(entry.item),
        }
    }

    fn take(&mut self, at: usize) -> Entry {
        let entry = self.all.remove(at);
        self.curious &= !self.all.is_empty();
        self.known &= !self.all.is_empty();
        entry
    }

    fn block(&mut self) -> bool {
        let tells = self.known && self.curious;
        self.known = true;
        tells
    }

    fn seek(&mut self, ctx: u32, tag: Option<u32>) -> FetchResult<u32> {
        let Some(at) = self.first_of(ctx, tag) else {
            self.curious |= !self.all.is_empty();
            return FetchResult::Nothing;
        };
        let (item, first) = (self.all[at].item, self.held(at).first);
        let out = std::mem::replace(&mut self.all[at].out, true);
        self.curious |= out;
        match (out, first) {
            (false, _) => FetchResult::Found { item, first },
            (true, true) => FetchResult::Out(item),
            (true, false) => FetchResult::Nothing,
        }
    }

    fn uncovered(&self, ctx: u32, tag: u32) -> Vec<FetchCandidate> {
        let same = self.first_of(ctx, Some(tag));
        let any = self.first_of(ctx, None).filter(|any| same != Some(*any));
        let all = same
            .into_iter()
            .chain(any)
            .filter(|&at| self.curious && !self.all[at].out);
        all.map(|at| self.held(at)).collect()
    }
}

#[test]
fn a_line_does_what_a_list_does_that_is_looked_through() {
    for seed in 0..30 {
        println!("seed {seed}");
        let mut random = SeededRandom::new(seed);
        let (mut line, mut plain) = (BlockedQueue::new(), Plain::default());
        for item in 0..3_000_u32 {
            let (ctx, tag) = (small(&mut random, 2), small(&mut random, 4));
            let any = random.chance(0.3);
            match random.within(0..10) {
                0..=3 => assert_eq!(line.push(item, ctx, tag), plain.push(item, ctx, tag)),
                4 | 5 => {
                    let tag = (!any).then_some(tag);
                    assert_eq!(line.fetch(ctx, tag), plain.seek(ctx, tag));
                }
                6 => {
                    let QueueFront::Waiting(_) = line.front() else {
                        continue;
                    };
                    line.pop();
                    plain.take(0);
                }
                way => end_one(way, &mut line, &mut plain, &mut random),
            }
            assert_eq!(line.front(), plain.front());
            assert_eq!(line.is_empty(), plain.all.is_empty());
            if random.chance(0.1) {
                assert_eq!(line.block(), plain.block());
            }
        }
    }
}

/// Withdraws a message, or has it matched or sent back.
fn end_one(way: u64, line: &mut BlockedQueue<u32>, plain: &mut Plain, random: &mut SeededRandom) {
    let len = u32::try_from(plain.all.len()).expect("short");
    if len == 0 {
        return;
    }
    let at = small(random, len) as usize;
    let Entry {
        item,
        ctx,
        tag,
        out,
    } = plain.all[at];
    assert_eq!(line.is_fetched(item, ctx, tag), out);
    match (way, out) {
        (7, false) => {
            plain.take(at);
            assert_eq!(line.remove(item), plain.uncovered(ctx, tag));
        }
        (8, true) => {
            plain.take(at);
            assert_eq!(
                line.remove_fetched(item, ctx, tag),
                plain.uncovered(ctx, tag)
            );
        }
        (9, true) => {
            plain.all[at].out = false;
            assert_eq!(
                line.put_back(item, ctx, tag),
                Some(plain.uncovered(ctx, tag))
            );
        }
        _ => {
            assert!(out || line.put_back(item, ctx, tag).is_none());
        }
    }
}

fn small(random: &mut SeededRandom, limit: u32) -> u32 {
    u32::try_from(random.within(0..u64::from(limit))).expect("small")
}

#[test]
fn what_every_peer_may_send_from_the_start_fits_at_every_size() {
    for headers in [16, 17, 100, 65_536, 1 << 30, usize::MAX] {
        for peers in [1, 2, 15, 16, 64, 1_000, 16_384, 1 << 20] {
            let room = HeaderRoom { headers, peers };
            let grants = QuotaGrants::new(room);
            assert!(u64::from(grants.promised(peers)) < headers as u64);
        }
    }
    assert_eq!(
        HeaderRoom {
            headers: 65_536,
            peers: 16_384
        }
        .first(),
        1
    );
    assert_eq!(
        HeaderRoom {
            headers: 65_536,
            peers: 2
        }
        .first(),
        64
    );
    assert_eq!(
        HeaderRoom {
            headers: 16,
            peers: 64
        }
        .first(),
        0
    );
}

/// A receiver and its peers, with messages in flight in both directions.
struct World {
    room: HeaderRoom,
    grants: QuotaGrants,
    peers: Vec<Peer>,
    stored: usize,
    seed: SeededRandom,
}

struct Peer {
    allowance: HeaderQuota,
    granted: PeerQuota,
    to_receiver: VecDeque<Note>,
    to_sender: VecDeque<Note>,
    to_send: u32,
    stored: u32,
    received: u32,
}

#[derive(Clone, Copy, Debug)]
enum Note {
    Message,
    Blocked(u32, u32),
    Grant(u32),
    Recall,
    Limit(u32),
}

impl World {
    fn new(room: HeaderRoom, seed: u64) -> Self {
        let peer = |_| Peer {
            allowance: HeaderQuota::new(room.first()),
            granted: PeerQuota::new(room.first()),
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
            to_send: 0,
            stored: 0,
            received: 0,
        };
        Self {
            room,
            grants: QuotaGrants::new(room),
            peers: (0..room.peers).map(peer).collect(),
            stored: 0,
            seed: SeededRandom::new(seed),
        }
    }

    /// Makes one event happen at one of the ranks.
    fn step(&mut self) {
        let rank = small(&mut self.seed, self.room.peers);
        match self.seed.within(0..4) {
            0 => self.send(rank),
            1 => self.hear(rank),
            2 => self.consume(rank),
            _ => self.receive(rank),
        }
        let room = self.room.headers;
        assert!(self.stored < room, "{} of {room}", self.stored);
        assert!((self.grants.promised(self.room.peers) as usize) < room);
    }

    fn send(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        while peer.to_send > 0 && peer.allowance.spend() {
            peer.to_send -= 1;
            peer.to_receiver.push_back(Note::Message);
        }
        if peer.to_send > 0
            && let Some(at) = peer.allowance.block()
        {
            peer.to_receiver.push_back(Note::Blocked(at, peer.to_send));
        }
    }

    fn hear(&mut self, rank: u32) {
        let first = self.room.first();
        let peer = &mut self.peers[rank as usize];
        match peer.to_sender.pop_front() {
            Some(Note::Grant(limit)) => {
                peer.allowance.handle_grant(limit);
            }
            Some(Note::Recall) => {
                let limit = peer.allowance.handle_recall(first);
                peer.to_receiver.push_back(Note::Limit(limit));
            }
            _ => {}
        }
    }

    fn consume(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if peer.stored == 0 {
            return;
        }
        peer.stored -= 1;
        self.stored -= 1;
        peer.granted.unstore();
        self.leave(rank);
    }

    fn leave(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        peer.received += 1;
        if peer.granted.leave(1) || self.grants.is_scarce() {
            if let Some(limit) = self.grants.replenish(&mut peer.granted) {
                peer.to_sender.push_back(Note::Grant(limit));
            }
            self.serve();
        }
    }

    fn receive(&mut self, rank: u32) {
        let posted = self.seed.chance(0.3);
        let peer = &mut self.peers[rank as usize];
        match peer.to_receiver.pop_front() {
            Some(Note::Message) if posted => self.leave(rank),
            Some(Note::Message) => {
                assert!(peer.granted.store(), "an honest peer was refused");
                peer.stored += 1;
                self.stored += 1;
            }
            Some(Note::Blocked(at, held)) => {
                match self
                    .grants
                    .handle_blocked(WorldRank(rank), &mut peer.granted, at, held)
                {
                    Some(limit) => peer.to_sender.push_back(Note::Grant(limit)),
                    None if peer.granted.waits() => self.recall(),
                    None => {}
                }
            }
            Some(Note::Limit(limit)) => {
                assert!(self.grants.handle_limit(&mut peer.granted, limit));
                self.serve();
            }
            _ => {}
        }
    }

    fn recall(&mut self) {
        if self.grants.has_become_scarce() {
            for peer in &mut self.peers {
                if self.grants.recall(&mut peer.granted) {
                    peer.to_sender.push_back(Note::Recall);
                }
            }
        }
        self.serve();
    }

    fn serve(&mut self) {
        let mut waiting = self.grants.take_waiting();
        for _ in 0..waiting.len() {
            if self.grants.free() == 0 {
                break;
            }
            let rank = waiting.pop_front().expect("as many as there are");
            let peer = &mut self.peers[rank.0 as usize];
            match self.grants.serve(&mut peer.granted, waiting.len()) {
                Some(limit) => peer.to_sender.push_back(Note::Grant(limit)),
                None => waiting.push_back(rank),
            }
        }
        self.grants.put_back(waiting);
    }

    fn is_done(&self) -> bool {
        let quiet =
            |peer: &Peer| peer.to_send == 0 && peer.to_receiver.is_empty() && peer.stored == 0;
        self.peers.iter().all(quiet)
    }
}

const ROOMS: [(usize, u32); 6] = [(16, 1), (16, 2), (16, 5), (16, 64), (100, 7), (4_096, 16)];

#[test]
fn the_store_keeps_its_bound_and_every_message_arrives_without_a_refusal() {
    for seed in 0..10 {
        for (headers, peers) in ROOMS {
            println!("seed {seed}, {headers} headers, {peers} peers");
            let mut world = World::new(HeaderRoom { headers, peers }, seed);
            let mut sent = 0;
            for peer in &mut world.peers {
                peer.to_send = small(&mut world.seed, 400);
                sent += peer.to_send;
            }
            let mut steps = 0_u64;
            while !world.is_done() {
                world.step();
                steps += 1;
                assert!(steps < 20_000_000, "no end in sight");
            }
            assert_eq!(
                world.peers.iter().map(|peer| peer.received).sum::<u32>(),
                sent
            );
        }
    }
}

#[test]
fn peers_that_flood_a_small_store_get_equal_shares() {
    for seed in 0..5 {
        println!("seed {seed}");
        let mut world = World::new(
            HeaderRoom {
                headers: 32,
                peers: 64,
            },
            seed,
        );
        world
            .peers
            .iter_mut()
            .for_each(|peer| peer.to_send = u32::MAX);
        for _ in 0..2_000_000 {
            world.step();
        }
        let received: Vec<u64> = world
            .peers
            .iter()
            .map(|peer| u64::from(peer.received))
            .collect();
        let (sum, squares) = received
            .iter()
            .fold((0, 0), |(sum, squares), n| (sum + n, squares + n * n));
        println!("{received:?}");
        assert!(100 * sum * sum >= 90 * 64 * squares, "{received:?}");
    }
}

#[test]
fn a_peer_that_sends_more_than_it_may_is_refused() {
    let mut granted = PeerQuota::new(3);
    assert_eq!(
        [(); 5].map(|()| granted.store()),
        [true, true, true, false, false]
    );
    granted.unstore();
    granted.leave(1);
    assert!(
        !granted.store(),
        "what has left does not come back by itself"
    );
}

#[test]
fn a_limit_is_raised_once_by_messages_that_leave_together() {
    let raised = |runs: &[u32]| {
        let mut granted = PeerQuota::new(8); // to be raised when 4 messages have left
        runs.iter()
            .map(|&run| granted.leave(run))
            .collect::<Vec<_>>()
    };
    assert_eq!(raised(&[1, 1, 1, 1, 1]), [false, false, false, true, false]);
    assert_eq!(raised(&[3, 0, 5, 7]), [false, false, true, false]);
    assert_eq!(raised(&[0, 4, 0, 1]), [false, true, false, false]);
}

#[test]
fn a_limit_that_was_not_requested_or_is_out_of_range_is_refused() {
    let room = HeaderRoom {
        headers: 100,
        peers: 2,
    };
    let (mut grants, mut granted) = (QuotaGrants::new(room), PeerQuota::new(room.first()));
    assert!(!grants.handle_limit(&mut granted, 0));
    let limit = grants
        .handle_blocked(WorldRank(1), &mut granted, room.first(), 1)
        .expect("there is room");
    assert!(grants.recall(&mut granted));
    for forged in [limit + 1, limit.wrapping_sub(1 << 31), u32::MAX] {
        assert!(!grants.handle_limit(&mut granted, forged));
    }
    assert!(grants.handle_limit(&mut granted, room.first()));
}
