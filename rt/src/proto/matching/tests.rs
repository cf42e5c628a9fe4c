#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "one test measures and prints; seeds are printed"
)]

use std::time::Instant;

use super::exact::ExactReceives;
use super::{
    ArrivalNumber, ArrivalOutcome, DequeuedMessage, Matching, MessageEnvelope, PostOutcome,
    ReceiveHandle, RecvPattern, UnexpectedHandle,
};
use crate::group::WorldRank;

/// Reference implementation of matching: two vectors, searched from the front.
#[derive(Default)]
struct Reference {
    posted: Vec<(RecvPattern, u32)>,
    waiting: Vec<(u64, MessageEnvelope, u32)>,
    arrivals: u64,
}

impl Reference {
    fn post(&mut self, want: RecvPattern, recv: u32) -> Option<(u64, MessageEnvelope, u32)> {
        let hit = self
            .waiting
            .iter()
            .position(|(_, envelope, _)| want.fits(envelope));
        if hit.is_none() {
            self.posted.push((want, recv));
        }
        hit.map(|at| self.waiting.remove(at))
    }

    fn arrive(&mut self, envelope: MessageEnvelope, message: u32) -> Option<u32> {
        self.arrivals += 1;
        self.restore(envelope, self.arrivals - 1, message)
    }

    fn restore(&mut self, envelope: MessageEnvelope, arrival: u64, message: u32) -> Option<u32> {
        let hit = self
            .posted
            .iter()
            .position(|(want, _)| want.fits(&envelope));
        if hit.is_none() {
            let place = self.waiting.partition_point(|(other, ..)| *other < arrival);
            self.waiting.insert(place, (arrival, envelope, message));
        }
        hit.map(|at| self.posted.remove(at).1)
    }

    fn unpost(&mut self, recv: u32) -> Option<u32> {
        let at = self.posted.iter().position(|(_, other)| *other == recv)?;
        Some(self.posted.remove(at).1)
    }

    fn take(&mut self, message: u32) -> Option<(u64, MessageEnvelope, u32)> {
        let at = self
            .waiting
            .iter()
            .position(|(.., other)| *other == message)?;
        Some(self.waiting.remove(at))
    }
}

/// Both implementations, step by step, with every handle ever given, including stale ones.
struct Pair {
    real: Matching<u32, u32>,
    reference: Reference,
    receives: Vec<(ReceiveHandle, u32)>,
    messages: Vec<(UnexpectedHandle, u32)>,
    taken: Vec<(MessageEnvelope, ArrivalNumber, u32)>,
    named: u32,
}

impl Pair {
    fn new() -> Self {
        Self {
            real: Matching::new(),
            reference: Reference::default(),
            receives: Vec::new(),
            messages: Vec::new(),
            taken: Vec::new(),
            named: 0,
        }
    }

    fn name(&mut self) -> u32 {
        self.named += 1;
        self.named
    }

    fn post(&mut self, want: RecvPattern) {
        let recv = self.name();
        let expected = self.reference.post(want, recv);
        // Every second receive is posted only if no message waits.
        if recv.is_multiple_of(2)
            && let Some(posted) = self.real.post_waiting(want, recv)
        {
            assert_eq!(expected, None, "{want:?} waits, but a message fits");
            self.receives.push((posted, recv));
            return;
        }
        match self.real.post(want, recv) {
            PostOutcome::Taken(taken) => self.took(taken, expected),
            PostOutcome::Waits(posted) => {
                assert_eq!(expected, None, "{want:?} waits, but a message fits");
                self.receives.push((posted, recv));
            }
        }
    }

    fn arrive(&mut self, envelope: MessageEnvelope) {
        let message = self.name();
        // Every second message is given to its receive directly, if that has an even name.
        if message.is_multiple_of(2)
            && let Some((earliest, recv)) = self.real.earliest(envelope)
            && recv.is_multiple_of(2)
        {
            let arrival = self.real.give(earliest);
            assert_eq!(self.reference.arrive(envelope, message), Some(recv));
            self.taken.push((envelope, arrival, message));
            return;
        }
        // Every third one is the first of a run, which ends with its receives.
        if message.is_multiple_of(3)
            && let Some(receives) = self.real.exact_receives(envelope)
        {
            return self.run(envelope, receives);
        }
        let expected = self.reference.arrive(envelope, message);
        let answer = self.real.arrive(envelope, message);
        self.arrived(answer, expected, envelope, message);
    }

    fn run(&mut self, envelope: MessageEnvelope, receives: ExactReceives) {
        let mut left = Some(receives);
        while let Some(receives) = left {
            let (recv, message) = (self.real.first_of(receives), self.name());
            assert_eq!(self.reference.arrive(envelope, message), Some(recv));
            let (arrival, others) = self.real.give_first(receives);
            self.taken.push((envelope, arrival, message));
            left = others;
        }
        assert!(self.real.exact_receives(envelope).is_none());
    }

    fn restore(&mut self, at: usize) {
        let (envelope, arrival, _) = self.taken.swap_remove(at);
        // Uses a new name, so that older handles stay stale for the reference as well.
        let message = self.name();
        let expected = self.reference.restore(envelope, arrival.0, message);
        let answer = self.real.restore(envelope, arrival, message);
        self.arrived(answer, expected, envelope, message);
    }

    fn arrived(
        &mut self,
        answer: ArrivalOutcome<u32>,
        expected: Option<u32>,
        envelope: MessageEnvelope,
        message: u32,
    ) {
        match answer {
            ArrivalOutcome::Matched { recv, arrival } => {
                assert_eq!(Some(recv), expected, "{envelope:?}");
                self.taken.push((envelope, arrival, message));
            }
            ArrivalOutcome::Waits(handle) => {
                assert_eq!(expected, None, "{envelope:?} waits, but a receive fits");
                self.messages.push((handle, message));
            }
        }
    }

    fn took(&mut self, taken: DequeuedMessage<u32>, expected: Option<(u64, MessageEnvelope, u32)>) {
        let DequeuedMessage {
            message,
            envelope,
            arrival,
        } = taken;
        assert_eq!(Some((arrival.0, envelope, message)), expected);
        self.taken.push((envelope, arrival, message));
    }

    fn unpost(&mut self, at: usize) {
        let (posted, recv) = self.receives[at];
        assert_eq!(self.real.unpost(posted), self.reference.unpost(recv));
    }

    fn withdraw(&mut self, at: usize) {
        let (handle, message) = self.messages[at];
        assert_eq!(
            self.real.withdraw(handle),
            self.reference.take(message).map(|(.., message)| message)
        );
    }

    fn take(&mut self, at: usize) {
        let (handle, message) = self.messages[at];
        let expected = self.reference.take(message);
        match self.real.take(handle) {
            Some(taken) => self.took(taken, expected),
            None => assert_eq!(expected, None),
        }
    }

    fn peek(&mut self, want: RecvPattern) {
        let expected = self
            .reference
            .waiting
            .iter()
            .find(|(_, envelope, _)| want.fits(envelope));
        let found = self.real.peek(want);
        assert_eq!(
            found.map(|found| (found.envelope, found.message)),
            expected.map(|(_, e, m)| (*e, *m))
        );
        if let Some(found) = found {
            self.messages.push((found.at, found.message));
        }
    }

    fn drain(&mut self, source: u32) {
        let (gone, kept) = self
            .reference
            .posted
            .drain(..)
            .partition(|(want, _)| want.source == Some(WorldRank(source)));
        self.reference.posted = kept;
        let gone: Vec<(RecvPattern, u32)> = gone;
        let drained = self
            .real
            .drain_posted(|want| want.source == Some(WorldRank(source)));
        assert_eq!(
            drained,
            gone.iter().map(|(_, recv)| *recv).collect::<Vec<_>>()
        );

        let (gone, kept) = self
            .reference
            .waiting
            .drain(..)
            .partition(|(_, envelope, _)| envelope.source == WorldRank(source));
        self.reference.waiting = kept;
        let gone: Vec<(u64, MessageEnvelope, u32)> = gone;
        let drained = self
            .real
            .drain_unexpected(|envelope, _| envelope.source == WorldRank(source));
        assert_eq!(
            drained,
            gone.iter()
                .map(|(.., message)| *message)
                .collect::<Vec<_>>()
        );
    }

    fn check_lengths(&self) {
        assert_eq!(self.real.posted_len(), self.reference.posted.len());
        assert_eq!(self.real.unexpected_len(), self.reference.waiting.len());
    }

    fn check_empty_leaves_nothing(&mut self) {
        self.real.drain_posted(|_| true);
        self.real.drain_unexpected(|_, _| true);
        assert!(self.real.lists.is_empty(), "lists without entries are kept");
        assert_eq!(self.real.posted, [0; 4]);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % bound as u64).expect("below a usize")
    }

    fn field(&mut self, bound: usize) -> u32 {
        u32::try_from(self.below(bound)).expect("a small field")
    }
}

/// Parameters of a random run: number of values for each field, and how often a receive leaves a field open.
#[derive(Clone, Copy, Debug)]
struct Mix {
    seed: u64,
    steps: usize,
    fields: usize,
    open_in: usize,
    /// Of 16 steps, this many post and `arrive` many arrive. The others are everything else.
    post: usize,
    arrive: usize,
}

impl Mix {
    fn envelope(self, random: &mut Random) -> MessageEnvelope {
        let ctx = random.field(2);
        MessageEnvelope {
            ctx,
            source: WorldRank(random.field(self.fields)),
            tag: random.field(self.fields),
        }
    }

    fn want(self, random: &mut Random) -> RecvPattern {
        let MessageEnvelope { ctx, source, tag } = self.envelope(random);
        let mut is_named = || random.below(self.open_in) > 0;
        RecvPattern {
            ctx,
            source: is_named().then_some(source),
            tag: is_named().then_some(tag),
        }
    }

    fn run(self) {
        let mut random = Random(self.seed);
        let mut pair = Pair::new();
        for _ in 0..self.steps {
            self.step(&mut pair, &mut random);
            pair.check_lengths();
        }
        pair.check_empty_leaves_nothing();
    }

    fn step(self, pair: &mut Pair, random: &mut Random) {
        let kind = random.below(16);
        if kind < self.post {
            return pair.post(self.want(random));
        }
        if kind < self.post + self.arrive {
            return pair.arrive(self.envelope(random));
        }
        match random.below(64) {
            0..10 => pair.peek(self.want(random)),
            10..20 if !pair.receives.is_empty() => pair.unpost(random.below(pair.receives.len())),
            20..30 if !pair.messages.is_empty() => pair.withdraw(random.below(pair.messages.len())),
            30..40 if !pair.messages.is_empty() => pair.take(random.below(pair.messages.len())),
            40..63 if !pair.taken.is_empty() => pair.restore(random.below(pair.taken.len())),
            63 => pair.drain(random.field(self.fields)),
            _ => {}
        }
        // Old handles stay in use, but not all of them, or the run would hardly ever draw a live one.
        pair.receives.truncate(300);
        pair.messages.truncate(300);
        if pair.taken.len() > 64 {
            pair.taken.clear();
        }
        if random.below(256) == 0 {
            pair.receives.clear();
            pair.messages.clear();
        }
    }
}

#[test]
fn a_million_random_steps_agree_with_the_two_vectors() {
    let mixes = [(5, 5), (7, 3), (3, 7), (6, 6)];
    let mut steps = 0;
    for seed in 0..24 {
        let (post, arrive) = mixes[seed % 4];
        let fields = [1, 2, 3, 6][seed / 4 % 4];
        let open_in = [2, 4, 1 << 20][seed % 3];
        // The lopsided mixes grow long queues, which make the reference slow.
        let length = if post == arrive { 80_000 } else { 6_000 };
        let mix = Mix {
            seed: seed as u64,
            steps: length,
            fields,
            open_in,
            post,
            arrive,
        };
        println!("{mix:?}");
        mix.run();
        steps += length;
    }
    assert!(steps >= 1_000_000, "only {steps} steps");
}

#[test]
fn every_short_sequence_agrees_with_the_two_vectors() {
    let fields = [Some(0), Some(1), None];
    let wants = fields.iter().flat_map(|&source| {
        fields.map(|tag| RecvPattern {
            ctx: 0,
            source: source.map(WorldRank),
            tag,
        })
    });
    let posts = wants
        .filter(|want| want.source != Some(WorldRank(1)) || want.tag != Some(1))
        .map(Step::Post);
    let envelopes = [(0, 0), (0, 1), (1, 0)].map(|(source, tag)| {
        Step::Arrive(MessageEnvelope {
            ctx: 0,
            source: WorldRank(source),
            tag,
        })
    });
    // Twelve kinds of steps five deep, and seven of them six deep. Shorter sequences are prefixes of these.
    let wide: Vec<Step> = posts.chain(envelopes).chain([Step::Undo]).collect();
    let narrow = [
        &wide[..1],
        &wide[2..3],
        &wide[6..8],
        &wide[8..9],
        &[Step::Undo, Step::Unpost],
    ]
    .concat();
    for (alphabet, length) in [(&wide, 5), (&narrow, 6)] {
        for sequence in 0..alphabet.len().pow(length) {
            let mut rest = sequence;
            let mut pair = Pair::new();
            for _ in 0..length {
                alphabet[rest % alphabet.len()].run(&mut pair);
                rest /= alphabet.len();
            }
            pair.check_lengths();
        }
    }
}

#[derive(Clone, Copy)]
enum Step {
    Post(RecvPattern),
    Arrive(MessageEnvelope),
    /// Puts back the message taken last.
    Undo,
    /// Cancels the receive posted last.
    Unpost,
}

impl Step {
    fn run(self, pair: &mut Pair) {
        match self {
            Self::Post(want) => pair.post(want),
            Self::Arrive(envelope) => pair.arrive(envelope),
            Self::Undo if !pair.taken.is_empty() => pair.restore(pair.taken.len() - 1),
            Self::Unpost if !pair.receives.is_empty() => pair.unpost(pair.receives.len() - 1),
            Self::Undo | Self::Unpost => {}
        }
    }
}

const ENVELOPE: MessageEnvelope = MessageEnvelope {
    ctx: 1,
    source: WorldRank(2),
    tag: 3,
};
const EXACT: RecvPattern = RecvPattern {
    ctx: 1,
    source: Some(WorldRank(2)),
    tag: Some(3),
};
const ANY: RecvPattern = RecvPattern {
    ctx: 1,
    source: None,
    tag: None,
};

#[test]
fn an_old_handle_does_not_touch_the_entry_that_took_its_place() {
    let mut matching = Matching::<u32, u32>::new();
    let PostOutcome::Waits(old) = matching.post(EXACT, 1) else {
        panic!("nothing has come")
    };
    assert_eq!(matching.unpost(old), Some(1));
    let PostOutcome::Waits(new) = matching.post(EXACT, 2) else {
        panic!("nothing has come")
    };
    assert_eq!(matching.unpost(old), None);
    assert_eq!(matching.unpost(new), Some(2));
}

#[test]
fn a_restored_message_is_the_first_again() {
    let mut matching = Matching::<u32, u32>::new();
    let _ = matching.arrive(ENVELOPE, 10);
    let _ = matching.arrive(ENVELOPE, 11);
    let PostOutcome::Taken(first) = matching.post(EXACT, 1) else {
        panic!("two wait")
    };
    assert_eq!(first.message, 10);
    let _ = matching.restore(first.envelope, first.arrival, first.message);
    assert_eq!(matching.peek(ANY).map(|found| found.message), Some(10));
    assert_eq!(matching.post(ANY, 2), PostOutcome::Taken(first));
}

#[test]
fn no_memory_is_asked_for_in_steady_state() {
    let mut matching = Matching::<u32, u32>::new();
    let mut lists = 0;
    for tag in 0..100_000 {
        let want = RecvPattern {
            tag: Some(tag),
            ..EXACT
        };
        let _ = matching.post(want, tag);
        let _ = matching.arrive(MessageEnvelope { tag, ..ENVELOPE }, tag);
        let _ = matching.arrive(MessageEnvelope { tag, ..ENVELOPE }, tag);
        let _ = matching.post(if tag % 2 == 0 { want } else { ANY }, tag);
        if tag == 10 {
            lists = matching.lists.places();
        }
    }
    assert_eq!(
        (matching.receives.places(), matching.messages.places()),
        (1, 1)
    );
    assert_eq!(matching.lists.places(), lists);
}

/// `cargo test --release -p ripstop-rt matching_costs -- --nocapture` shows meaningful figures.
#[test]
fn matching_costs() {
    let mut cases = [
        ("empty", Others::None),
        ("10 000 receives posted", Others::Posted),
        ("10 000 messages waiting", Others::Waiting),
        ("10 000 waiting, seen by a wildcard", Others::Wild),
        ("10 000 receives and 10 000 messages", Others::Both),
        (
            "one wildcard receive of each kind posted",
            Others::Wildcards,
        ),
    ]
    .map(|(name, others)| (name, others.fill(), [f64::MAX; 2]));
    // Alternate between the cases and take the best of each: another process then disturbs a round, not a case.
    for _ in 0..if cfg!(debug_assertions) { 1 } else { 50 } {
        for (_, matching, best) in &mut cases {
            for (best, receive_first) in best.iter_mut().zip([true, false]) {
                *best = best.min(cost(matching, receive_first));
            }
        }
    }
    println!("ns for a receive and its message; receive first, message first");
    for (name, _, [expected, unexpected]) in cases {
        println!("{name:<42} {expected:6.1} {unexpected:6.1}");
    }
}

fn cost(matching: &mut Matching<u32, u32>, receive_first: bool) -> f64 {
    let rounds = 5_000;
    let start = Instant::now();
    for round in 0..rounds {
        // Like a halo exchange: six neighbors, with the same tags again and again.
        let (source, tag) = (round % 6, 1_000_000 + round % 6);
        let want = RecvPattern {
            ctx: 1,
            source: Some(WorldRank(source)),
            tag: Some(tag),
        };
        let envelope = MessageEnvelope {
            ctx: 1,
            source: WorldRank(source),
            tag,
        };
        if receive_first {
            assert!(matches!(matching.post(want, round), PostOutcome::Waits(_)));
            assert!(matches!(
                matching.arrive(envelope, round),
                ArrivalOutcome::Matched { .. }
            ));
        } else {
            assert!(matches!(
                matching.arrive(envelope, round),
                ArrivalOutcome::Waits(_)
            ));
            assert!(matches!(matching.post(want, round), PostOutcome::Taken(_)));
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds)
}

#[derive(Clone, Copy, PartialEq)]
enum Others {
    None,
    Posted,
    Waiting,
    Wild,
    Both,
    Wildcards,
}

impl Others {
    fn fill(self) -> Matching<u32, u32> {
        let mut matching = Matching::new();
        for tag in 0..10_000 {
            if matches!(self, Self::Posted | Self::Both) {
                let _ = matching.post(
                    RecvPattern {
                        ctx: 1,
                        source: Some(WorldRank(7)),
                        tag: Some(tag),
                    },
                    tag,
                );
            }
            if matches!(self, Self::Waiting | Self::Wild | Self::Both) {
                let _ = matching.arrive(
                    MessageEnvelope {
                        ctx: 1,
                        source: WorldRank(8),
                        tag,
                    },
                    tag,
                );
            }
        }
        if self == Self::Wild {
            let _ = matching.peek(RecvPattern {
                ctx: 1,
                source: None,
                tag: Some(0),
            });
        }
        if self == Self::Wildcards {
            let _ = matching.post(
                RecvPattern {
                    ctx: 1,
                    source: Some(WorldRank(99)),
                    tag: None,
                },
                0,
            );
            let _ = matching.post(
                RecvPattern {
                    ctx: 1,
                    source: None,
                    tag: Some(99),
                },
                0,
            );
            let _ = matching.post(
                RecvPattern {
                    ctx: 2,
                    source: None,
                    tag: None,
                },
                0,
            );
        }
        matching
    }
}
