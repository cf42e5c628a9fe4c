//! Bytes that go straight to where they belong, whatever the pieces in which they arrive.

use super::{HangGuard, HeardEvents, Pair, holds_only, with_record};
use crate::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        Sink, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    random::SeededRandom,
    tcp::frame::{BODY_MAX, FrameHead, FrameKind, PutRecord},
};

/// Keeps the bodies of messages.
#[derive(Default)]
struct HeardBodies {
    bodies: Vec<Vec<u8>>,
    down: usize,
}

impl Sink for HeardBodies {
    fn message(&mut self, _from: WorldRank, _header: &[u8], body: PayloadView<'_>) {
        self.bodies.push(body.to_vec());
    }

    fn complete(&mut self, _token: CommandToken) {}

    fn fetched(&mut self, _token: CommandToken, _old: u64) {}

    fn failed(&mut self, _token: CommandToken, _why: CommandFailure) {}

    fn reached(&mut self, _token: CommandToken) {}

    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, _peer: WorldRank, _why: DownCause) {
        self.down += 1;
    }
}

/// A put of `len` bytes at `at` of the memory with this key, as rank 1 would write it.
fn put_frame(key: RemoteRegion, at: usize, body: &[u8]) -> Vec<u8> {
    let put = PutRecord {
        into: key.slice(at as u64, body.len() as u64).unwrap(),
        ..bytemuck::Zeroable::zeroed()
    };
    [&with_record(FrameKind::Put, &put, body.len())[..], body].concat()
}

pub(super) fn message_frame(body: &[u8]) -> Vec<u8> {
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 0,
        body_len: body.len(),
    };
    [&head.encode()[..], body].concat()
}

fn copied(pair: &mut Pair, rank: usize) -> u64 {
    pair.ranks[rank].core().counters.bytes_copied.get()
}

#[test]
fn frames_arrive_whole_wherever_reads_cut_them() {
    let seed = 4211;
    let mut random = SeededRandom::new(seed);
    for round in 0..40 {
        let at = format!("seed {seed}, round {round}");
        let mut pair = Pair::new();
        let region = pair.ranks[0].allocate(2 << 20).unwrap();
        let key = pair.ranks[0].expose(region.range()).unwrap();
        let mut image = vec![0; region.len()];
        let (mut stream, mut bodies) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            let most = [40, 5000, BODY_MAX as u64]
                [usize::from(random.chance(0.5)) + usize::from(random.chance(0.3))];
            let mut body = vec![0; usize::try_from(random.within(0..most + 1)).unwrap()];
            random.fill(&mut body);
            if random.chance(0.5) {
                let start = random.within(0..(image.len() - body.len()) as u64);
                let start = usize::try_from(start).unwrap();
                image[start..start + body.len()].copy_from_slice(&body);
                stream.extend(put_frame(key, start, &body));
            } else {
                stream.extend(message_frame(&body));
                bodies.push(body);
            }
        }
        bodies.push(b"the last".to_vec());
        stream.extend(message_frame(b"the last"));
        let mut heard = HeardBodies::default();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = [9, 3000, 200_000][usize::try_from(random.within(0..3)).unwrap()];
            let len = usize::try_from(1 + random.within(0..most)).unwrap();
            let (piece, others) = rest.split_at(len.min(rest.len()));
            pair.say(piece);
            let _ = pair.ranks[0].progress(16, &mut heard);
            rest = others;
        }
        let guard = HangGuard::new("the last message");
        while heard.bodies.last().is_none_or(|body| body != b"the last") {
            let core = pair.ranks[1].core();
            core.flush(0);
            core.poll();
            let _ = pair.ranks[0].progress(16, &mut heard);
            guard.check();
        }
        assert_eq!(heard.down, 0, "{at}");
        assert!(heard.bodies == bodies, "messages differ, {at}");
        let mut found = vec![0; image.len()];
        region.read(0, &mut found);
        assert!(found == image, "memory differs, {at}");
    }
}

#[test]
fn most_of_a_long_put_and_of_a_long_get_is_not_copied() {
    let len = 4 << 20;
    let mut pair = Pair::new();
    let region = pair.ranks[0].allocate(len).unwrap();
    let key = pair.ranks[0].expose(region.range().slice(0, len)).unwrap();
    let mine = MemoryRegion::anonymous(len).unwrap();
    mine.write(0, &vec![6; len]);
    let back = MemoryRegion::anonymous(len).unwrap();
    let mut heard = HeardEvents::default();
    for (command, copier) in [
        (
            DriverCommand::Put {
                to: WorldRank(0),
                from: mine.range().slice(0, len),
                into: key,
                count: None,
                token: CommandToken(1),
            },
            0,
        ),
        (
            DriverCommand::Get {
                to: WorldRank(0),
                from: key,
                into: back.range().slice(0, len),
                token: CommandToken(2),
            },
            1,
        ),
    ] {
        let (before, done) = (copied(&mut pair, copier), heard.completed);
        assert!(matches!(pair.ranks[1].post(command), PostResult::Posted));
        let guard = HangGuard::new("the end of the command");
        while heard.completed == done {
            pair.turn_of_the_tricked();
            let _ = pair.ranks[1].progress(16, &mut heard);
            guard.check();
        }
        // One read may bring a whole piece before its kind is known, and each further piece has a little behind its head.
        let copied = copied(&mut pair, copier) - before;
        assert!(
            copied <= (256 << 10) + 16 * (8 << 10),
            "{copied} bytes of {len} were copied"
        );
    }
    assert!(holds_only(&region, 0..len, 6) && holds_only(&back, 0..len, 6));
}

#[test]
fn the_rest_of_a_body_is_thrown_away_when_its_memory_is_taken_back() {
    let mut pair = Pair::new();
    let memory = MemoryRegion::anonymous(4096).unwrap();
    let key = pair.ranks[0]
        .expose(memory.range().slice(64, 1024))
        .unwrap();
    let frame = put_frame(key, 0, &[7; 1024]);
    let (first, rest) = frame.split_at(frame.len() - 512);
    pair.say(first);
    let guard = HangGuard::new("the first half");
    while !holds_only(&memory, 64..576, 7) {
        pair.turn_of_the_tricked();
        guard.check();
    }
    let (half, last) = rest.split_at(256);
    pair.say(half);
    let guard = HangGuard::new("a quarter, straight to its place");
    while !holds_only(&memory, 576..832, 7) {
        pair.turn_of_the_tricked();
        guard.check();
    }
    let withdraw = DriverCommand::Withdraw { key };
    assert!(matches!(pair.ranks[0].post(withdraw), PostResult::Posted));
    memory.write(0, &[9; 4096]);
    pair.say(&[last, &message_frame(b"after")].concat());
    pair.until("the message after the put", |heard| heard.messages == 2);
    assert!(holds_only(&memory, 0..4096, 9));
    assert!(pair.heard.down.is_empty());
}
