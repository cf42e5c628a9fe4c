//! Long messages whose bodies go straight to the memory that the sink lends.

use std::collections::BTreeMap;

use super::{HangGuard, HeardEvents, Pair, landing::message_frame};
use crate::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, MessagePlace, PayloadView, Sink, WorldRank,
    },
    memory::MemoryRegion,
    random::SeededRandom,
    tcp::{frame::BODY_MAX, placing::PLACED_MIN},
};

/// Lends memory to some messages, and keeps the bodies of all.
#[derive(Default)]
struct LendingSink {
    /// Says for each question in turn whether there is a place; there is none when it has ended.
    lends: Vec<bool>,
    asked: usize,
    lent: BTreeMap<u64, MemoryRegion>,
    bodies: Vec<Vec<u8>>,
    placed: usize,
    returned: Vec<u64>,
    /// How many places had come back when a peer was reported down.
    down: Option<usize>,
}

impl LendingSink {
    fn lending(count: usize) -> Self {
        Self {
            lends: vec![true; count],
            ..Self::default()
        }
    }

    /// The memory of the only place that is lent.
    fn place(&self) -> &MemoryRegion {
        assert_eq!(self.lent.len(), 1);
        self.lent.first_key_value().expect("one").1
    }
}

impl Sink for LendingSink {
    fn message(&mut self, _from: WorldRank, _header: &[u8], body: PayloadView<'_>) {
        self.bodies.push(body.to_vec());
    }

    fn place(&mut self, from: WorldRank, header: &[u8], len: usize) -> Option<MessagePlace> {
        assert_eq!((from, header), (WorldRank(1), &b""[..]));
        let token = self.asked as u64;
        self.asked += 1;
        if self.lends.get(self.asked - 1) != Some(&true) {
            return None;
        }
        let memory = MemoryRegion::anonymous(len).expect("memory");
        let into = memory.range().slice(0, len);
        self.lent.insert(token, memory);
        Some(MessagePlace {
            into,
            token: CommandToken(token),
        })
    }

    fn placed(
        &mut self,
        CommandToken(token): CommandToken,
        _from: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        assert!(header.is_empty());
        let memory = self.lent.remove(&token).expect("it was lent");
        assert!(body.is_at(memory.range().start()));
        self.bodies.push(body.to_vec());
        self.placed += 1;
    }

    fn returned(&mut self, CommandToken(token): CommandToken) {
        self.lent.remove(&token).expect("it was lent");
        self.returned.push(token);
    }

    fn complete(&mut self, _token: CommandToken) {}

    fn fetched(&mut self, _token: CommandToken, _old: u64) {}

    fn failed(&mut self, _token: CommandToken, _why: CommandFailure) {}

    fn reached(&mut self, _token: CommandToken) {}

    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, _peer: WorldRank, _why: DownCause) {
        assert!(self.down.replace(self.returned.len()).is_none());
    }
}

/// Makes turns of rank 0 until `done`.
fn turns(pair: &mut Pair, sink: &mut LendingSink, done: impl Fn(&LendingSink) -> bool) {
    let guard = HangGuard::new("what rank 0 is told");
    while !done(sink) {
        let core = pair.ranks[1].core();
        core.flush(0);
        core.poll();
        let _ = pair.ranks[0].progress(16, sink);
        guard.check();
    }
}

#[test]
fn bodies_are_the_same_in_places_and_without_wherever_reads_cut_them() {
    let seed = 915;
    let mut random = SeededRandom::new(seed);
    let mut placed = 0;
    for round in 0..30 {
        let mut pair = Pair::new();
        let (mut stream, mut bodies) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            let lens = [
                0..100,
                PLACED_MIN - 2..PLACED_MIN + 2,
                PLACED_MIN..BODY_MAX + 1,
            ];
            let among = &lens[usize::try_from(random.within(0..3)).unwrap()];
            let len = random.within(among.start as u64..among.end as u64);
            let mut body = vec![0; usize::try_from(len).unwrap()];
            random.fill(&mut body);
            stream.extend(message_frame(&body));
            bodies.push(body);
        }
        let mut sink = LendingSink {
            lends: (0..10).map(|_| random.chance(0.7)).collect(),
            ..LendingSink::default()
        };
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = [9, 3000, 200_000][usize::try_from(random.within(0..3)).unwrap()];
            let len = usize::try_from(1 + random.within(0..most)).unwrap();
            let (piece, others) = rest.split_at(len.min(rest.len()));
            pair.say(piece);
            let _ = pair.ranks[0].progress(16, &mut sink);
            rest = others;
        }
        turns(&mut pair, &mut sink, |sink| sink.bodies.len() == 10);
        let at = format!("seed {seed}, round {round}");
        assert!(sink.bodies == bodies, "messages differ, {at}");
        assert!(
            sink.lent.is_empty() && sink.returned.is_empty() && sink.down.is_none(),
            "{at}"
        );
        placed += sink.placed;
    }
    assert!(placed > 30, "only {placed} messages were placed");
}

#[test]
fn most_of_a_long_message_is_not_copied() {
    let mut pair = Pair::new();
    let mut sink = LendingSink::lending(20);
    let body = vec![5; BODY_MAX];
    for count in 1..=20 {
        let before = pair.ranks[0].core().counters.bytes_copied.get();
        pair.say(&message_frame(&body));
        turns(&mut pair, &mut sink, |sink| sink.bodies.len() == count);
        let copied = pair.ranks[0].core().counters.bytes_copied.get() - before;
        // The first one is read before it is known that long ones come.
        assert!(
            count == 1 || copied <= 8 << 10,
            "{copied} bytes of message {count} were copied"
        );
    }
    assert!(sink.placed >= 19 && sink.bodies.iter().all(|one| *one == body));
}

#[test]
fn the_sink_is_asked_once_for_a_message_in_many_pieces() {
    let mut pair = Pair::new();
    let mut sink = LendingSink::default();
    let frame = message_frame(&[3; 50_000]);
    for piece in frame.chunks(5000) {
        pair.say(piece);
        for _ in 0..4 {
            let _ = pair.ranks[0].progress(16, &mut sink);
        }
    }
    turns(&mut pair, &mut sink, |sink| sink.bodies.len() == 1);
    assert_eq!((sink.asked, sink.placed), (1, 0));
}

#[test]
fn a_connection_lost_half_way_returns_the_place_before_the_peer_is_down() {
    let mut pair = Pair::new();
    let mut sink = LendingSink::lending(1);
    let frame = message_frame(&[8; 100_000]);
    pair.say(&frame[..60_000]);
    turns(&mut pair, &mut sink, |sink| sink.asked == 1);
    let name = pair.ranks[1].core().peers[0]
        .connection
        .as_ref()
        .unwrap()
        .socket;
    super::end_sending(
        pair.ranks[1]
            .core()
            .sockets
            .get(name)
            .unwrap()
            .socket()
            .unwrap(),
    );
    turns(&mut pair, &mut sink, |sink| sink.down.is_some());
    assert_eq!((sink.down, &sink.returned[..]), (Some(1), &[0][..]));
    assert!(sink.bodies.is_empty() && sink.lent.is_empty());
}

#[test]
fn nothing_is_written_to_a_place_after_its_peer_was_given_up() {
    let mut pair = Pair::new();
    let mut sink = LendingSink::lending(1);
    let frame = message_frame(&[8; 100_000]);
    pair.say(&frame[..60_000]);
    turns(&mut pair, &mut sink, |sink| sink.asked == 1);
    let _ = pair.ranks[0].give_up(WorldRank(1), None);
    let memory = sink.place();
    memory.write(0, &[1; 100_000]);
    let memory = memory.clone();
    pair.say(&frame[60_000..]);
    turns(&mut pair, &mut sink, |sink| sink.down.is_some());
    assert!(super::holds_only(&memory, 0..100_000, 1));
    assert_eq!(sink.returned, [0]);
}

#[test]
fn a_rank_that_ends_writes_nothing_more_to_a_place() {
    let mut pair = Pair::new();
    let mut sink = LendingSink::lending(1);
    let frame = message_frame(&[8; 100_000]);
    pair.say(&frame[..60_000]);
    turns(&mut pair, &mut sink, |sink| sink.asked == 1);
    pair.ranks[0].core().begin_close(DownCause::Finished);
    let memory = sink.place();
    memory.write(0, &[1; 100_000]);
    pair.say(&frame[60_000..]);
    pair.ranks[0]
        .core()
        .finish(std::time::Duration::from_millis(50));
    assert!(super::holds_only(memory, 0..100_000, 1));
    let _ = pair.ranks[1].progress(16, &mut HeardEvents::default());
}
