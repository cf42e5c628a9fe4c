//! Reductions of the elements of all ranks.

use ripstop_rt::{ReduceOp, buffer::Wire, internal::offload::ErasedReducer};

use crate::reproducible::{ExactSum, Real};

/// Combines elements of all ranks. Every [`ReduceOp`] implements it, and [`ReproducibleSum`].
///
/// A partial result may need more room than an element. Then elements are widened before they travel, and the result is
/// narrowed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not reduce `{T}`",
    label = "not a reduction of `{T}`"
)]
pub trait Reduction<T: Wire>: Sized + Send + 'static {
    /// The type that travels.
    type Acc: Wire;

    /// True if operands may change places.
    const COMMUTES: bool;

    /// A name that all ranks must agree on; empty if there is none.
    const NAME: &'static str;

    /// Returns the widened elements, or `None` if elements travel as they are.
    ///
    /// # Errors
    /// There is no memory for them. The sentence tells how much was needed.
    fn widen(elems: &[T]) -> Option<Result<Vec<Self::Acc>, String>>;

    /// Returns the results, narrowed from the type that travels.
    fn narrow(wide: &[Self::Acc]) -> Vec<T>;

    /// Returns the operation on the type that travels.
    #[doc(hidden)]
    fn reducer(self) -> ErasedReducer;
}

impl<T: Wire, O: ReduceOp<T>> Reduction<T> for O {
    type Acc = T;

    const COMMUTES: bool = <Self as ReduceOp<T>>::COMMUTES;
    const NAME: &'static str = <Self as ReduceOp<T>>::NAME;

    fn widen(_: &[T]) -> Option<Result<Vec<T>, String>> {
        None
    }

    fn narrow(wide: &[T]) -> Vec<T> {
        wide.to_vec()
    }

    fn reducer(self) -> ErasedReducer {
        ErasedReducer::new::<T>(self)
    }
}

/// Adds `f32` or `f64` numbers. The result is the number nearest to the true sum, and has the same bits for any algorithm,
/// number of ranks and order of ranks.
///
/// [`ExactSum`]s travel, which are 35 times as long as an `f64` and 14 times as long as an `f32`. So this is for a few numbers,
/// not for fields. Each call allocates two widened copies of its elements; without memory for them, it fails like a call with
/// an invalid argument.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReproducibleSum;

macro_rules! exact {
    ($($number:ty)*) => {$(
        impl Reduction<$number> for ReproducibleSum {
            type Acc = <$number as Real>::Words;

            const COMMUTES: bool = true;
            const NAME: &'static str = "ReproducibleSum";

            fn widen(elems: &[$number]) -> Option<Result<Vec<Self::Acc>, String>> {
                Some(room_for(elems.len()).map(|mut wide| {
                    wide.extend(elems.iter().map(|elem| widened(*elem)));
                    wide
                }))
            }

            fn narrow(wide: &[Self::Acc]) -> Vec<$number> {
                let value = |words: &Self::Acc| ExactSum::<$number>::from_words(*words).value();
                wide.iter().map(value).collect()
            }

            fn reducer(self) -> ErasedReducer {
                ErasedReducer::new(merged::<$number>)
            }
        }
    )*};
}

exact!(f32 f64);

fn room_for<A>(len: usize) -> Result<Vec<A>, String> {
    let mut wide = Vec::new();
    match wide.try_reserve_exact(len) {
        Ok(()) => Ok(wide),
        Err(why) => {
            let bytes = len.saturating_mul(size_of::<A>());
            Err(format!("no memory for {bytes} bytes of exact sums: {why}"))
        }
    }
}

fn widened<T: Real>(number: T) -> T::Words {
    ExactSum::from_iter([number]).into_words()
}

fn merged<T: Real>(left: T::Words, right: T::Words) -> T::Words {
    let mut sum = ExactSum::<T>::from_words(left);
    sum.merge(&ExactSum::from_words(right));
    sum.into_words()
}

#[cfg(test)]
mod tests {
    use super::room_for;

    #[test]
    fn sums_that_there_is_no_memory_for_are_an_error() {
        assert_eq!(room_for::<[u64; 35]>(3).unwrap().capacity(), 3);
        // More bytes than there are addresses, although the count of numbers alone would fit.
        let why = room_for::<[u64; 35]>(1 << 55).unwrap_err();
        assert!(
            why.starts_with("no memory for 10088063165309911040 bytes of exact sums: "),
            "{why}"
        );
    }
}
