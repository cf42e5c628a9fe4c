use proptest::prelude::*;
use ripstop_fabric::random::SeededRandom;

use super::{ExactSum, Real};
use crate::plan::{
    AllReduce, NodeLayout, OperandOrder, RankLayout,
    check::{ExecutorRules, RankMemory, run},
};

fn sum<T: Real>(numbers: &[T]) -> T {
    numbers.iter().copied().collect::<ExactSum<T>>().value()
}

/// Numbers of all magnitudes and signs, none infinite.
fn any_finite() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("finite", |number| number.is_finite())
}

proptest! {
    #[test]
    fn any_order_and_any_split_give_the_same_bits(
        (numbers, shuffled) in prop::collection::vec(any::<u64>().prop_map(f64::from_bits), 0..60)
            .prop_flat_map(|numbers| (Just(numbers.clone()), Just(numbers).prop_shuffle())),
        cuts in prop::collection::vec(0_usize..60, 3),
    ) {
        let whole: ExactSum<f64> = numbers.into_iter().collect();
        let mut merged = ExactSum::new();
        let mut rest = shuffled.as_slice();
        for cut in cuts {
            let (part, left) = rest.split_at(cut.min(rest.len()));
            let mut sum: ExactSum<f64> = part.iter().copied().collect();
            sum.merge(&merged);
            (merged, rest) = (sum, left);
        }
        merged.merge(&rest.iter().copied().collect());
        prop_assert_eq!(whole, merged);
        prop_assert_eq!(whole.value().to_bits(), merged.value().to_bits());
    }

    #[test]
    fn the_sum_is_the_number_nearest_to_the_exact_one(parts in prop::collection::vec(any::<(i64, u8)>(), 0..40)) {
        // Multiples of 2^-30 whose sum an i128 can hold. The conversion of an integer rounds to nearest, ties to even.
        let scaled = |(mantissa, shift): &(i64, u8)| (mantissa >> 11, u32::from(shift % 64));
        let exact: i128 = parts.iter().map(scaled).map(|(mantissa, shift)| i128::from(mantissa) << shift).sum();
        let scale = 2_f64.powi(-30);
        let numbers: Vec<f64> = parts.iter().map(scaled).map(|(m, shift)| (i128::from(m) << shift) as f64 * scale).collect();
        prop_assert_eq!(sum(&numbers), exact as f64 * scale);
        let small: Vec<f32> = parts.iter().map(|(m, _)| (m >> 40) as f32).collect();
        let exact: i128 = parts.iter().map(|(m, _)| i128::from(m >> 40)).sum();
        prop_assert_eq!(sum(&small), exact as f32);
    }

    #[test]
    fn one_number_is_its_own_sum(number in any_finite(), small in any::<u32>().prop_map(f32::from_bits)) {
        prop_assert_eq!(sum(&[number]).to_bits(), (number + 0.0).to_bits());
        if small.is_finite() {
            prop_assert_eq!(sum(&[small]).to_bits(), (small + 0.0).to_bits());
        }
    }

    #[test]
    fn what_was_added_and_taken_away_is_gone(number in any_finite(), others in prop::collection::vec(any_finite(), 0..20)) {
        let gone = others.iter().copied().chain(others.iter().map(|other| -other));
        let all: Vec<f64> = [number].into_iter().chain(gone).collect();
        prop_assert_eq!(sum(&all).to_bits(), (number + 0.0).to_bits());
    }
}

#[test]
fn a_sum_of_two_is_what_one_addition_rounds_to() {
    let mut random = SeededRandom::new(1971);
    for _ in 0..20_000 {
        // Exponents close to each other, so that rounding matters, and often near both ends.
        let base = random.bits();
        let mut draw = |fraction: u32, exponents: u64| {
            let exponent = base.wrapping_add(random.within(0..56)) & exponents;
            let rest = random.bits() & ((1 << fraction) - 1);
            (exponent << fraction | rest, random.chance(0.5))
        };
        let mut one = || {
            let (bits, negative) = draw(52, 0x7ff);
            f64::of(bits, negative)
        };
        assert_same(one(), one(), |a, b| a + b);
        let mut one = || {
            let (bits, negative) = draw(23, 0xff);
            f32::of(bits, negative)
        };
        assert_same(one(), one(), |a, b| a + b);
    }
}

fn assert_same<T: Real>(a: T, b: T, add: impl Fn(T, T) -> T) {
    // Adding zero makes zeros positive.
    let (ours, theirs) = (sum(&[a, b]), add(add(a, b), T::of(0, false)));
    let is_nan = |number: T| number.bits() & (T::INFINITY + (1 << T::FRACTION) - 1) > T::INFINITY;
    assert!(
        ours.bits() == theirs.bits() || is_nan(ours) && is_nan(theirs),
        "{a:?} + {b:?}: {ours:?}"
    );
}

#[test]
fn halves_go_to_even_unless_anything_is_below() {
    let big = 2_f64.powi(53);
    assert_eq!(sum(&[big, 1.0]), big);
    assert_eq!(sum(&[big, 1.0, f64::from_bits(1)]), big + 2.0);
    assert_eq!(sum(&[big + 2.0, 1.0]), big + 4.0);
    assert_eq!(sum(&[-big, -1.0, -f64::from_bits(1)]), -big - 2.0);
}

#[test]
fn a_sum_may_pass_the_largest_number_and_come_back() {
    assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX]), f64::MAX);
    assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
    assert_eq!(sum(&[f32::MIN, f32::MIN]), f32::NEG_INFINITY);
    // Half a unit in the last place above the largest number is the first value that rounds to infinity.
    let half = 2_f64.powi(970);
    assert_eq!(sum(&[f64::MAX, half]), f64::INFINITY);
    assert_eq!(sum(&[f64::MAX, half, -f64::from_bits(1)]), f64::MAX);
}

#[test]
fn infinities_and_nans_are_kept_and_zero_is_positive() {
    let inf = f64::INFINITY;
    assert_eq!(sum(&[1.0, inf, -5.0, inf]), inf);
    assert_eq!(sum(&[1.0, -inf]), -inf);
    assert!(sum(&[inf, -inf]).is_nan() && sum(&[1.0, f64::NAN, inf]).is_nan());
    assert!(sum(&[f32::NAN]).is_nan());
    assert_eq!(sum(&[-0.0_f64]).to_bits(), 0);
    assert_eq!(sum::<f32>(&[]).to_bits(), 0);
}

#[test]
fn words_are_the_sum() {
    let whole: ExactSum<f64> = [1.5, -7.25e300].into_iter().collect();
    assert_eq!(ExactSum::from_words(whole.into_words()), whole);
    assert_eq!(size_of::<ExactSum<f64>>(), 280);
    assert_eq!(size_of::<ExactSum<f32>>(), 56);
}

#[test]
fn every_allreduce_on_every_number_of_ranks_gives_the_same_bits() {
    let mut random = SeededRandom::new(5);
    let numbers: Vec<f64> = (0..240)
        .map(|_| f64::from_bits(random.bits()))
        .filter(|n| n.is_finite())
        .collect();
    let want = sum(&numbers).to_bits();
    for size in [1, 2, 3, 6, 8, 13] {
        let nodes = NodeLayout::regular(size, 4);
        for algorithm in AllReduce::ALL {
            let place = |rank| RankLayout::new(rank, size).on(&nodes);
            let plans: Vec<_> = (0..size)
                .map(|rank| algorithm.plan(&place(rank), 1, OperandOrder::Any).unwrap())
                .collect();
            let part = |rank| numbers.iter().copied().skip(rank).step_by(size);
            let output = |rank| vec![Some(part(rank).collect::<ExactSum<f64>>())];
            let mut memory: Vec<_> = (0..size)
                .map(|rank| RankMemory::new(vec![], output(rank)))
                .collect();
            let mut pick = |count: usize| usize::try_from(random.within(0..count as u64)).unwrap();
            let combine = |left: &ExactSum<f64>, right: &ExactSum<f64>| {
                let mut both = *left;
                both.merge(right);
                both
            };
            run(
                &plans,
                &mut memory,
                &combine,
                ExecutorRules::eager(),
                &mut pick,
            )
            .unwrap();
            for rank in memory {
                assert_eq!(
                    rank.output[0].unwrap().value().to_bits(),
                    want,
                    "{algorithm} on {size}"
                );
            }
        }
    }
}
