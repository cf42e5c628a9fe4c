//! Fields whose transform is known, and fields of noise.

use std::f64::consts::TAU;

use num_complex::Complex;
use ripstop::fabric::random::SeededRandom;

use super::{grid::PencilGrid, real::FftReal};

/// sin(2πmx/Nx) · sin(2πmy/Ny) · sin(2πmz/Nz), where m depends on the variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SineField {
    m: usize,
}

impl SineField {
    /// Returns variable `var`: m = var + 1, starting again at 1 before it reaches half of an edge, where the sine vanishes.
    /// `None` if an edge has fewer than 3 points, because there is no such m.
    pub(crate) fn of(grid: &PencilGrid, var: usize) -> Option<Self> {
        let least = grid.points.into_iter().min().unwrap_or(0);
        let most = least.saturating_sub(1) / 2;
        var.checked_rem(most).map(|m| Self { m: m + 1 })
    }

    /// Returns this rank's part.
    pub(crate) fn field<T: FftReal>(self, grid: &PencilGrid) -> Vec<T> {
        let wave = |n: usize| -> Vec<f64> {
            (0..n)
                .map(|i| (TAU * ((self.m * i) % n) as f64 / n as f64).sin())
                .collect()
        };
        let [in_x, in_y, in_z] = grid.points.map(wave);
        let mut field = Vec::with_capacity(grid.field_len());
        for z in grid.z() {
            for y in grid.y_in_row() {
                field.extend(in_x.iter().map(|x| T::of(x * in_y[y] * in_z[z])));
            }
        }
        field
    }

    /// Returns the coefficient at kx, ky and kz.
    pub(crate) fn coefficient(self, grid: &PencilGrid, [kx, ky, kz]: [usize; 3]) -> Complex<f64> {
        let [nx, ny, nz] = grid.points;
        let high = (nx * ny * nz) as f64 / 8.0;
        let sign = |k: usize, n: usize| match k {
            k if k == self.m => 1.0,
            k if k == n - self.m => -1.0,
            _ => 0.0,
        };
        let in_x = if kx == self.m { 1.0 } else { 0.0 };
        Complex::new(0.0, high * in_x * sign(ky, ny) * sign(kz, nz))
    }
}

/// Returns noise between −1 and 1, the same for any distribution over ranks.
pub(crate) fn noise<T: FftReal>(grid: &PencilGrid, var: usize) -> Vec<T> {
    let [nx, ny, nz] = grid.points;
    let mut field = Vec::with_capacity(grid.field_len());
    for z in grid.z() {
        for y in grid.y_in_row() {
            let mut random = SeededRandom::new(seed((var * nz + z) * ny + y));
            field.extend((0..nx).map(|_| T::of(unit(&mut random))));
        }
    }
    field
}

/// Returns a number from −1 to 1, with 53 bits.
fn unit(random: &mut SeededRandom) -> f64 {
    (random.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

/// Mixes a seed: each line has a stream of its own, and the seeds of lines are consecutive.
fn seed(line: usize) -> u64 {
    SeededRandom::new(u64::try_from(line).unwrap_or(u64::MAX)).bits()
}
