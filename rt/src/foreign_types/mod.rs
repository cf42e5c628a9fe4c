//! Types of other crates that operations send, receive and reduce: numbers, arrays, and values of any shape.
//!
//! Each file belongs to the cargo feature of its name, and none of the features is on by default.

#[cfg(feature = "half")]
mod half;
#[cfg(feature = "nalgebra")]
mod nalgebra;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "num-complex")]
mod num_complex;
#[cfg(feature = "serde")]
mod values;

#[cfg(feature = "serde")]
pub use self::values::{EncodedByte, RecvValueOp};

/// Makes a number of another crate a buffer of one element.
#[cfg(any(feature = "half", feature = "num-complex"))]
macro_rules! number_as_buffer {
    ($($T:ty)*) => {$(
        impl crate::buffer::SendBuf for $T {
            type Elem = Self;

            fn elems(&self) -> &[Self] {
                std::slice::from_ref(self)
            }
        }

        // SAFETY: `spare` always returns the whole number.
        unsafe impl crate::buffer::RecvBuf for $T {
            unsafe fn spare(&mut self) -> &mut [std::mem::MaybeUninit<Self>] {
                // SAFETY: the caller leaves every element initialized.
                unsafe { crate::buffer::as_spare(std::slice::from_mut(self)) }
            }

            unsafe fn set_filled(&mut self, _: usize) {}
        }
    )*};
}

#[cfg(any(feature = "half", feature = "num-complex"))]
use number_as_buffer;
