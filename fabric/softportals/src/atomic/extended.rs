//! The `long double` of x86-64: 64 bits of fraction, of which the first is explicit, and 15 bits of exponent. Sums and products
//! are rounded to nearest, ties to even, which is the default of the x87.

use std::cmp::Ordering;

/// An 80-bit number, stored in 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongDouble {
    negative: bool,
    /// Biased by [`BIAS`]. 0 means denormal or zero, [`EXPONENT_MAX`] means infinite or NaN.
    exponent: u16,
    fraction: u64,
}

/// A finite number: `fraction * 2^scale`.
#[derive(Clone, Copy)]
struct ScaledFraction {
    negative: bool,
    fraction: u128,
    scale: i32,
}

impl LongDouble {
    pub(super) fn from_ne_bytes(bytes: &[u8; 16]) -> Self {
        let bits = u128::from_ne_bytes(*bytes).to_le_bytes();
        let mut fraction = [0; 8];
        fraction.copy_from_slice(&bits[..8]);
        let top = u16::from_le_bytes([bits[8], bits[9]]);
        Self {
            negative: top >> 15 == 1,
            exponent: top & EXPONENT_MAX,
            fraction: u64::from_le_bytes(fraction),
        }
    }

    /// Returns the bytes of the number. The 6 padding bytes are zero.
    pub(super) fn to_ne_bytes(self) -> [u8; 16] {
        let top = u128::from(self.negative) << 79 | u128::from(self.exponent) << 64;
        (top | u128::from(self.fraction)).to_ne_bytes()
    }

    pub(super) const fn negated(self) -> Self {
        Self {
            negative: !self.negative,
            ..self
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        if self.is_nan() || other.is_nan() {
            return NAN;
        }
        match (self.is_infinite(), other.is_infinite()) {
            (true, true) if self.negative != other.negative => NAN,
            (true, _) => self,
            (_, true) => other,
            _ => sum(self.scaled(), other.scaled()),
        }
    }

    pub(super) fn times(self, other: Self) -> Self {
        let negative = self.negative != other.negative;
        if self.is_nan() || other.is_nan() {
            return NAN;
        }
        if self.is_infinite() || other.is_infinite() {
            let zero = self.is_zero() || other.is_zero();
            return if zero { NAN } else { infinite(negative) };
        }
        let (a, b) = (self.scaled(), other.scaled());
        rounded(ScaledFraction {
            negative,
            fraction: a.fraction * b.fraction,
            scale: a.scale + b.scale,
        })
    }

    /// Returns true for NaN, and for encodings without the explicit bit, which no processor produces.
    const fn is_nan(self) -> bool {
        let explicit = self.fraction >> 63 == 1;
        match self.exponent {
            0 => false,
            EXPONENT_MAX => !explicit || self.fraction << 1 != 0,
            _ => !explicit,
        }
    }

    const fn is_infinite(self) -> bool {
        self.exponent == EXPONENT_MAX && self.fraction == 1 << 63
    }

    const fn is_zero(self) -> bool {
        self.exponent == 0 && self.fraction == 0
    }

    fn scaled(self) -> ScaledFraction {
        ScaledFraction {
            negative: self.negative,
            fraction: u128::from(self.fraction),
            scale: i32::from(self.exponent.max(1)) - BIAS - 63,
        }
    }
}

impl PartialEq for LongDouble {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for LongDouble {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        if self.is_nan() || other.is_nan() {
            return None;
        }
        if self.is_zero() && other.is_zero() {
            return Some(Ordering::Equal);
        }
        let size = |number: &Self| (number.exponent.max(1), number.fraction);
        Some(match (self.negative, other.negative) {
            (false, false) => size(self).cmp(&size(other)),
            (true, true) => size(other).cmp(&size(self)),
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
        })
    }
}

fn sum(a: ScaledFraction, b: ScaledFraction) -> LongDouble {
    let (large, small) = if a.scale >= b.scale { (a, b) } else { (b, a) };
    // The 63 bits below the larger number's last bit decide the rounding. Of the bits below those, only whether any is set
    // matters.
    let large_fraction = large.fraction << GUARD;
    let down = large.scale.abs_diff(small.scale);
    let wide = small.fraction << GUARD;
    let mut small_fraction = wide.checked_shr(down).unwrap_or(0);
    if wide != 0 && small_fraction.checked_shl(down) != Some(wide) {
        small_fraction |= 1;
    }
    let scale = large.scale - GUARD.cast_signed();
    let (negative, fraction) = if large.negative == small.negative {
        (large.negative, large_fraction + small_fraction)
    } else if large_fraction >= small_fraction {
        (large.negative, large_fraction - small_fraction)
    } else {
        (small.negative, small_fraction - large_fraction)
    };
    // The difference of equal numbers is positive zero, but the sum of two negative zeros is negative.
    let negative = negative && (fraction != 0 || (a.negative && b.negative));
    rounded(ScaledFraction {
        negative,
        fraction,
        scale,
    })
}

fn rounded(number: ScaledFraction) -> LongDouble {
    let ScaledFraction {
        negative,
        fraction,
        scale,
    } = number;
    if fraction == 0 {
        return LongDouble {
            negative,
            exponent: 0,
            fraction: 0,
        };
    }
    // Normalize: shift the first bit to position 63, unless the exponent would become too small.
    let high = 127 - fraction.leading_zeros().cast_signed();
    let shift = (high - 63).max(LEAST_SCALE - scale);
    let (mut kept, up) = shifted(fraction, shift);
    if up {
        kept += 1;
    }
    let carried = kept >> 64 != 0;
    if carried {
        kept >>= 1;
    }
    let kept = u64::try_from(kept).unwrap_or(u64::MAX);
    let exponent = scale + shift + i32::from(carried) + BIAS + 63;
    let exponent = if kept >> 63 == 0 { 0 } else { exponent };
    match u16::try_from(exponent) {
        Ok(exponent) if exponent < EXPONENT_MAX => LongDouble {
            negative,
            exponent,
            fraction: kept,
        },
        _ => infinite(negative),
    }
}

/// Returns `fraction` shifted right by `shift` bits, and true if it must be rounded up.
fn shifted(fraction: u128, shift: i32) -> (u128, bool) {
    if shift <= 0 {
        return (fraction << shift.unsigned_abs(), false);
    }
    let shift = shift.unsigned_abs();
    let kept = fraction.checked_shr(shift).unwrap_or(0);
    let half = 1_u128.checked_shl(shift - 1);
    let rest = fraction ^ kept.checked_shl(shift).unwrap_or(0);
    let up = half.is_some_and(|half| rest > half || (rest == half && kept & 1 == 1));
    (kept, up)
}

const fn infinite(negative: bool) -> LongDouble {
    LongDouble {
        negative,
        exponent: EXPONENT_MAX,
        fraction: 1 << 63,
    }
}

/// The NaN that the x87 produces for invalid operations.
const NAN: LongDouble = LongDouble {
    negative: true,
    exponent: EXPONENT_MAX,
    fraction: 3 << 62,
};
const EXPONENT_MAX: u16 = 0x7fff;
const BIAS: i32 = 16383;
/// Scale of denormal numbers.
const LEAST_SCALE: i32 = 1 - BIAS - 63;
/// Bits kept below a number's last bit during an addition. Room for a carry remains above.
const GUARD: u32 = 62;
