//! Numbers of 16 bits of the crate `half`.
#![expect(
    unsafe_code,
    reason = "promises that a number has no padding and no invalid bits"
)]

use half::{bf16, f16};

use super::number_as_buffer;
use crate::{
    buffer::{TypeSig, Wire},
    comm::{BuiltIn, Max, Min, Product, ReduceOp, Sum},
};

// SAFETY: a number of 16 bits, any of which are valid, and the signature names its kind and size.
unsafe impl Wire for f16 {
    const SIG: TypeSig = TypeSig::F16;
}

// SAFETY: as above.
unsafe impl Wire for bf16 {
    const SIG: TypeSig = TypeSig::BF16;
}

number_as_buffer!(f16 bf16);

macro_rules! reductions {
    ($($operator:ident: |$left:ident, $right:ident| $combined:expr;)*) => {
        reductions!(f16; $($operator: |$left, $right| $combined;)*);
        reductions!(bf16; $($operator: |$left, $right| $combined;)*);
    };
    ($number:ty; $($operator:ident: |$left:ident, $right:ident| $combined:expr;)*) => {$(
        impl ReduceOp<$number> for $operator {
            const COMMUTES: bool = true;
            const NAME: &'static str = stringify!($operator);
            const BUILT_IN: BuiltIn<Self, $number> = BuiltIn::YES;

            fn combine(&self, $left: $number, $right: $number) -> $number {
                $combined
            }
        }
    )*};
}

reductions! {
    Sum: |left, right| left + right;
    Product: |left, right| left * right;
    Min: |left, right| left.min(right);
    Max: |left, right| left.max(right);
}
