use ripstop_fabric::random::SeededRandom;

use super::{AtomicDatatype, AtomicOperator, apply, extended::LongDouble};

fn done(
    operator: AtomicOperator,
    datatype: AtomicDatatype,
    target: &[u8],
    source: &[u8],
) -> Vec<u8> {
    let mut target = target.to_vec();
    apply(operator, datatype, &[0; 32], &mut target, source);
    target
}

#[test]
fn integers_follow_c() {
    let on = |operator, a: i16, b: i16| {
        let bytes = done(
            operator,
            AtomicDatatype::I16,
            &a.to_ne_bytes(),
            &b.to_ne_bytes(),
        );
        i16::from_ne_bytes(bytes.try_into().unwrap())
    };
    assert_eq!(on(AtomicOperator::Min, -3, 2), -3);
    assert_eq!(on(AtomicOperator::Max, -3, 2), 2);
    assert_eq!(on(AtomicOperator::Sum, i16::MAX, 1), i16::MIN);
    assert_eq!(on(AtomicOperator::Prod, 300, 300), 24_464);
    assert_eq!(on(AtomicOperator::Lor, 0, 8), 1);
    assert_eq!(on(AtomicOperator::Land, 4, 8), 1);
    assert_eq!(on(AtomicOperator::Lxor, 4, 8), 0);
    assert_eq!(on(AtomicOperator::Bor, 4, 8), 12);
    assert_eq!(on(AtomicOperator::Band, 12, 8), 8);
    assert_eq!(on(AtomicOperator::Bxor, 12, 8), 4);
    assert_eq!(on(AtomicOperator::Swap, 12, 8), 8);
}

#[test]
fn unsigned_and_signed_order_differently() {
    let least = |datatype| done(AtomicOperator::Min, datatype, &[255], &[1]);
    assert_eq!(
        (least(AtomicDatatype::I8), least(AtomicDatatype::U8)),
        (vec![255], vec![1])
    );
}

#[test]
fn every_operator_does_something_to_every_datatype_it_takes_and_nothing_to_the_others() {
    let mut random = SeededRandom::new(5);
    for operator in AtomicOperator::ALL {
        for datatype in AtomicDatatype::ALL {
            let mut changed = false;
            for _ in 0..64 {
                let mut bytes = [[0; 32]; 3];
                bytes.iter_mut().for_each(|bytes| random.fill(bytes));
                // Random top bits often encode a NaN, which equals nothing.
                if !datatype.is_integer() {
                    bytes
                        .iter_mut()
                        .for_each(|bytes| number(datatype, bytes, &mut random));
                }
                let [target, source, operand] = bytes;
                let operand = if operator == AtomicOperator::Cswap {
                    target
                } else {
                    operand
                };
                let mut after = target;
                let size = datatype.size();
                apply(
                    operator,
                    datatype,
                    &operand,
                    &mut after[..size],
                    &source[..size],
                );
                changed |= after != target;
            }
            assert_eq!(
                changed,
                operator.takes(datatype),
                "{operator:?} {datatype:?}"
            );
        }
    }
}

fn number(datatype: AtomicDatatype, bytes: &mut [u8; 32], random: &mut SeededRandom) {
    let value = f64::from(u32::try_from(random.within(1..1000)).unwrap()) - 500.5;
    match datatype {
        AtomicDatatype::Float | AtomicDatatype::FloatComplex => {
            #[expect(clippy::cast_possible_truncation, reason = "such small numbers fit")]
            let value = (value as f32).to_ne_bytes();
            bytes
                .chunks_exact_mut(4)
                .for_each(|part| part.copy_from_slice(&value));
        }
        AtomicDatatype::Double | AtomicDatatype::DoubleComplex => {
            let value = value.to_ne_bytes();
            bytes
                .chunks_exact_mut(8)
                .for_each(|part| part.copy_from_slice(&value));
        }
        _ => {
            let value = long(value).to_ne_bytes();
            bytes
                .chunks_exact_mut(16)
                .for_each(|part| part.copy_from_slice(&value));
        }
    }
}

#[test]
fn conditional_swaps_compare_the_operand_with_the_target() {
    let swapped = |operator, operand: i32, target: i32| {
        let mut bytes = target.to_ne_bytes();
        let mut compared = [0; 32];
        compared[..4].copy_from_slice(&operand.to_ne_bytes());
        apply(
            operator,
            AtomicDatatype::I32,
            &compared,
            &mut bytes,
            &77_i32.to_ne_bytes(),
        );
        i32::from_ne_bytes(bytes) == 77
    };
    for (operator, less, equal, greater) in [
        (AtomicOperator::Cswap, false, true, false),
        (AtomicOperator::CswapNe, true, false, true),
        (AtomicOperator::CswapLe, true, true, false),
        (AtomicOperator::CswapLt, true, false, false),
        (AtomicOperator::CswapGe, false, true, true),
        (AtomicOperator::CswapGt, false, false, true),
    ] {
        let seen = (
            swapped(operator, -2, 5),
            swapped(operator, 5, 5),
            swapped(operator, 6, 5),
        );
        assert_eq!(seen, (less, equal, greater), "{operator:?}");
    }
}

#[test]
fn a_masked_swap_takes_the_bits_of_the_mask() {
    let mut mask = [0; 32];
    mask[0] = 0x0f;
    let mut target = [0xab, 0xcd];
    apply(
        AtomicOperator::Mswap,
        AtomicDatatype::U16,
        &mask,
        &mut target,
        &[0x12, 0x34],
    );
    assert_eq!(target, [0xa2, 0xcd]);
}

#[test]
fn complex_products_multiply_both_parts() {
    let pair = |re: f64, im: f64| [re.to_ne_bytes(), im.to_ne_bytes()].concat();
    let product = done(
        AtomicOperator::Prod,
        AtomicDatatype::DoubleComplex,
        &pair(1., 2.),
        &pair(3., -4.),
    );
    assert_eq!(product, pair(11., 2.));
    let sum = done(
        AtomicOperator::Sum,
        AtomicDatatype::DoubleComplex,
        &pair(1., 2.),
        &pair(3., -4.),
    );
    assert_eq!(sum, pair(4., -2.));
}

#[test]
fn what_is_no_number_is_neither_least_nor_greatest() {
    let nan = f64::NAN.to_ne_bytes();
    let one = 1_f64.to_ne_bytes();
    assert_eq!(
        done(AtomicOperator::Max, AtomicDatatype::Double, &one, &nan),
        one
    );
    let mut target = nan;
    let mut operand = [0; 32];
    operand[..8].copy_from_slice(&nan);
    apply(
        AtomicOperator::Cswap,
        AtomicDatatype::Double,
        &operand,
        &mut target,
        &one,
    );
    assert_eq!(target, nan);
}

#[test]
fn bytes_behind_the_last_whole_element_stay() {
    assert_eq!(
        done(
            AtomicOperator::Swap,
            AtomicDatatype::U16,
            &[1, 2, 3],
            &[4, 5, 6]
        ),
        [4, 5, 3]
    );
}

/// Returns exactly `value`, which must be finite and not denormal.
fn long(value: f64) -> LongDouble {
    let bits = value.to_bits();
    let exponent = (bits >> 52) & 0x7ff;
    let mut bytes = [0; 16];
    if exponent > 0 {
        let fraction = 1 << 63 | (bits << 12) >> 1;
        let top = u16::try_from(exponent).unwrap() + (16383 - 1023);
        bytes[..8].copy_from_slice(&fraction.to_ne_bytes());
        bytes[8..10].copy_from_slice(&(top | u16::from(value < 0.0) << 15).to_ne_bytes());
    }
    LongDouble::from_ne_bytes(&bytes)
}

#[test]
fn long_doubles_hold_sums_and_products_that_doubles_cannot() {
    let mut random = SeededRandom::new(3);
    for _ in 0..10_000 {
        // 30 bits each: the product has 60 bits, and the sum at these distances at most 62, so both are exact.
        let mut whole = || random.within(0..1 << 30).cast_signed() - (1 << 29);
        let (a, b) = (whole(), whole());
        let of = |value: i64| long(value as f64);
        assert_eq!(of(a).plus(of(b)), of(a + b));
        let product = of(a).times(of(b));
        let (high, low) = ((a * b) >> 31, (a * b) & ((1 << 31) - 1));
        assert_eq!(product, of(high).times(of(1 << 31)).plus(of(low)));
        assert_eq!(of(a) < of(b), a < b);
        assert_eq!(of(a).plus(of(a).negated()), of(0));
    }
}

#[test]
fn long_doubles_round_to_even_and_know_their_ends() {
    let one = long(1.0);
    // 2^-64 is half of the last bit of 1, and 1 is even.
    let half_ulp = long(0.5_f64.powi(64));
    assert_eq!(one.plus(half_ulp), one);
    let ulp = half_ulp.plus(half_ulp);
    let odd = one.plus(ulp);
    assert!(
        odd > one && odd.plus(half_ulp) > odd,
        "ties go to the even neighbor, above"
    );
    assert!(
        one.plus(half_ulp.plus(long(0.5_f64.powi(120)))) > one,
        "more than half goes up"
    );
    assert_eq!(one.plus(ulp.negated().times(long(0.25))), one);
    let mut large = long(f64::MAX);
    for _ in 0..4 {
        large = large.times(large);
    }
    assert_eq!(large.plus(one), large);
    let infinite = large.times(large);
    assert_eq!(infinite, infinite.plus(large.negated()));
    assert!(infinite > large && infinite.negated() < large);
    let nan = infinite.plus(infinite.negated());
    assert!(nan != nan && infinite.times(long(0.0)) != infinite);
    let mut tiny = long(f64::MIN_POSITIVE);
    for _ in 0..4 {
        tiny = tiny.times(tiny);
    }
    assert!(tiny > long(0.0) && tiny.times(long(0.5)) < tiny);
    assert_eq!(tiny.times(tiny), long(0.0));
}
