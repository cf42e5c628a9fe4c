#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::collections::BTreeMap;

use super::{
    ChannelFrame, ChannelLimits, ChannelReceiver, ChannelReply, ChannelSender, ChannelVerdict,
    Credits, ReliableChannel,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn short(&mut self) -> u16 {
        u16::try_from(self.below(1 << 16)).expect("16 bits")
    }
}

impl ReliableChannel {
    fn starting_at(limits: ChannelLimits, seq: u16) -> Self {
        Self {
            sender: ChannelSender::starting_at(limits, seq),
            receiver: ChannelReceiver::starting_at(seq),
            ..Self::with(limits, u64::from(seq))
        }
    }
}

/// A message in flight. Its header has the sequence number and the acknowledgment.
#[derive(Clone)]
enum Wire {
    Data(ChannelFrame),
    Answer(ChannelReply),
}

/// Faults of a link that loses, repeats and reorders messages.
#[derive(Clone, Copy, Debug)]
struct Faults {
    drop: u64,
    repeat: u64,
    /// Maximum delay of a frame, in ticks.
    late: u64,
}

#[derive(Default)]
struct Link {
    in_flight: BTreeMap<(u64, u64), Wire>,
    posted: u64,
}

impl Link {
    fn post(&mut self, now: u64, wire: &Wire, faults: Faults, random: &mut Random) {
        let copies = if random.percent(faults.repeat) { 2 } else { 1 };
        for _ in 0..copies {
            if !random.percent(faults.drop) {
                let due = now + 1 + random.below(faults.late + 1);
                self.posted += 1;
                self.in_flight.insert((due, self.posted), wire.clone());
            }
        }
    }

    fn arrival(&mut self, now: u64) -> Option<Wire> {
        let first = self.in_flight.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

/// One of the two ranks. It sends the numbers 0, 1, 2 … and expects the same from its peer.
struct End {
    channel: ReliableChannel,
    out: Link,
    sent: u64,
    received: u64,
    to_send: u64,
}

impl End {
    fn new(limits: ChannelLimits, seq: u16, to_send: u64) -> Self {
        let channel = ReliableChannel::starting_at(limits, seq);
        let out = Link::default();
        Self {
            channel,
            out,
            sent: 0,
            received: 0,
            to_send,
        }
    }

    fn turn(&mut self, from: &mut Link, now: u64, faults: Faults, random: &mut Random) {
        while let Some(wire) = from.arrival(now) {
            match wire {
                Wire::Data(frame) => self.handle(frame, now),
                Wire::Answer(ChannelReply::Ack(ack)) => self.channel.handle_bare_ack(ack, now),
                Wire::Answer(ChannelReply::Nack(first_bad)) => {
                    self.channel.handle_nack(first_bad, now)
                }
            }
        }
        let (out, channel) = (&mut self.out, &mut self.channel);
        while let Some(frame) = channel.poll_transmit(now).cloned() {
            if random.percent(5) {
                channel.untransmit(); // the driver is full
                break;
            }
            out.post(now, &Wire::Data(frame), faults, random);
        }
        for _ in 0..random.below(40) {
            self.send(now, faults, random);
        }
        if let Some(answer) = self.channel.poll_reply(now) {
            self.channel.reply_sent(now);
            self.out.post(now, &Wire::Answer(answer), faults, random);
        }
        self.channel.set_clock(now);
    }

    fn send(&mut self, now: u64, faults: Faults, random: &mut Random) {
        let Some(seq) = self.channel.next_seq().filter(|_| self.sent < self.to_send) else {
            return;
        };
        let header = [seq.to_ne_bytes(), self.channel.ack().to_ne_bytes()].concat();
        let body = self.sent.to_ne_bytes().to_vec();
        self.channel.sent(&header, &body);
        self.sent += 1;
        self.out.post(
            now,
            &Wire::Data(ChannelFrame { header, body }),
            faults,
            random,
        );
    }

    fn handle(&mut self, frame: ChannelFrame, now: u64) {
        let half = |at| u16::from_ne_bytes([frame.header[at], frame.header[at + 1]]);
        self.channel.handle_ack(half(2), now);
        let copy = || (frame.header.clone(), frame.body.clone());
        if self.channel.accept(half(0), copy) == ChannelVerdict::Deliver {
            self.receive(&frame);
            while let Some(frame) = self.channel.pop_early() {
                self.receive(&frame);
            }
        }
    }

    fn receive(&mut self, frame: &ChannelFrame) {
        assert_eq!(frame.body, self.received.to_ne_bytes(), "in order and once");
        self.received += 1;
    }

    fn is_done(&self, expected: u64) -> bool {
        self.sent == self.to_send
            && self.received == expected
            && self.channel.unacked_len() == 0
            && self.out.in_flight.is_empty()
    }
}

/// Exchanges messages in both directions. Returns how often a frame was posted for each of them.
fn exchange(
    seed: u64,
    limits: ChannelLimits,
    start: u16,
    messages: [u64; 2],
    faults: Faults,
) -> [u64; 2] {
    println!(
        "seed {seed}, {faults:?}, from {start}, window {}",
        limits.window
    );
    let mut random = Random(seed);
    let mut ends = messages.map(|messages| End::new(limits, start, messages));
    let mut now = 0;
    while !(ends[0].is_done(messages[1]) && ends[1].is_done(messages[0])) {
        let [left, right] = &mut ends;
        left.turn(&mut right.out, now, faults, &mut random);
        right.turn(&mut left.out, now, faults, &mut random);
        assert!(!left.channel.is_dead() && !right.channel.is_dead());
        now += 1;
        assert!(now < 100_000_000, "no end in sight");
    }
    for end in &ends {
        assert_eq!(
            end.channel.receiver.early_len(),
            0,
            "early messages are kept"
        );
        assert_eq!(end.channel.next_timeout(), None, "a clock runs for nothing");
    }
    ends.map(|end| end.out.posted)
}

/// Ticks instead of nanoseconds: a timeout is a few round trips.
const TICKS: ChannelLimits = ChannelLimits {
    window: 64,
    timeout: 200,
    timeout_min: 20,
    timeout_max: 1_000,
    hold: 20,
    jitter: 0,
    rewinds_max: 1_000,
};

const STORM: Faults = Faults {
    drop: 30,
    repeat: 20,
    late: 64,
};

const CALM: Faults = Faults {
    drop: 0,
    repeat: 0,
    late: 0,
};

#[test]
fn a_hundred_thousand_messages_cross_a_storm_in_order_and_once() {
    exchange(1, TICKS, 65_500, [100_000, 1_000], STORM);
}

#[test]
fn many_short_storms_leave_nothing_behind() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let messages = [random.below(300), random.below(300)];
        let faults = Faults {
            drop: random.below(60),
            repeat: random.below(60),
            late: random.below(65),
        };
        let window = 1 + random.short() % 256;
        let start = 65_535 - random.short() % 128;
        exchange(
            seed,
            ChannelLimits { window, ..TICKS },
            start,
            messages,
            faults,
        );
    }
}

#[test]
fn a_calm_link_carries_every_message_once() {
    let [left, right] = exchange(3, TICKS, 0, [70_000, 0], CALM);
    assert_eq!(left, 70_000);
    assert!(right < 70_000 / 10, "{right} answers");
}

#[test]
fn a_window_wider_than_the_receiver_keeps_ends_in_refusals_and_still_arrives() {
    let wide = ChannelLimits {
        window: 1_000,
        ..TICKS
    };
    exchange(4, wide, 65_000, [5_000, 5_000], STORM);
}

fn send(channel: &mut ReliableChannel) {
    assert!(channel.next_seq().is_some());
    channel.sent(&[1], &[2]);
}

#[test]
fn the_window_bounds_what_is_kept() {
    let mut channel = ReliableChannel::new(0);
    for seq in 0..64 {
        assert_eq!(channel.next_seq(), Some(seq));
        send(&mut channel);
    }
    assert_eq!(channel.next_seq(), None);
    channel.handle_ack(1, 0);
    assert_eq!((channel.next_seq(), channel.unacked_len()), (Some(64), 63));
}

#[test]
fn waits_double_up_to_the_longest_and_then_the_peer_is_dead() {
    let limits = ChannelLimits {
        rewinds_max: 5,
        ..TICKS
    };
    let mut channel = ReliableChannel::with(limits, 0);
    send(&mut channel);
    assert!(channel.poll_transmit(0).is_none());
    let mut waits = Vec::new();
    let mut now = 0;
    while let Some(due) = channel.next_timeout() {
        assert!(channel.poll_transmit(due - 1).is_none(), "too soon");
        waits.push(due - now);
        now = due;
        assert_eq!(channel.poll_transmit(now).is_some(), !channel.is_dead());
        assert!(channel.poll_transmit(now).is_none(), "one message, once");
    }
    assert_eq!(waits, [200, 400, 800, 1_000, 1_000, 1_000]);
    assert!(channel.is_dead());
    assert_eq!((channel.next_seq(), channel.unacked_len()), (None, 0));
}

#[test]
fn a_measured_round_trip_replaces_the_first_wait() {
    let limits = ChannelLimits {
        timeout: 200_000,
        timeout_min: 20_000,
        timeout_max: 1_000_000,
        ..TICKS
    };
    let mut channel = ReliableChannel::with(limits, 0);
    send(&mut channel);
    channel.set_clock(0);
    channel.handle_ack(1, 10_000);
    send(&mut channel);
    channel.set_clock(20_000);
    assert_eq!(channel.next_timeout(), Some(20_000 + 10_000 + 4 * 5_000));
    // There is a shortest wait, however fast the peer is.
    for seq in 2..60 {
        channel.handle_ack(seq, 20_000);
        send(&mut channel);
        channel.set_clock(20_000);
    }
    assert_eq!(channel.next_timeout(), Some(20_000 + limits.timeout_min));
}

#[test]
fn the_third_answer_that_says_nothing_new_rewinds_at_once_and_once_for_each_flight() {
    let mut channel = ReliableChannel::with(TICKS, 0);
    (0..5).for_each(|_| send(&mut channel));
    channel.set_clock(0);
    channel.handle_ack(1, 5);
    for now in [6, 7] {
        channel.handle_bare_ack(1, now);
        assert!(channel.poll_transmit(now).is_none());
    }
    // An acknowledgment that arrived with a message does not mean that a message is missing.
    channel.handle_ack(1, 8);
    assert!(channel.poll_transmit(8).is_none());
    channel.handle_bare_ack(1, 9);
    let again = |channel: &mut ReliableChannel| {
        (0..9)
            .filter(|_| channel.poll_transmit(9).is_some())
            .count()
    };
    assert_eq!(again(&mut channel), 4);
    (0..9).for_each(|_| channel.handle_bare_ack(1, 9));
    assert_eq!(
        again(&mut channel),
        0,
        "what was sent again makes answers too"
    );
    channel.handle_ack(5, 10);
    send(&mut channel);
    (0..3).for_each(|_| channel.handle_bare_ack(5, 11));
    assert_eq!(again(&mut channel), 1, "the next flight");
}

#[test]
fn waits_of_two_channels_differ_by_chance_and_are_bounded() {
    let limits = ChannelLimits {
        jitter: 25,
        ..TICKS
    };
    let wait = |seed| {
        let mut channel = ReliableChannel::with(limits, seed);
        send(&mut channel);
        channel.set_clock(0);
        channel.next_timeout().expect("one is missing")
    };
    let waits: std::collections::BTreeSet<u64> = (0..100).map(wait).collect();
    assert!(waits.len() > 20, "{waits:?}");
    assert!(
        waits.iter().all(|wait| (200..=250).contains(wait)),
        "{waits:?}"
    );
    assert_eq!(wait(7), wait(7));
}

/// Returns Jain's fairness index, (sum of x)² / (n · sum of x²), in percent: 100 if all are equal.
fn jain(shares: &[u64]) -> u64 {
    let sum: u64 = shares.iter().sum();
    let squares: u64 = shares.iter().map(|share| share * share).sum();
    100 * sum * sum / (shares.len() as u64 * squares)
}

#[test]
fn a_third_of_loss_is_fair() {
    for seed in 0..5 {
        println!("seed {seed}");
        let faults = Faults {
            drop: 30,
            repeat: 0,
            late: 3,
        };
        let delivered: Vec<u64> = (0..16)
            .map(|pair| delivered_in(4_000, seed * 16 + pair, faults))
            .collect();
        println!("{delivered:?}");
        assert!(jain(&delivered) >= 95, "{delivered:?}");
        let calm = delivered_in(4_000, seed, CALM);
        let worst = delivered.iter().min().expect("16");
        assert!(worst * 20 > calm, "{worst} of {calm}");
    }
}

/// Returns how many messages one pair of ranks delivers in `ticks` ticks.
fn delivered_in(ticks: u64, seed: u64, faults: Faults) -> u64 {
    let mut random = Random(seed);
    let mut ends = [u64::MAX, 0].map(|messages| {
        End::new(
            ChannelLimits {
                jitter: 25,
                ..TICKS
            },
            0,
            messages,
        )
    });
    for now in 0..ticks {
        let [left, right] = &mut ends;
        left.turn(&mut right.out, now, faults, &mut random);
        right.turn(&mut left.out, now, faults, &mut random);
    }
    ends[1].received
}

#[test]
fn progress_makes_a_channel_patient_again() {
    let mut channel = ReliableChannel::with(TICKS, 0);
    send(&mut channel);
    channel.set_clock(0);
    channel.handle_ack(1, 40);
    (0..2).for_each(|_| send(&mut channel));
    let mut now = 40;
    let mut waits = Vec::new();
    for _ in 0..4 {
        let _ = channel.poll_transmit(now);
        let due = channel.next_timeout().expect("two are missing");
        waits.push(due - now);
        now = due;
    }
    assert_eq!(waits, [120, 240, 480, 960]);
    channel.handle_ack(2, now);
    assert_eq!(channel.next_timeout(), Some(now + 120));
}

#[test]
fn a_refusal_is_answered_after_a_pause_from_the_first_missing_on() {
    let mut channel = ReliableChannel::with(TICKS, 0);
    for _ in 0..4 {
        send(&mut channel);
    }
    channel.handle_nack(2, 10);
    channel.handle_nack(2, 15);
    assert_eq!(channel.next_timeout(), Some(10 + TICKS.hold));
    assert!(channel.poll_transmit(29).is_none());
    let again = (0..5)
        .filter(|_| channel.poll_transmit(30).is_some())
        .count();
    assert_eq!(again, 2);
    // The next pause is longer.
    channel.handle_nack(2, 30);
    assert_eq!(channel.next_timeout(), Some(30 + 2 * TICKS.hold));
}

#[test]
fn old_and_invented_acknowledgements_change_nothing() {
    let mut channel = ReliableChannel::starting_at(TICKS, 65_530);
    for _ in 0..10 {
        send(&mut channel);
    }
    channel.handle_ack(65_533, 5);
    for ack in [65_533, 65_530, 65_532, 5, 40_000, 20_000] {
        channel.handle_ack(ack, 9);
        assert_eq!(
            (channel.unacked_len(), channel.next_timeout()),
            (7, Some(205))
        );
    }
    channel.handle_ack(4, 9);
    assert_eq!((channel.unacked_len(), channel.next_timeout()), (0, None));
}

#[test]
fn refusals_are_not_repeated_before_the_hold_is_over() {
    let mut channel = ReliableChannel::with(TICKS, 0);
    let frame = || (Vec::new(), Vec::new());
    assert_eq!(channel.accept(100, frame), ChannelVerdict::Refuse);
    assert_eq!(channel.poll_reply(0), Some(ChannelReply::Nack(0)));
    channel.reply_sent(0);
    assert_eq!(channel.accept(100, frame), ChannelVerdict::Refuse);
    assert_eq!(channel.poll_reply(19), Some(ChannelReply::Ack(0)));
    channel.reply_sent(19);
    assert_eq!(channel.accept(100, frame), ChannelVerdict::Refuse);
    assert_eq!(channel.poll_reply(20), Some(ChannelReply::Nack(0)));
}

#[test]
fn a_message_that_leaves_takes_the_acknowledgement_along() {
    let mut channel = ReliableChannel::new(0);
    assert_eq!(channel.poll_reply(0), None);
    assert_eq!(
        channel.accept(0, || unreachable!("it is not early")),
        ChannelVerdict::Deliver
    );
    assert_eq!(channel.poll_reply(0), Some(ChannelReply::Ack(1)));
    assert_eq!(channel.ack(), 1);
    send(&mut channel);
    assert_eq!(channel.poll_reply(0), None);
}

#[test]
fn numbers_are_compared_round_the_circle() {
    use ChannelVerdict::{Deliver, Duplicate, Early, Refuse};
    let frame = || ChannelFrame {
        header: Vec::new(),
        body: Vec::new(),
    };
    for expected in [0, 5, 32_768, 65_535] {
        for (ahead, verdict) in [
            (1, Early),
            (1, Duplicate),
            (63, Early),
            (64, Refuse),
            (32_767, Refuse),
            (32_768, Duplicate),
            (65_535, Duplicate),
            (0, Deliver),
        ] {
            let mut receiver = ChannelReceiver::starting_at(expected);
            if (ahead, verdict) == (1, Duplicate) {
                assert_eq!(receiver.accept(expected.wrapping_add(1), frame), Early);
            }
            let seq = u16::wrapping_add(expected, ahead);
            assert_eq!(receiver.accept(seq, frame), verdict, "{seq} for {expected}");
        }
    }
}

#[test]
fn nothing_a_peer_says_panics() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut channel = ReliableChannel::starting_at(TICKS, random.short());
        let mut credits = Credits::new(usize::try_from(random.next()).expect("64 bits"), 3);
        for _ in 0..20_000 {
            let now = random.next() >> random.below(64);
            let number = if random.percent(50) {
                channel.ack().wrapping_add(random.short() % 80)
            } else {
                random.short()
            };
            match random.below(9) {
                0 => channel.handle_ack(number, now),
                1 => channel.handle_nack(number, now),
                2 => {
                    let _ = channel.accept(number, || (vec![1], vec![2]));
                }
                3 => while channel.pop_early().is_some() {},
                4 if channel.next_seq().is_some() => channel.sent(&[1], &[2]),
                5 => {
                    if channel.poll_transmit(now).is_some() && random.percent(50) {
                        channel.untransmit();
                    }
                }
                6 => channel.reply_sent(now),
                7 => credits.refund(random.short()),
                _ => {
                    let len = usize::try_from(random.next() >> random.below(64)).expect("64 bits");
                    credits.owe(1, len);
                    credits.spend(len);
                }
            }
            assert!(channel.unacked_len() <= 64 && channel.receiver.early_len() < 64);
        }
    }
}

#[test]
fn a_long_message_leaves_credits_for_offers_and_an_offer_may_use_the_last() {
    let mut credits = Credits::new(0, 1);
    let long = 64 * 64;
    let whole = (0..100).take_while(|_| credits.spend(long)).count();
    assert_eq!(whole, 7, "448 of 512 units");
    let offers = (0..1_000).take_while(|_| credits.spend(0)).count();
    assert_eq!(offers, 64);
    credits.unspend(0);
    assert!(credits.spend(63) && !credits.spend(63));
}

#[test]
fn a_message_longer_than_the_store_is_never_paid_for() {
    let mut credits = Credits::new(usize::MAX, 1);
    assert!(!credits.spend(usize::MAX) && !credits.spend(64 * 32_767));
    assert!(credits.spend(64 * 28_000));
}

#[test]
fn credits_come_back_whole_when_messages_about_them_are_lost_repeated_and_late() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut sender = Credits::new(1 << 16, 1);
        let mut receiver = Credits::new(1 << 16, 1);
        let mut stored = Vec::new();
        let mut said = vec![receiver.due()];
        for _ in 0..20_000 {
            let len = usize::try_from(random.below(8_192)).expect("short");
            match random.below(4) {
                0 if sender.spend(len) => stored.push(len),
                1 if !stored.is_empty() => {
                    let place = usize::try_from(random.below(stored.len() as u64)).expect("short");
                    receiver.owe(1, stored.swap_remove(place));
                    said.push(receiver.due());
                    receiver.returned(receiver.due());
                }
                2 => sender.refund(said[said.len() - 1 - said.len().min(30) / 2]),
                _ => sender.refund(said[said.len() - 1]),
            }
        }
        for len in stored {
            receiver.owe(1, len);
            receiver.returned(receiver.due());
        }
        sender.refund(receiver.due());
        sender.refund(0);
        assert_eq!((sender.spent(), receiver.owed()), (0, 0));
    }
}

#[test]
fn half_a_window_owed_is_said_once() {
    let mut credits = Credits::new(0, 1);
    let times = (0..512).filter(|_| credits.owe(1, 1)).count();
    assert_eq!((times, credits.owed()), (1, 512));
    credits.returned(credits.due());
    assert_eq!(credits.owed(), 0);
    assert!((0..256).any(|_| credits.owe(1, 1)));
}

#[test]
fn messages_that_leave_together_owe_as_much_as_one_by_one() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = Random(seed);
    let (mut together, mut single) = (Credits::new(0, 1), Credits::new(0, 1));
    for _ in 0..10_000 {
        let messages = u32::try_from(random.below(8)).expect("short");
        let len = usize::try_from(random.below(600)).expect("short");
        let one_by_one = (0..messages).filter(|_| single.owe(1, len)).count();
        assert_eq!(together.owe(messages, len), one_by_one > 0);
        assert_eq!(together.due(), single.due());
        if random.percent(5) {
            together.returned(together.due());
            single.returned(single.due());
        }
    }
}
