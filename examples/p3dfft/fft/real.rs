//! The two precisions.

use num_complex::Complex;
use realfft::FftNum;
use ripstop::buffer::Wire;

/// A real number that is transformed, sent and checked.
pub(crate) trait FftReal: FftNum + Wire + Default {
    /// The distance from 1 to the next number.
    const EPSILON: f64;
    const NAN: Self;

    /// Returns the nearest number of this precision.
    fn of(value: f64) -> Self;

    /// Converts exactly.
    fn wide(self) -> f64;
}

impl FftReal for f64 {
    const EPSILON: Self = Self::EPSILON;
    const NAN: Self = Self::NAN;

    fn of(value: f64) -> Self {
        value
    }

    fn wide(self) -> f64 {
        self
    }
}

impl FftReal for f32 {
    const EPSILON: f64 = Self::EPSILON as f64;
    const NAN: Self = Self::NAN;

    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounding is what is asked for"
    )]
    fn of(value: f64) -> Self {
        value as Self
    }

    fn wide(self) -> f64 {
        self.into()
    }
}

/// Views complex numbers as pairs of real ones.
pub(super) fn as_complex<T: FftReal>(numbers: &[T]) -> &[Complex<T>] {
    bytemuck::cast_slice(numbers)
}

/// Views complex numbers as pairs of real ones, for writing.
pub(super) fn as_complex_mut<T: FftReal>(numbers: &mut [T]) -> &mut [Complex<T>] {
    bytemuck::cast_slice_mut(numbers)
}
