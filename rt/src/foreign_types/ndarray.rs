//! Arrays of the crate `ndarray` as buffers.
#![expect(unsafe_code, reason = "lends the elements of an array as room")]

use std::mem::MaybeUninit;

use ndarray::{Array, ArrayBase, Data, Dimension};

use crate::buffer::{RecvBuf, SendBuf, Wire, as_spare};

/// The elements in row-major order, of an array that owns or shares them.
impl<T, S, D> SendBuf for ArrayBase<S, D>
where
    T: Wire,
    S: Data<Elem = T> + Send + 'static,
    D: Dimension + 'static,
{
    type Elem = T;

    fn elems(&self) -> &[T] {
        self.as_slice().unwrap_or_default()
    }

    fn fault(&self) -> Option<&'static str> {
        (!self.is_standard_layout()).then_some(
            "the array is not in standard layout (row by row, without gaps): pass `array.as_standard_layout().into_owned()`",
        )
    }
}

// SAFETY: the array's own memory, which stays the same while the array is not changed.
unsafe impl<T: Wire, D: Dimension + 'static> RecvBuf for Array<T, D> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        match self.as_slice_mut() {
            // SAFETY: the caller leaves every element initialized.
            Some(elems) => unsafe { as_spare(elems) },
            None => &mut [],
        }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}
