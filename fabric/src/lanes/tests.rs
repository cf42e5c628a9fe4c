//! Tests of lanes in virtual time, and of what must hold for every order of events.

use proptest::prelude::*;

use super::{
    LANES_MAX, LaneFences, LaneSet, LaneSpeed, LaneSpeeds, LaneStripe, PIECE_MIN, PieceId,
    StripePiece, StripeProgress, home, pair, pair_up,
};
use crate::random::SeededRandom;

fn index(number: u64) -> usize {
    usize::try_from(number).expect("short")
}

fn speed(bytes_per_us: u64) -> LaneSpeed {
    LaneSpeed {
        latency_ns: 1_500,
        bytes_per_us,
    }
}

/// Adapters that move pieces one after the other, each at its own pace.
struct Adapters {
    thought: LaneSpeeds,
    /// Bytes per microsecond of each lane: at first, and from `changes_ns` on.
    paces: Vec<[u64; 2]>,
    changes_ns: u64,
    /// Lane that dies, and when, in nanoseconds.
    dies: Option<(u32, u64)>,
}

/// Time from the death of a lane until both ends have closed it, in nanoseconds.
const FENCE_NS: u64 = 20_000;
const NEVER: u64 = u64::MAX;

impl Adapters {
    fn steady(paces: &[u64]) -> Self {
        let speeds: Vec<_> = paces.iter().map(|pace| speed(*pace)).collect();
        Self {
            thought: LaneSpeeds::new(&speeds),
            paces: paces.iter().map(|pace| [*pace; 2]).collect(),
            changes_ns: NEVER,
            dies: None,
        }
    }

    /// Returns when a piece that begins at `start` has left, in nanoseconds.
    fn end(&self, lane: usize, start: u64, len: u64) -> u64 {
        let [first, then] = self.paces[lane];
        let whole = start + len * 1000 / first;
        if whole <= self.changes_ns {
            return whole;
        }
        let before = self.changes_ns.saturating_sub(start) * first / 1000;
        self.changes_ns.max(start) + (len - before.min(len)) * 1000 / then
    }

    /// Returns the time in nanoseconds that a stripe takes.
    fn run(&self, len: u64) -> u64 {
        let all = self.thought.all();
        let mut stripe = LaneStripe::new(len, &self.thought, all, u64::MAX);
        let mut free = vec![0; self.paces.len()];
        let mut landings: Vec<(u64, StripePiece)> = Vec::new();
        let (mut now, mut dead, mut fenced) = (0, false, false);
        let mut moved = vec![0; self.paces.len()];
        while stripe.standing() == StripeProgress::InFlight {
            for lane in 0..LANES_MAX {
                while let Some(piece) = stripe.poll_piece(lane, &self.thought) {
                    let at = lane as usize;
                    let len = piece.range.end - piece.range.start;
                    free[at] = self.end(at, free[at].max(now), len);
                    moved[at] += len;
                    landings.push((free[at] + 1_500, piece));
                }
            }
            landings.sort_by_key(|(at, piece)| (*at, piece.id.0));
            let (dies, death) = self.dies.unwrap_or((0, NEVER));
            let next = landings.first().map_or(NEVER, |(at, _)| *at);
            if !dead && death <= next {
                (now, dead) = (death, true);
                stripe.handle_failed(dies, all.without(LaneSet::EMPTY.with(dies)));
                landings.retain(|(_, piece)| piece.lane != dies);
            } else if dead && !fenced && death + FENCE_NS <= next {
                (now, fenced) = (death + FENCE_NS, true);
                stripe.handle_fenced(dies);
            } else {
                let (at, piece) = landings.remove(0);
                now = at;
                stripe.handle_landed(piece.id);
            }
        }
        assert_eq!(stripe.standing(), StripeProgress::Done);
        assert_eq!(stripe.landed(), len);
        now
    }

    /// Returns the time if all lanes ended together.
    fn ideal(&self, len: u64) -> u64 {
        1_500 + len * 1000 / self.paces.iter().map(|pace| pace[0]).sum::<u64>()
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn equal_lanes_add_up_and_three_are_half_as_good_again_as_two() {
    for (len, percent) in [(256 * MIB, 99), (16 * MIB, 98), (MIB, 90)] {
        for lanes in 1..=4 {
            let adapters = Adapters::steady(&vec![12_500; lanes]);
            let (ideal, real) = (adapters.ideal(len), adapters.run(len));
            assert!(
                100 * ideal >= percent * real,
                "{lanes} lanes, {len} bytes: {real} ns, {ideal} at best"
            );
        }
    }
    let [two, three] = [2, 3].map(|lanes| Adapters::steady(&vec![12_500; lanes]).run(256 * MIB));
    assert!(100 * two >= 149 * three);
}

#[test]
fn longer_commands_are_not_slower() {
    for lanes in 1..=4 {
        let adapters = Adapters::steady(&vec![12_500; lanes]);
        let per_gib = |gib: u64| adapters.run(gib << 30) / gib;
        assert!(per_gib(4) <= per_gib(1) + per_gib(1) / 100);
    }
}

#[test]
fn lanes_of_different_speed_add_up() {
    let adapters = Adapters::steady(&[12_000, 6_000, 3_000, 3_000]);
    let (ideal, real) = (adapters.ideal(256 * MIB), adapters.run(256 * MIB));
    assert!(100 * ideal >= 98 * real, "{real} ns, {ideal} at best");
}

#[test]
fn a_lane_that_becomes_slow_holds_the_others_up_for_little() {
    let mut adapters = Adapters::steady(&[12_500; 4]);
    let half = adapters.ideal(256 * MIB) / 2;
    adapters.changes_ns = half;
    adapters.paces[2][1] = 1_250;
    let best = half + half * 40 / 31;
    let real = adapters.run(256 * MIB);
    assert!(100 * real <= 110 * best, "{real} ns, {best} at best");
}

#[test]
fn the_others_take_over_from_a_lane_that_dies_wherever_it_is() {
    let mut adapters = Adapters::steady(&[12_500; 4]);
    let whole = adapters.ideal(256 * MIB);
    for part in 0..=16_u32 {
        let death = whole * u64::from(part) / 16;
        adapters.dies = Some((part % 4, death));
        let best = death + FENCE_NS.min(whole - death) + (whole - death) * 4 / 3;
        let real = adapters.run(256 * MIB);
        assert!(
            100 * real <= 105 * best,
            "died at {part}/16: {real} ns, {best} at best"
        );
    }
}

#[test]
fn a_share_is_the_optimum_and_lanes_that_do_not_help_have_none() {
    let speeds = LaneSpeeds::equal(3, speed(12_500));
    let third = 256 * MIB / 3 / 4096 * 4096;
    assert_eq!(
        speeds.shares(256 * MIB, speeds.all()),
        [(0, third), (1, third), (2, 256 * MIB - 2 * third)]
    );
    assert_eq!(
        speeds.shares(40_000, speeds.all()).len(),
        1,
        "too short to be divided"
    );
    let uneven = LaneSpeeds::new(&[speed(8_000), speed(2_000), speed(1_999)]);
    let shares = uneven.shares(100 * MIB, uneven.all());
    assert_eq!(
        shares.iter().map(|(lane, _)| *lane).collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!(shares[0].1 / MIB, 80);
    let late = LaneSpeeds::new(&[
        speed(1_000),
        LaneSpeed {
            latency_ns: 1_000_000,
            ..speed(4_000)
        },
    ]);
    let shares = late.shares(1_000_000, late.all());
    assert_eq!(
        shares,
        [(0, 1_000_000)],
        "the other begins when all is done"
    );
    assert_eq!(uneven.shares(MIB, LaneSet::EMPTY), []);
    assert_eq!(
        speeds
            .shares(0, speeds.all())
            .iter()
            .map(|(_, part)| part)
            .sum::<u64>(),
        0
    );
}

#[test]
fn nothing_is_a_command_too() {
    let speeds = LaneSpeeds::equal(2, speed(100));
    let mut stripe = LaneStripe::new(0, &speeds, speeds.all(), 1 << 20);
    assert_eq!(stripe.standing(), StripeProgress::InFlight);
    let piece = stripe
        .poll_piece(0, &speeds)
        .expect("one lane tells the other side");
    assert_eq!((piece.range, stripe.poll_piece(0, &speeds)), (0..0, None));
    stripe.handle_landed(piece.id);
    assert_eq!(stripe.standing(), StripeProgress::Done);
}

#[test]
fn what_is_under_way_on_a_failed_lane_is_not_repeated_before_the_fence() {
    let speeds = LaneSpeeds::equal(2, speed(100));
    let mut stripe = LaneStripe::new(2 * PIECE_MIN, &speeds, speeds.all(), PIECE_MIN);
    let (first, second) = (stripe.poll_piece(0, &speeds), stripe.poll_piece(1, &speeds));
    stripe.handle_landed(second.expect("a piece").id);
    stripe.handle_failed(0, LaneSet::from_bits(2));
    assert_eq!(stripe.poll_piece(1, &speeds), None);
    assert_eq!(
        stripe.standing(),
        StripeProgress::InFlight,
        "it may still land"
    );
    stripe.handle_fenced(0);
    let again = stripe.poll_piece(1, &speeds).expect("the same bytes");
    let first = first.expect("a piece");
    assert_eq!((again.lane, &again.range), (1, &first.range));
    stripe.handle_landed(first.id);
    assert_eq!(
        stripe.standing(),
        StripeProgress::InFlight,
        "a late word counts for nothing"
    );
    stripe.handle_landed(again.id);
    assert_eq!(stripe.standing(), StripeProgress::Done);
}

#[test]
fn without_lanes_a_command_is_stranded() {
    let speeds = LaneSpeeds::equal(1, speed(100));
    let mut stripe = LaneStripe::new(PIECE_MIN, &speeds, speeds.all(), u64::MAX);
    let piece = stripe.poll_piece(0, &speeds).expect("a piece");
    stripe.handle_failed(0, LaneSet::EMPTY);
    assert_eq!(stripe.standing(), StripeProgress::InFlight);
    stripe.handle_fenced(0);
    assert_eq!(stripe.standing(), StripeProgress::Stranded);
    stripe.handle_landed(piece.id);
    assert_eq!(stripe.standing(), StripeProgress::Stranded);
}

#[test]
fn only_the_contexts_of_a_failed_lane_move() {
    let all = LaneSet::first(4);
    let mut homes = [0_u32; 4];
    for context in 0..4000 {
        let before = home(context, all).expect("a lane");
        homes[before as usize] += 1;
        let after = home(context, all.without(LaneSet::EMPTY.with(2))).expect("a lane");
        assert!(before == after || before == 2 && after != 2);
    }
    assert!(
        homes.iter().all(|count| (900..1100).contains(count)),
        "{homes:?}"
    );
    assert_eq!(home(7, LaneSet::EMPTY), None);
}

#[test]
fn adapters_are_paired_alike_by_both_sides() {
    assert_eq!(pair_up(&[5, 9], &[1, 1]), [(0, 0), (1, 1)]);
    assert_eq!(pair_up(&[5, 9], &[1, 2, 3]), [(1, 2), (0, 1), (1, 0)]);
    assert_eq!(pair_up(&[1, 2, 3], &[5, 9]), [(2, 1), (1, 0), (0, 1)]);
    assert_eq!(pair_up(&[], &[1]), []);
    assert_eq!(pair_up(&[1; 12], &[1]).len(), LANES_MAX as usize);
}

/// Runs a stripe with random events, and counts how often each byte lands.
fn live(seed: u64, len: u64, lanes: u32) {
    let mut random = SeededRandom::new(seed);
    let paces: Vec<_> = (0..lanes)
        .map(|_| speed(random.within(1..20_000)))
        .collect();
    let speeds = LaneSpeeds::new(&paces);
    let (mut working, mut failed) = (speeds.all(), LaneSet::EMPTY);
    let mut stripe = LaneStripe::new(len, &speeds, working, random.within(4096..len.max(4097)));
    let mut flying: Vec<StripePiece> = Vec::new();
    let mut landed = vec![0_u8; index(len)];
    for _ in 0..100_000 {
        match stripe.standing() {
            StripeProgress::InFlight => {}
            StripeProgress::Done => {
                assert!(
                    landed.iter().all(|count| *count == 1),
                    "bytes that landed twice or never"
                );
                return;
            }
            StripeProgress::Stranded => return assert!(working.is_empty(), "{working:?} work"),
        }
        let lane = u32::try_from(random.within(0..u64::from(lanes))).expect("a lane");
        match random.within(0..16) {
            0..8 => flying.extend(stripe.poll_piece(lane, &speeds)),
            8..14 if !flying.is_empty() => {
                let piece = flying.swap_remove(index(random.bits()) % flying.len());
                if random.chance(0.1) && !failed.has(piece.lane) {
                    stripe.refuse(piece.id);
                } else {
                    stripe.handle_landed(piece.id);
                    stripe.handle_landed(PieceId(piece.id.0.wrapping_add(1 << 30)));
                    let [start, end] = [piece.range.start, piece.range.end].map(index);
                    let range = start..end;
                    landed[range].iter_mut().for_each(|count| *count += 1);
                }
            }
            14 if random.chance(0.2) => {
                failed = failed.with(lane);
                working = working.without(failed);
                stripe.handle_failed(lane, working);
            }
            15 if failed.has(lane) => {
                stripe.handle_fenced(lane);
                flying.retain(|piece| piece.lane != lane); // the fence keeps them out
            }
            _ => {}
        }
    }
    panic!("no end");
}

/// Has two ranks find lanes broken and report that, in any order, with reports that are repeated and late. A transfer on a lane
/// arrives only at a side that has not closed it.
fn feud(seed: u64, lanes: u32) {
    let mut random = SeededRandom::new(seed);
    let all = LaneSet::first(lanes);
    let mut sides = [LaneFences::new(all); 2];
    let mut said = vec![(0, sides[0].report())];
    for _ in 0..200 {
        let side = usize::from(random.chance(0.5));
        let lane = u32::try_from(random.within(0..u64::from(lanes))).expect("a lane");
        match random.within(0..4) {
            0 if random.chance(0.2) => _ = sides[side].fail(lane),
            1 => _ = sides[side].close(lane),
            2 => said.push((1 - side, sides[side].report())),
            _ => {
                let (to, word) = said[index(random.bits()) % said.len()];
                let before = sides[to].fenced();
                let fenced = sides[to].handle_report(word);
                assert_eq!(fenced, sides[to].fenced().without(before));
            }
        }
        for (one, other) in [(0, 1), (1, 0)] {
            let closed = sides[other].report().closed;
            let fenced = sides[one].fenced();
            assert!(
                fenced.without(closed).is_empty(),
                "the other can still be written by {fenced:?}"
            );
            assert!(fenced.without(sides[one].report().closed).is_empty());
            assert!(fenced.and(sides[one].working()).is_empty());
        }
    }
    // After all reports have been exchanged, both agree.
    for _ in 0..3 {
        for side in 0..2 {
            sides[side]
                .to_close()
                .iter()
                .for_each(|lane| _ = sides[side].close(lane));
            let word = sides[side].report();
            let _fenced = sides[1 - side].handle_report(word);
        }
    }
    let [one, other] = sides;
    assert_eq!(one.working(), other.working());
    assert_eq!(
        (one.fenced(), other.fenced()),
        (all.without(one.working()), one.fenced())
    );
}

proptest! {
    #[test]
    fn every_byte_lands_once_whatever_lanes_do(seed: u64, len in 0_u64..3_000_000, lanes in 1_u32..=8) {
        live(seed, len, lanes);
    }

    #[test]
    fn a_fenced_lane_is_closed_on_both_sides(seed: u64, lanes in 1_u32..=8) {
        feud(seed, lanes);
    }

    #[test]
    fn shares_are_all_of_it(len: u64, paces in proptest::collection::vec(1_u64..100_000, 1..=8)) {
        let paces: Vec<_> = paces.into_iter().map(speed).collect();
        let speeds = LaneSpeeds::new(&paces);
        let shares = speeds.shares(len, speeds.all());
        let sum: u128 = shares.iter().map(|(_, part)| u128::from(*part)).sum();
        prop_assert_eq!(sum, u128::from(len));
    }
}

#[test]
fn a_pair_keeps_four_bytes() {
    assert_eq!(size_of::<LaneFences>(), 4);
}

#[test]
fn a_stripe_that_begins_again_is_as_a_new_one() {
    let speeds = LaneSpeeds::equal(2, speed(12_000));
    let (all, one) = (LaneSet::first(2), LaneSet::from_bits(0b10));
    let mut stripe = LaneStripe::new(1 << 20, &speeds, all, u64::MAX);
    while stripe.poll_piece(0, &speeds).is_some() || stripe.poll_piece(1, &speeds).is_some() {}
    stripe.handle_landed(PieceId(0));
    stripe.handle_failed(1, all);
    stripe.handle_fenced(1);
    for (len, lanes) in [(1 << 20, all), (8, one), (0, one), (0, all)] {
        stripe.renew(len, &speeds, lanes, 4096);
        let new = LaneStripe::new(len, &speeds, lanes, 4096);
        assert_eq!(format!("{stripe:?}"), format!("{new:?}"));
        while stripe.poll_piece(1, &speeds).is_some() {}
    }
}

#[test]
fn weights_say_how_fast_lanes_are_beside_the_fastest() {
    let rates = |weights: &[u32]| {
        let speeds = LaneSpeeds::by_weight(speed(12_000), weights);
        let lanes = speeds.all().iter();
        lanes
            .map(|lane| speeds.bytes_per_us(lane))
            .collect::<Vec<_>>()
    };
    assert_eq!(rates(&[2, 1, 4]), [6_000, 3_000, 12_000]);
    assert_eq!(rates(&[7]), [12_000]);
    assert_eq!(rates(&[]), [12_000], "a lane without a name");
}

#[test]
fn both_ranks_call_their_pair_the_same_and_no_other_pair() {
    assert_eq!(pair(3, 7), pair(7, 3));
    assert_ne!(pair(3, 7), pair(3, 8));
    assert_ne!(pair(0, 1), pair(0, 2));
}
