//! The two precisions.

use std::{
    fmt::Debug,
    ops::{Add, Mul, Sub},
};

use ripstop::buffer::Wire;

/// `f32` or `f64`.
pub(crate) trait WaveReal:
    Wire + Default + PartialOrd + Debug + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    const ONE: Self;
    const NAN: Self;
    /// The weights of a difference of fourth order: of the two nearest values, and of the two next ones.
    const NEAR: Self;
    const FAR: Self;

    /// Smaller values count as zero, in m/s and Pa, so that no computed value is subnormal.
    const VELOCITY_LEAST: Self;
    const STRESS_LEAST: Self;

    /// Returns the nearest value.
    fn of(value: f64) -> Self;

    fn wide(self) -> f64;

    /// Returns the bits, for exact comparisons: NaN equals itself, and the zeros differ.
    fn same_bits(self, other: Self) -> bool;
}

impl WaveReal for f32 {
    const ONE: Self = 1.0;
    const NAN: Self = Self::NAN;
    const NEAR: Self = 9.0 / 8.0;
    const FAR: Self = -1.0 / 24.0;
    const VELOCITY_LEAST: Self = 1e-33;
    const STRESS_LEAST: Self = 1e-25;

    #[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    fn of(value: f64) -> Self {
        value as Self
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn same_bits(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

impl WaveReal for f64 {
    const ONE: Self = 1.0;
    const NAN: Self = Self::NAN;
    const NEAR: Self = 9.0 / 8.0;
    const FAR: Self = -1.0 / 24.0;
    const VELOCITY_LEAST: Self = 1e-33;
    const STRESS_LEAST: Self = 1e-25;

    fn of(value: f64) -> Self {
        value
    }

    fn wide(self) -> f64 {
        self
    }

    fn same_bits(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}
