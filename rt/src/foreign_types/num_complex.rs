//! Complex numbers of the crate `num-complex`.
#![expect(
    unsafe_code,
    reason = "promises that a pair of numbers has no padding and no invalid bits"
)]

use num_complex::Complex;

use super::number_as_buffer;
use crate::{
    buffer::{TypeSig, Wire},
    comm::{BuiltIn, Product, ReduceOp, Sum},
};

// SAFETY: two numbers of one type in the order of C have no padding, and any bits are a value of both.
unsafe impl<T: Wire> Wire for Complex<T> {
    const SIG: TypeSig = TypeSig::structure(size_of::<Self>(), &[T::SIG, T::SIG]);
}

number_as_buffer!(Complex<f32> Complex<f64>);

macro_rules! reductions {
    ($($number:ty)*) => {$(
        impl ReduceOp<Complex<$number>> for Sum {
            const COMMUTES: bool = true;
            const NAME: &'static str = "Sum";
            const BUILT_IN: BuiltIn<Self, Complex<$number>> = BuiltIn::YES;

            fn combine(&self, left: Complex<$number>, right: Complex<$number>) -> Complex<$number> {
                left + right
            }
        }

        impl ReduceOp<Complex<$number>> for Product {
            const COMMUTES: bool = true;
            const NAME: &'static str = "Product";
            const BUILT_IN: BuiltIn<Self, Complex<$number>> = BuiltIn::YES;

            fn combine(&self, left: Complex<$number>, right: Complex<$number>) -> Complex<$number> {
                left * right
            }
        }
    )*};
}

reductions!(f32 f64);
