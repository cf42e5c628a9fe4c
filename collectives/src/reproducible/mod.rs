//! Sums of floating-point numbers that have the same bits for any order, algorithm and number of ranks.
//!
//! Adding `f64`s rounds at every step, so different trees of `+` give different bits. An [`ExactSum`] does not round: it is an
//! integer wide enough for every bit that a number of its type can have, and integers can be added in any order (Kulisch 1971;
//! for sums across ranks: Collange, Defour, Graillat, Iakymchuk 2015). It is rounded once, at the end, so the result is the
//! number nearest to the true sum. The cost is size: 280 bytes for an `f64`, 56 for an `f32`. Bins (Demmel, Nguyen 2015) need
//! less, and give reproducible bits but not the nearest number.

use std::fmt::Debug;

#[cfg(test)]
mod tests;

/// An exact sum of numbers of type `T`.
///
/// Sums of the same numbers are equal, bit for bit, in whatever order and groups they were added and merged. Up to 2⁷⁷ numbers
/// (`f64`) or 2¹⁰⁶ (`f32`) of any size fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct ExactSum<T: Real> {
    /// A two's complement integer in units of the least positive number, low word first; then a word that records infinities
    /// and NaNs.
    words: T::Words,
}

/// Types that can be summed: `f32` and `f64`, as their IEEE 754 formats.
pub trait Real: Copy + Debug {
    /// The memory of a sum: a word for each 64 bits of the integer, and one more.
    type Words: Copy + Debug + Eq + AsRef<[u64]> + AsMut<[u64]>;

    /// The empty sum.
    const ZERO: Self::Words;
    /// Stored bits of the fraction.
    const FRACTION: u32;
    /// The bits of infinity.
    const INFINITY: u64;

    /// Returns the bits, including the sign.
    fn bits(self) -> u64;

    /// Returns the number with these bits, negated if `negative`.
    fn of(bits: u64, negative: bool) -> Self;
}

impl<T: Real> ExactSum<T> {
    /// Returns the empty sum.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: T::ZERO }
    }

    /// Adds a number. O(1).
    ///
    /// ```
    /// use ripstop_collectives::reproducible::ExactSum;
    ///
    /// let mut sum = ExactSum::new();
    /// for number in [1e16, 1.0, -1e16] {
    ///     sum.add(number);
    /// }
    /// assert_eq!(sum.value(), 1.0); // whatever the order
    /// ```
    pub fn add(&mut self, number: T) {
        let bits = number.bits();
        let fraction = bits & ((1 << T::FRACTION) - 1);
        let exponent = (bits & T::INFINITY) >> T::FRACTION;
        let negative = bits & (T::INFINITY + (1 << T::FRACTION)) > T::INFINITY;
        let (limbs, special) = self.parts();
        match exponent {
            // Subnormal numbers use the exponent of the least normal one, and have no hidden leading bit.
            0 => shift_in(limbs, fraction, 0, negative),
            _ if exponent == T::INFINITY >> T::FRACTION => *special |= kind(fraction, negative),
            _ => shift_in(limbs, fraction | 1 << T::FRACTION, exponent - 1, negative),
        }
    }

    /// Adds the numbers that `other` contains. Associative and commutative.
    pub fn merge(&mut self, other: &Self) {
        let (limbs, special) = self.parts();
        let (theirs, other_special) = split(other.words.as_ref());
        let mut carry = false;
        for (limb, their) in limbs.iter_mut().zip(theirs) {
            (*limb, carry) = limb.carrying_add(*their, carry);
        }
        *special |= other_special;
    }

    /// Returns the number nearest to the sum; a tie goes to the even one, and a sum beyond the largest number is infinite. A
    /// sum of zero is +0.
    ///
    /// As in any order of `+`, a NaN or infinities of both signs give a NaN, and infinities of one sign give that infinity.
    #[must_use]
    pub fn value(&self) -> T {
        let (limbs, special) = split(self.words.as_ref());
        match special {
            0 => {}
            PLUS => return T::of(T::INFINITY, false),
            MINUS => return T::of(T::INFINITY, true),
            _ => return T::of(T::INFINITY | 1 << (T::FRACTION - 1), false),
        }
        let negative = limbs.last().is_some_and(|top| top >> 63 == 1);
        let mut copy = self.words;
        let (magnitude, _) = split_mut(copy.as_mut());
        if negative {
            negate(magnitude);
        }
        T::of(rounded(magnitude, T::FRACTION).min(T::INFINITY), negative)
    }

    /// Returns the sum as plain words, to send or store.
    ///
    /// ```
    /// # use ripstop_collectives::reproducible::ExactSum;
    /// // The sum of one rank travels as words, and is merged into the sum of another.
    /// let (mine, theirs): (ExactSum<f64>, ExactSum<f64>) =
    ///     ([0.1, 0.2].into_iter().collect(), [0.3].into_iter().collect());
    /// let words = theirs.into_words();
    /// let mut all = mine;
    /// all.merge(&ExactSum::from_words(words));
    /// assert_eq!(all.value(), 0.6);
    /// ```
    #[must_use]
    pub const fn into_words(self) -> T::Words {
        self.words
    }

    /// Returns the sum with these words. Any words are a valid sum.
    #[must_use]
    pub const fn from_words(words: T::Words) -> Self {
        Self { words }
    }

    fn parts(&mut self) -> (&mut [u64], &mut u64) {
        split_mut(self.words.as_mut())
    }
}

impl<T: Real> Default for ExactSum<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Real> Extend<T> for ExactSum<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, numbers: I) {
        for number in numbers {
            self.add(number);
        }
    }
}

impl<T: Real> FromIterator<T> for ExactSum<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        let mut sum = Self::new();
        sum.extend(numbers);
        sum
    }
}

// The largest number has its last bit at 2046 + 52 (f32: 254 + 23) above the least. The remaining bits are room for many such
// numbers, and a sign.
const F64_LIMBS: usize = 34;
const F32_LIMBS: usize = 6;
const _: () = assert!(64 * F64_LIMBS > 2046 + 52 + 77);
const _: () = assert!(64 * F32_LIMBS > 254 + 23 + 106);

impl Real for f64 {
    type Words = [u64; F64_LIMBS + 1];

    const ZERO: Self::Words = [0; F64_LIMBS + 1];
    const FRACTION: u32 = 52;
    const INFINITY: u64 = Self::INFINITY.to_bits();

    fn bits(self) -> u64 {
        self.to_bits()
    }

    fn of(bits: u64, negative: bool) -> Self {
        let magnitude = Self::from_bits(bits);
        if negative { -magnitude } else { magnitude }
    }
}

impl Real for f32 {
    type Words = [u64; F32_LIMBS + 1];

    const ZERO: Self::Words = [0; F32_LIMBS + 1];
    const FRACTION: u32 = 23;
    const INFINITY: u64 = Self::INFINITY.to_bits() as u64;

    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }

    fn of(bits: u64, negative: bool) -> Self {
        let magnitude = Self::from_bits(u32::try_from(bits).expect("the bits of an f32"));
        if negative { -magnitude } else { magnitude }
    }
}

const PLUS: u64 = 1;
const MINUS: u64 = 2;
const NAN: u64 = 4;

/// Classifies a number with the largest exponent.
const fn kind(fraction: u64, negative: bool) -> u64 {
    match (fraction, negative) {
        (0, false) => PLUS,
        (0, true) => MINUS,
        _ => NAN,
    }
}

fn split(words: &[u64]) -> (&[u64], u64) {
    let (special, limbs) = words.split_last().expect("a sum has words");
    (limbs, *special)
}

fn split_mut(words: &mut [u64]) -> (&mut [u64], &mut u64) {
    let (special, limbs) = words.split_last_mut().expect("a sum has words");
    (limbs, special)
}

/// Adds `mantissa` · 2^`shift`, or subtracts it.
fn shift_in(limbs: &mut [u64], mantissa: u64, shift: u64, negative: bool) {
    let wide = u128::from(mantissa) << (shift % 64);
    let first = usize::try_from(shift / 64).expect("a number of limbs");
    let parts = [low(wide), low(wide >> 64)];
    let mut carry = false;
    for (at, limb) in limbs[first..].iter_mut().enumerate() {
        let part = parts.get(at).copied().unwrap_or(0);
        if at >= parts.len() && !carry {
            return;
        }
        (*limb, carry) = if negative {
            limb.borrowing_sub(part, carry)
        } else {
            limb.carrying_add(part, carry)
        };
    }
}

fn negate(limbs: &mut [u64]) {
    let mut carry = true;
    for limb in limbs {
        (*limb, carry) = (!*limb).carrying_add(0, carry);
    }
}

/// Returns the bits of the number nearest to a magnitude. They may go beyond those of infinity.
fn rounded(limbs: &[u64], fraction: u32) -> u64 {
    let Some(top) = limbs.iter().rposition(|limb| *limb != 0) else {
        return 0;
    };
    let length = 64 * top + 64 - limbs[top].leading_zeros() as usize;
    // Up to one bit more than is stored, the integer equals the bits: normal numbers follow the subnormal ones without a gap.
    let Some(dropped) = length
        .checked_sub(fraction as usize + 1)
        .filter(|dropped| *dropped > 0)
    else {
        return limbs[0];
    };
    let mantissa = low(window(limbs, dropped));
    let half = low(window(limbs, dropped - 1)) & 1 == 1;
    let rest = limbs[..(dropped - 1) / 64].iter().any(|limb| *limb != 0)
        || limbs[(dropped - 1) / 64] & ((1 << ((dropped - 1) % 64)) - 1) != 0;
    let up = half && (rest || mantissa & 1 == 1);
    // The hidden leading bit adds one to the exponent. So does a mantissa that is rounded up to a power of two.
    ((dropped as u64) << fraction).saturating_add(mantissa + u64::from(up))
}

/// Returns the bits from `bit` on.
fn window(limbs: &[u64], bit: usize) -> u128 {
    let limb = |at: usize| u128::from(limbs.get(at).copied().unwrap_or(0));
    (limb(bit / 64) | limb(bit / 64 + 1) << 64) >> (bit % 64)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half is what is asked for"
)]
const fn low(wide: u128) -> u64 {
    wide as u64
}
