//! What a reduction does with two elements.

use crate::buffer::Wire;

/// Combines elements of type `T`. Implemented by [`Sum`], [`Product`], [`Min`] and [`Max`] for numbers, and by closures.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not reduce `{T}`",
    label = "not a reduction of `{T}`"
)]
pub trait ReduceOp<T>: Send + 'static {
    /// It is code of this library that never panics: the engine may run it where an application's may not run.
    #[doc(hidden)]
    const BUILT_IN: bool = false;

    /// One element out of two. Must be associative up to rounding; it is applied in the order of the ranks.
    fn combine(&self, left: T, right: T) -> T;
}

/// Adds; integers wrap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum;

/// Multiplies; integers wrap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Product;

/// Takes the lesser; of a number and a NaN, the number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Min;

/// Takes the greater; of a number and a NaN, the number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Max;

impl<T: Wire, F: Fn(T, T) -> T + Send + 'static> ReduceOp<T> for F {
    fn combine(&self, left: T, right: T) -> T {
        self(left, right)
    }
}

macro_rules! numbers {
    ($add:ident, $mul:ident: $($number:ty)*) => {$(
        impl ReduceOp<$number> for Sum {
            const BUILT_IN: bool = true;

            fn combine(&self, left: $number, right: $number) -> $number {
                numbers!(@ $add left, right)
            }
        }

        impl ReduceOp<$number> for Product {
            const BUILT_IN: bool = true;

            fn combine(&self, left: $number, right: $number) -> $number {
                numbers!(@ $mul left, right)
            }
        }

        impl ReduceOp<$number> for Min {
            const BUILT_IN: bool = true;

            fn combine(&self, left: $number, right: $number) -> $number {
                left.min(right)
            }
        }

        impl ReduceOp<$number> for Max {
            const BUILT_IN: bool = true;

            fn combine(&self, left: $number, right: $number) -> $number {
                left.max(right)
            }
        }
    )*};
    (@ plus $left:ident, $right:ident) => { $left + $right };
    (@ times $left:ident, $right:ident) => { $left * $right };
    (@ wrapping_add $left:ident, $right:ident) => { $left.wrapping_add($right) };
    (@ wrapping_mul $left:ident, $right:ident) => { $left.wrapping_mul($right) };
}

numbers!(plus, times: f32 f64);
numbers!(wrapping_add, wrapping_mul: u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
