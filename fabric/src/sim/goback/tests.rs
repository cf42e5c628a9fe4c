#![expect(clippy::print_stdout, reason = "figures are printed")]

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::{
    GoBackAnswer, GoBackAnswerKind, GoBackHeader, GoBackLimits, GoBackReceiver, GoBackSender,
    ReceiveSlotPool,
};
use crate::random::SeededRandom;

const US: u64 = 1_000_000;
const LATENCY: u64 = US;

fn limits() -> GoBackLimits {
    GoBackLimits {
        window: 64,
        slack: LATENCY / 2,
        hold: 8 * LATENCY,
        silence: 4000 * LATENCY,
        seed: 3,
    }
}

/// A network between senders and one receiver.
#[derive(Clone, Copy, Debug)]
struct Net {
    /// Probability in percent that a packet is lost.
    drop: u64,
    double: u64,
    /// Longest additional delay of a packet.
    late: u64,
    /// Time from one packet to the next at the receiver.
    gap: u64,
}

const CALM: Net = Net {
    drop: 0,
    double: 0,
    late: 0,
    gap: 0,
};

#[derive(Clone, Copy, Debug)]
enum Event {
    Data(usize, GoBackHeader, u64),
    Answer(usize, GoBackAnswer),
    Timer,
    /// The host takes the first message out of its inbox.
    Serve,
}

struct World {
    net: Net,
    random: SeededRandom,
    now: u64,
    planned: u64,
    events: BTreeMap<(u64, u64), Event>,
    senders: Vec<GoBackSender<u64>>,
    /// Messages that each sender's user has yet to send.
    unsent: Vec<u64>,
    receivers: Vec<GoBackReceiver>,
    pool: Option<ReceiveSlotPool>,
    link_free: u64,
    /// Time that the host takes for a message.
    service: u64,
    serving: bool,
    inbox: VecDeque<(usize, u64)>,
    heard: Vec<Vec<u64>>,
    packets: u64,
    answers: u64,
    /// Time at which all senders are polled again.
    timer: u64,
    /// Most packets that a sender kept.
    kept: usize,
}

impl World {
    fn new(senders: usize, messages: u64, net: Net, seed: u64) -> Self {
        Self {
            net,
            random: SeededRandom::new(seed),
            now: 0,
            planned: 0,
            events: BTreeMap::new(),
            senders: (0..senders).map(|_| GoBackSender::new()).collect(),
            unsent: vec![messages; senders],
            receivers: vec![GoBackReceiver::default(); senders],
            pool: None,
            link_free: 0,
            service: 0,
            serving: false,
            inbox: VecDeque::new(),
            heard: vec![Vec::new(); senders],
            packets: 0,
            answers: 0,
            timer: u64::MAX,
            kept: 0,
        }
    }

    fn with_slots(mut self, slots: u32, service: u64) -> Self {
        self.pool = Some(ReceiveSlotPool::new(slots, 64 * LATENCY));
        self.service = service;
        self
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.planned += 1;
        self.events.insert((at, self.planned), event);
    }

    /// Runs until nothing happens any more, or until this time.
    fn run(&mut self, until: u64) {
        (0..self.senders.len()).for_each(|from| self.push(from));
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > until {
                return;
            }
            self.now = at;
            match event {
                Event::Data(from, data, packet) => self.data(from, data, packet),
                Event::Answer(to, answer) => self.answer(to, answer),
                Event::Timer if at == self.timer => self.tick(),
                Event::Timer => {}
                Event::Serve => self.serve(),
            }
            self.call();
        }
    }

    /// Gives the adapter packets, up to 100 at a time.
    fn push(&mut self, from: usize) {
        while self.senders[from].len() < 100 && self.unsent[from] > 0 {
            // Numbers derived from how many are left, so that they grow.
            self.senders[from].push(u64::MAX - self.unsent[from], self.now);
            self.unsent[from] -= 1;
        }
        self.kept = self.kept.max(self.senders[from].len());
        self.transmit(from);
    }

    fn transmit(&mut self, from: usize) {
        let limits = limits();
        while let Some((data, packet)) = self.senders[from].poll_transmit(self.now, &limits) {
            let arrival = self.carry(Event::Data(from, data, packet), true);
            self.senders[from].sent(arrival + LATENCY, &limits);
            self.packets += 1;
        }
        if let Some(at) = self.senders[from].next_timeout() {
            self.wake_at(at);
        }
    }

    fn wake_at(&mut self, at: u64) {
        let at = at.max(self.now + 1);
        if at < self.timer {
            self.timer = at;
            self.plan(at, Event::Timer);
        }
    }

    fn tick(&mut self) {
        self.timer = u64::MAX;
        (0..self.senders.len()).for_each(|from| self.transmit(from));
    }

    /// Sends a packet through the network. Returns when it would arrive without faults.
    fn carry(&mut self, event: Event, queues: bool) -> u64 {
        let mut arrival = self.now + LATENCY;
        if queues {
            arrival = arrival.max(self.link_free);
            self.link_free = arrival + self.net.gap;
        }
        let copies = if self.random.within(0..100) < self.net.double {
            2
        } else {
            1
        };
        for _ in 0..copies {
            if self.random.within(0..100) >= self.net.drop {
                let late = self.random.within(0..self.net.late + 1);
                self.plan(arrival + late, event);
            }
        }
        arrival
    }

    fn data(&mut self, from: usize, data: GoBackHeader, packet: u64) {
        let source = u32::try_from(from).expect("few senders");
        let pool = self.pool.as_mut();
        let verdict = self.receivers[from].handle_data(data, source, pool, self.now, &limits());
        if verdict.taken {
            self.inbox.push_back((from, packet));
            if !std::mem::replace(&mut self.serving, true) {
                self.plan(self.now + self.service, Event::Serve);
            }
        }
        if let Some(answer) = verdict.answer {
            self.carry(Event::Answer(from, answer), false);
        }
    }

    fn serve(&mut self) {
        let (from, packet) = self.inbox.pop_front().expect("something to serve");
        self.heard[from].push(packet);
        if let Some(pool) = &mut self.pool {
            assert!(pool.used() >= 1);
            pool.release();
        }
        self.serving = !self.inbox.is_empty();
        if self.serving {
            self.plan(self.now + self.service, Event::Serve);
        }
    }

    fn answer(&mut self, to: usize, answer: GoBackAnswer) {
        self.answers += 1;
        let mut done = Vec::new();
        self.senders[to].handle_answer(answer, self.now, &limits(), &mut done);
        self.push(to);
    }

    fn call(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        let mut calls = Vec::new();
        while let Some(source) = pool.poll_call(self.now) {
            calls.push(source as usize);
        }
        if let Some(at) = pool.next_timeout() {
            self.wake_at(at);
        }
        for source in calls {
            let answer = self.receivers[source].grant();
            self.carry(Event::Answer(source, answer), false);
        }
    }

    fn check_whole(&self, messages: u64) {
        for heard in &self.heard {
            let sent = (0..messages).map(|number| u64::MAX - messages + number);
            assert!(
                heard.iter().copied().eq(sent),
                "{} of {messages} heard, or in another order",
                heard.len()
            );
        }
        assert!(
            self.senders
                .iter()
                .all(|sender| sender.len() == 0 && !sender.is_dead())
        );
    }

    /// Returns Jain's fairness index of the messages that the senders got through.
    fn fairness(&self) -> f64 {
        let shares: Vec<f64> = self.heard.iter().map(|heard| heard.len() as f64).collect();
        let sum: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        sum * sum / (shares.len() as f64 * squares)
    }

    fn delivered(&self) -> usize {
        self.heard.iter().map(Vec::len).sum()
    }
}

#[test]
fn nothing_is_sent_twice_over_a_calm_network_and_one_answer_is_for_many() {
    let mut world = World::new(1, 10_000, CALM, 1);
    world.run(u64::MAX);
    world.check_whole(10_000);
    assert_eq!(world.packets, 10_000);
    assert!(world.answers < 10_000 / 4, "{} answers", world.answers);
}

#[test]
fn thirty_percent_loss_costs_a_few_packets_for_each() {
    let net = Net {
        drop: 30,
        double: 10,
        late: 64 * LATENCY / 20,
        gap: LATENCY / 20,
    };
    for seed in 0..4 {
        let mut world = World::new(1, 5000, net, seed);
        world.run(u64::MAX);
        world.check_whole(5000);
        let cost = world.packets as f64 / 5000.0;
        println!(
            "seed {seed}: {cost:.2} packets for each, {} us",
            world.now / US
        );
        assert!(cost < 4.0, "seed {seed}: {cost}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn all_arrives_once_and_in_order_and_it_ends(
        seed in any::<u64>(), drop in 0..60_u64, double in 0..50_u64, late in 0..20 * LATENCY, gap in 0..LATENCY / 4,
        senders in 1..6_usize, slots in 0..4_u32, service in 0..2 * LATENCY
    ) {
        let net = Net { drop, double, late, gap };
        let mut world = World::new(senders, 150, net, seed);
        if slots > 0 {
            world = world.with_slots(slots, service);
        }
        world.run(u64::MAX);
        world.check_whole(150);
        prop_assert!(world.pool.is_none_or(|pool| pool.used() == 0));
        prop_assert!(world.kept <= 100);
    }

    /// Whatever a peer answers, a sender drops only packets that were acknowledged by a number that it has sent.
    #[test]
    fn nonsense_acknowledges_nothing_that_was_not_sent(
        answers in prop::collection::vec((0..300_u64, 0..5_usize, 0..3 * LATENCY), 0..60)
    ) {
        let (mut sender, limits) = (GoBackSender::new(), limits());
        (0..100).for_each(|packet| sender.push(packet, 0));
        let (mut now, mut sent, mut done) = (0, 0, Vec::new());
        for (expected, what, later) in answers {
            while let Some((data, packet)) = sender.poll_transmit(now, &limits) {
                prop_assert_eq!(data.seq, packet);
                sent = sent.max(data.seq + 1);
                sender.sent(now + 2 * LATENCY, &limits);
            }
            now += later;
            let what = [
                GoBackAnswerKind::Ack,
                GoBackAnswerKind::Gap,
                GoBackAnswerKind::Grant,
                GoBackAnswerKind::NoSlot(LATENCY),
                GoBackAnswerKind::Pause,
            ][what];
            sender.handle_answer(GoBackAnswer { expected, kind: what }, now, &limits, &mut done);
            prop_assert!(done.len() as u64 <= sent);
            prop_assert_eq!(done.len() + sender.len(), 100);
            prop_assert!(sender.len() == 0 || sender.next_timeout().is_some() || sender.is_dead());
        }
        prop_assert!(done.iter().copied().eq(0..done.len() as u64));
    }
}

/// Returns how many messages 64 senders get through to one receiver in a given time, and how fair that is.
fn flood(slots: u32, service: u64, net: Net, seed: u64) -> (usize, f64) {
    let mut world = World::new(64, u64::MAX >> 1, net, seed).with_slots(slots, service);
    world.run(20_000 * US);
    (world.delivered(), world.fairness())
}

#[test]
fn two_slots_for_sixty_four_senders_are_shared_and_kept_busy() {
    // Hosts that take messages more slowly, as fast, and much faster than calls travel.
    for service in [4 * LATENCY, LATENCY, LATENCY / 5] {
        let net = Net {
            gap: LATENCY / 20,
            ..CALM
        };
        let (unlimited, _) = flood(1_000_000, service, net, 1);
        for slots in [1, 2, 4, 8] {
            let (delivered, fairness) = flood(slots, service, net, 1);
            let goodput = delivered as f64 / unlimited as f64;
            println!(
                "service {} ns, {slots} slots: goodput {goodput:.2}, fairness {fairness:.3}",
                service / 1000
            );
            assert!(fairness >= 0.9, "{fairness}");
            assert!(slots < 2 || goodput >= 0.5, "{goodput}");
        }
    }
}

/// Through these links, 64 called packets take longer than one of them is waited for.
#[test]
fn a_sender_that_is_late_because_of_a_busy_link_is_not_refused() {
    for gap in [3 * LATENCY / 2, 2 * LATENCY, 3 * LATENCY] {
        for service in [gap / 2, gap, 4 * gap / 3] {
            let net = Net { gap, ..CALM };
            let (unlimited, _) = flood(1_000_000, service, net, 1);
            let (delivered, fairness) = flood(2, service, net, 1);
            println!("{delivered} of {unlimited} messages, fairness {fairness:.3}");
            assert!(fairness >= 0.9, "{fairness}");
            assert!(2 * delivered >= unlimited, "{delivered} of {unlimited}");
        }
    }
}

#[test]
fn two_slots_are_shared_under_loss_too() {
    let net = Net {
        drop: 10,
        double: 5,
        late: LATENCY,
        gap: LATENCY / 20,
    };
    for seed in 0..3 {
        let (delivered, fairness) = flood(2, LATENCY, net, seed);
        println!("seed {seed}: {delivered} messages, fairness {fairness:.3}");
        assert!(
            fairness >= 0.9 && delivered > 64 * 20,
            "{delivered}, {fairness}"
        );
    }
}

#[test]
fn a_peer_behind_a_busy_link_is_not_given_up() {
    // The packets of all senders together keep the link busy for longer than a peer may be silent.
    let net = Net {
        drop: 40,
        gap: 10 * LATENCY,
        ..CALM
    };
    assert!(64 * 16 * net.gap > limits().silence);
    for seed in 0..4 {
        let mut world = World::new(64, 30, net, seed);
        world.run(u64::MAX);
        world.check_whole(30);
    }
}

#[test]
fn a_peer_that_is_not_heard_is_given_up_and_one_that_refuses_is_not() {
    let limits = limits();
    let mut sender = GoBackSender::new();
    sender.push(7, 0);
    let (mut now, mut tries) = (0, 0);
    while let Some(at) = sender.next_timeout().or_else(|| (tries == 0).then_some(0)) {
        now = at;
        if sender.poll_transmit(now, &limits).is_some() {
            tries += 1;
            sender.sent(now + 2 * LATENCY, &limits);
        }
    }
    assert!(sender.is_dead() && sender.take_all().into_iter().eq([7]));
    let late = now - limits.silence;
    assert!(
        late <= limits.silence / 10,
        "given up {} us late",
        late / US
    );
    assert!(tries >= 40, "{tries} tries");

    let mut sender = GoBackSender::new();
    sender.push(7, 0);
    for step in 0..10_000 {
        let now = step * LATENCY;
        if sender.poll_transmit(now, &limits).is_some() {
            sender.sent(now + 2 * LATENCY, &limits);
            let answer = GoBackAnswer {
                expected: 0,
                kind: GoBackAnswerKind::NoSlot(limits.hold),
            };
            sender.handle_answer(answer, now + 2 * LATENCY, &limits, &mut Vec::new());
        }
    }
    assert!(!sender.is_dead());
}
