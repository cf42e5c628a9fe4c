//! Matrices and vectors of the crate `nalgebra`: those of a length known at run time as buffers, the others as elements.
#![expect(
    unsafe_code,
    reason = "lends the elements of a matrix as room, and promises that a small matrix has no padding"
)]

use std::mem::MaybeUninit;

use nalgebra::{Dim, Dyn, Matrix, SMatrix, Scalar, VecStorage};

use crate::buffer::{RecvBuf, SendBuf, TypeSig, Wire, as_spare};

/// The elements in column-major order.
impl<T, C> SendBuf for Matrix<T, Dyn, C, VecStorage<T, Dyn, C>>
where
    T: Wire + Scalar,
    C: Dim,
{
    type Elem = T;

    fn elems(&self) -> &[T] {
        self.as_slice()
    }
}

// SAFETY: the matrix's own memory, which stays the same while the matrix is not changed.
unsafe impl<T, C> RecvBuf for Matrix<T, Dyn, C, VecStorage<T, Dyn, C>>
where
    T: Wire + Scalar,
    C: Dim,
{
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        // SAFETY: the caller leaves every element initialized.
        unsafe { as_spare(self.as_mut_slice()) }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

// SAFETY: the elements of a small matrix are an array of arrays.
unsafe impl<T, const R: usize, const C: usize> Wire for SMatrix<T, R, C>
where
    T: Wire + Scalar,
{
    const SIG: TypeSig = <[[T; R]; C]>::SIG;
}
