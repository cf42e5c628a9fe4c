//! Reduction operators: how a reduction combines two elements.

use std::{array, fmt, marker::PhantomData};

use ripstop_fabric::offload::{CombineOperator, IntegerType, TypedOperator};

use crate::buffer::Wire;

/// Combines elements of type `T`. Implemented by [`Sum`], [`Product`], [`Min`], [`Max`], [`BitAnd`], [`LogicalAnd`] and
/// similar types for numbers and arrays of them, by [`MinLoc`] and [`MaxLoc`], and by closures.
///
/// The type says whether the operands may be exchanged. An operator that does not allow it, like a closure, is applied
/// only in rank order. [`Commutative`] marks a closure as commutative.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not reduce `{T}`",
    label = "not a reduction of `{T}`"
)]
pub trait ReduceOp<T>: Send + 'static {
    /// True if `combine(a, b)` equals `combine(b, a)`. If false, rank order is kept, and fewer algorithms can be used.
    const COMMUTES: bool = false;

    /// Operator name, on which all ranks of a collective must agree. Empty for closures.
    const NAME: &'static str = "";

    /// `BuiltIn::NO` except for operators of this library: no other code can construct a `YES`.
    #[doc(hidden)]
    const BUILT_IN: BuiltIn<Self, T> = BuiltIn::NO;

    /// Combines two elements into one. Must be associative up to rounding.
    fn combine(&self, left: T, right: T) -> T;
}

/// Marks operators of this library that never panic. The engine may run them where it must not run code of the
/// application. Also names the matching operator of adapters that combine integers.
#[derive(Debug)]
#[expect(unnameable_types, reason = "only this crate implements it")]
pub struct BuiltIn<O: ?Sized, T>(bool, Option<TypedOperator>, PhantomData<fn(&O, T)>);

impl<O: ?Sized, T> BuiltIn<O, T> {
    const NO: Self = Self(false, None, PhantomData);
    pub(crate) const YES: Self = Self(true, None, PhantomData);

    /// Returns the mark for an integer operator, with the adapter's operator if it has one for such integers.
    const fn of_integers(operator: Option<CombineOperator>, signed: bool) -> Self {
        let how = match (operator, IntegerType::new(size_of::<T>(), signed)) {
            (Some(operator), Some(integer)) => Some(TypedOperator { operator, integer }),
            _ => None,
        };
        Self(true, how, PhantomData)
    }

    /// Returns the mark for an operator that combines arrays element by element, from its mark for the elements. An adapter
    /// combines single numbers only.
    const fn of_elements<E>(elements: &BuiltIn<O, E>) -> Self {
        Self(elements.0, None, PhantomData)
    }

    pub(crate) const fn combination(&self) -> Option<TypedOperator> {
        self.1
    }

    pub(crate) const fn get(&self) -> bool {
        self.0
    }
}

impl<T: Wire, F: Fn(T, T) -> T + Send + 'static> ReduceOp<T> for F {
    fn combine(&self, left: T, right: T) -> T {
        self(left, right)
    }
}

/// Wraps a commutative closure, which allows more algorithms.
///
/// ```
/// # use ripstop_rt::{Commutative, ReduceOp};
/// let gcd = Commutative(|mut a: u64, mut b: u64| {
///     while b != 0 {
///         (a, b) = (b, a % b);
///     }
///     a
/// });
/// assert_eq!(gcd.combine(12, 18), 6);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Commutative<F>(pub F);

impl<T: Wire, F: Fn(T, T) -> T + Send + 'static> ReduceOp<T> for Commutative<F> {
    const COMMUTES: bool = true;

    fn combine(&self, left: T, right: T) -> T {
        self.0(left, right)
    }
}

/// A value and its location: the element type of [`MinLoc`] and [`MaxLoc`].
///
/// ```
/// # use ripstop_rt::{Located, MinLoc, ReduceOp};
/// let nearest = MinLoc.combine(Located::new(0.5, 3), Located::new(0.25, 8));
/// assert_eq!((nearest.value(), nearest.at()), (0.25, 8));
/// ```
// Packed, so that it has no padding for any `T`. The fields are private, because a reference to one would not be aligned.
#[derive(Clone, Copy, PartialEq)]
#[repr(C, packed)]
pub struct Located<T: Copy> {
    value: T,
    at: u64,
}

impl<T: Copy> Located<T> {
    /// Returns `value` with its location: a rank, or any other number.
    #[must_use]
    pub const fn new(value: T, at: u64) -> Self {
        Self { value, at }
    }

    /// Returns the value that is compared.
    #[must_use]
    pub const fn value(&self) -> T {
        self.value
    }

    /// Returns the location of the value.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Located")
            .field("value", &self.value())
            .field("at", &self.at())
            .finish()
    }
}

macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        ///
        /// Combines arrays `[T; N]` element by element.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl<T: Copy, const N: usize> ReduceOp<[T; N]> for $name
        where
            Self: ReduceOp<T>,
        {
            const COMMUTES: bool = <Self as ReduceOp<T>>::COMMUTES;
            const NAME: &'static str = <Self as ReduceOp<T>>::NAME;
            const BUILT_IN: BuiltIn<Self, [T; N]> = BuiltIn::of_elements(&<Self as ReduceOp<T>>::BUILT_IN);

            fn combine(&self, left: [T; N], right: [T; N]) -> [T; N] {
                array::from_fn(|at| self.combine(left[at], right[at]))
            }
        }
    )*};
}

operators! {
    /// Adds. Integers wrap.
    Sum,
    /// Multiplies. Integers wrap.
    Product,
    /// Takes the lesser. If one operand is NaN, takes the other.
    Min,
    /// Takes the greater. If one operand is NaN, takes the other.
    Max,
    /// Takes the lesser value with its location. Of two equal values, takes the one with the lower location; a number
    /// wins over NaN.
    MinLoc,
    /// Takes the greater value with its location. Of two equal values, takes the one with the lower location; a number
    /// wins over NaN.
    MaxLoc,
    /// Takes the bits that are set in both.
    BitAnd,
    /// Takes the bits that are set in one or both.
    BitOr,
    /// Takes the bits that are set in exactly one.
    BitXor,
    /// Returns 1 if both are not 0, otherwise 0.
    LogicalAnd,
    /// Returns 1 if one or both are not 0, otherwise 0.
    LogicalOr,
    /// Returns 1 if exactly one is not 0, otherwise 0.
    LogicalXor,
}

/// Implements a commutative operator for some number types.
macro_rules! commuting {
    ($name:ident, $left:ident, $right:ident, $combined:expr; $($number:ty = $built_in:expr,)*) => {$(
        impl ReduceOp<$number> for $name {
            const COMMUTES: bool = true;
            const NAME: &'static str = stringify!($name);
            const BUILT_IN: BuiltIn<Self, $number> = $built_in;

            fn combine(&self, $left: $number, $right: $number) -> $number {
                $combined
            }
        }
    )*};
}

macro_rules! integers {
    ($($name:ident = $operator:expr, |$left:ident, $right:ident| $combined:expr;)*) => {$(
        commuting!($name, $left, $right, $combined;
            u8 = BuiltIn::of_integers($operator, false),
            u16 = BuiltIn::of_integers($operator, false),
            u32 = BuiltIn::of_integers($operator, false),
            u64 = BuiltIn::of_integers($operator, false),
            u128 = BuiltIn::of_integers($operator, false),
            usize = BuiltIn::of_integers($operator, false),
            i8 = BuiltIn::of_integers($operator, true),
            i16 = BuiltIn::of_integers($operator, true),
            i32 = BuiltIn::of_integers($operator, true),
            i64 = BuiltIn::of_integers($operator, true),
            i128 = BuiltIn::of_integers($operator, true),
            isize = BuiltIn::of_integers($operator, true),
        );
    )*};
}

macro_rules! floats {
    ($($name:ident: |$left:ident, $right:ident| $combined:expr;)*) => {$(
        // Adapters may round differently, so the processor combines floating-point numbers.
        commuting!($name, $left, $right, $combined; f32 = BuiltIn::YES, f64 = BuiltIn::YES,);
    )*};
}

integers! {
    Sum = Some(CombineOperator::Sum), |left, right| left.wrapping_add(right);
    Product = None, |left, right| left.wrapping_mul(right);
    Min = Some(CombineOperator::Min), |left, right| left.min(right);
    Max = Some(CombineOperator::Max), |left, right| left.max(right);
    BitAnd = Some(CombineOperator::And), |left, right| left & right;
    BitOr = Some(CombineOperator::Or), |left, right| left | right;
    BitXor = Some(CombineOperator::Xor), |left, right| left ^ right;
    LogicalAnd = None, |left, right| (left != 0 && right != 0).into();
    LogicalOr = None, |left, right| (left != 0 || right != 0).into();
    LogicalXor = None, |left, right| ((left != 0) != (right != 0)).into();
}

floats! {
    Sum: |left, right| left + right;
    Product: |left, right| left * right;
    Min: |left, right| left.min(right);
    Max: |left, right| left.max(right);
}

impl<T: Wire + PartialOrd> ReduceOp<Located<T>> for MinLoc {
    const COMMUTES: bool = true;
    const NAME: &'static str = "MinLoc";

    fn combine(&self, left: Located<T>, right: Located<T>) -> Located<T> {
        let (ours, theirs) = (left.value, right.value);
        first_of(left, right, ours < theirs, theirs < ours)
    }
}

impl<T: Wire + PartialOrd> ReduceOp<Located<T>> for MaxLoc {
    const COMMUTES: bool = true;
    const NAME: &'static str = "MaxLoc";

    fn combine(&self, left: Located<T>, right: Located<T>) -> Located<T> {
        let (ours, theirs) = (left.value, right.value);
        first_of(left, right, ours > theirs, theirs > ours)
    }
}

/// Returns the operand that wins (`is_left` or `is_right`). If neither wins, returns the one that is a number, and of
/// two numbers the one with the lower location.
fn first_of<T: Wire + PartialOrd>(
    left: Located<T>,
    right: Located<T>,
    is_left: bool,
    is_right: bool,
) -> Located<T> {
    let is_number = |value: T| value.partial_cmp(&value).is_some();
    if is_left || is_right {
        return if is_left { left } else { right };
    }
    let lower = if left.at <= right.at { left } else { right };
    match (is_number(left.value), is_number(right.value)) {
        (true, false) => left,
        (false, true) => right,
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T: Wire>(op: &impl ReduceOp<T>, left: T, right: T) -> T {
        op.combine(left, right)
    }

    #[test]
    fn integers_wrap_and_logic_gives_ones() {
        assert_eq!(of(&Sum, 250_u8, 10), 4);
        assert_eq!(of(&Product, i32::MAX, 2), -2);
        assert_eq!(
            (of(&BitAnd, 6, 3), of(&BitOr, 6, 3), of(&BitXor, 6, 3)),
            (2, 7, 5)
        );
        assert_eq!((of(&LogicalAnd, 6, 8), of(&LogicalAnd, 6, 0)), (1, 0));
        assert_eq!((of(&LogicalOr, 0, 8), of(&LogicalOr, 0, 0)), (1, 0));
        assert_eq!((of(&LogicalXor, 6, 8), of(&LogicalXor, 6, 0)), (0, 1));
    }

    #[test]
    fn the_place_of_the_least_is_the_lowest_and_a_nan_is_nowhere() {
        let at = |value: f64, at| Located::new(value, at);
        for (left, right) in [
            (at(1.0, 7), at(2.0, 3)),
            (at(1.0, 7), at(1.0, 9)),
            (at(1.0, 7), at(f64::NAN, 0)),
        ] {
            assert_eq!(of(&MinLoc, left, right), left);
            assert_eq!(of(&MinLoc, right, left), left);
        }
        assert_eq!(of(&MaxLoc, at(1.0, 7), at(2.0, 3)), at(2.0, 3));
    }
}
