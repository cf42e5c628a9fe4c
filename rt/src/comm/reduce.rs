//! What a reduction does with two elements.

use std::marker::PhantomData;

use ripstop_fabric::offload::{Combination, Integer, Operator};

use crate::buffer::Wire;

/// Combines elements of type `T`: implemented by [`Sum`], [`Product`], [`Min`], [`Max`], [`BitAnd`], [`LogicalAnd`] and their
/// like for numbers, by [`MinLoc`] and [`MaxLoc`], and by closures.
///
/// Whether operands may change places is part of the type: what does not say so, as closures do not, is only ever applied in
/// the order of the ranks. [`Commutative`] says so for a closure.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not reduce `{T}`",
    label = "not a reduction of `{T}`"
)]
pub trait ReduceOp<T>: Send + 'static {
    /// Whether `combine(a, b)` is `combine(b, a)`. If not, the order of the ranks is kept, and fewer algorithms fit.
    const COMMUTES: bool = false;

    /// A name that all ranks of a collective must agree on; closures have none.
    const NAME: &'static str = "";

    /// Nobody else can say yes.
    #[doc(hidden)]
    const BUILT_IN: BuiltIn<Self, T> = BuiltIn::NO;

    /// One element out of two. Must be associative up to rounding.
    fn combine(&self, left: T, right: T) -> T;
}

/// Whether an operation is code of this library that never panics: the engine may run it where an application's may not run.
/// And what it is to an adapter that combines integers.
#[doc(hidden)]
#[derive(Debug)]
#[expect(unnameable_types, reason = "nobody else says yes")]
pub struct BuiltIn<O: ?Sized, T>(bool, Option<Combination>, PhantomData<fn(&O, T)>);

impl<O: ?Sized, T> BuiltIn<O, T> {
    const NO: Self = Self(false, None, PhantomData);
    const YES: Self = Self(true, None, PhantomData);

    /// For integers, and for adapters if they have such an operator and such integers.
    const fn of_integers(operator: Option<Operator>, signed: bool) -> Self {
        let how = match (operator, Integer::new(size_of::<T>(), signed)) {
            (Some(operator), Some(integer)) => Some(Combination { operator, integer }),
            _ => None,
        };
        Self(true, how, PhantomData)
    }

    pub(crate) const fn combination(&self) -> Option<Combination> {
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

/// A closure whose operands may change places: more algorithms fit.
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

/// A value, and where it is: what [`MinLoc`] and [`MaxLoc`] reduce.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, packed)]
pub struct Located<T: Copy> {
    /// What is compared.
    pub value: T,
    /// A rank, or any other number that says where it came from.
    pub at: u64,
}

macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;
    )*};
}

operators! {
    /// Adds; integers wrap.
    Sum,
    /// Multiplies; integers wrap.
    Product,
    /// Takes the lesser; of a number and a NaN, the number.
    Min,
    /// Takes the greater; of a number and a NaN, the number.
    Max,
    /// Takes the lesser value with its place, the lower place of two equal ones; of a number and a NaN, the number.
    MinLoc,
    /// Takes the greater value with its place, the lower place of two equal ones; of a number and a NaN, the number.
    MaxLoc,
    /// The bits that are set in both.
    BitAnd,
    /// The bits that are set in one or both.
    BitOr,
    /// The bits that are set in one only.
    BitXor,
    /// 1 if both are not 0, else 0.
    LogicalAnd,
    /// 1 if one or both are not 0, else 0.
    LogicalOr,
    /// 1 if one only is not 0, else 0.
    LogicalXor,
}

/// An operator that commutes, for some types of numbers.
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
        // Adapters may round as they like, so floating-point numbers stay with the processor.
        commuting!($name, $left, $right, $combined; f32 = BuiltIn::YES, f64 = BuiltIn::YES,);
    )*};
}

integers! {
    Sum = Some(Operator::Sum), |left, right| left.wrapping_add(right);
    Product = None, |left, right| left.wrapping_mul(right);
    Min = Some(Operator::Min), |left, right| left.min(right);
    Max = Some(Operator::Max), |left, right| left.max(right);
    BitAnd = Some(Operator::And), |left, right| left & right;
    BitOr = Some(Operator::Or), |left, right| left | right;
    BitXor = Some(Operator::Xor), |left, right| left ^ right;
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

/// The one that is before the other; of those that are not, the number, and of two numbers the one with the lower place.
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
        let at = |value: f64, at| Located { value, at };
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
