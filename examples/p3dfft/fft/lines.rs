//! Transforms of single lines, and their workspace.

use std::{fmt, sync::Arc};

use num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftPlanner};

use super::{grid::PencilGrid, real::FftReal, tile::ComplexTile};

/// Transforms along x, y and z. A line is always transformed by itself, so its bits do not depend on the number of ranks.
pub(super) struct LineTransforms<T: FftReal> {
    r2c: Arc<dyn RealToComplex<T>>,
    c2r: Arc<dyn ComplexToReal<T>>,
    y: TransformPair<T>,
    z: TransformPair<T>,
    scratch: Vec<Complex<T>>,
    /// A real line; its transform destroys it.
    real: Vec<T>,
    /// A line of y before and after its transform.
    pub(super) before: Vec<Complex<T>>,
    pub(super) after: Vec<Complex<T>>,
    pub(super) x_tile: ComplexTile<T>,
    pub(super) z_tile: ComplexTile<T>,
}

/// A transform in both directions.
struct TransformPair<T: FftReal> {
    forward: Arc<dyn Fft<T>>,
    backward: Arc<dyn Fft<T>>,
}

/// The direction of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FftDirection {
    Forward,
    Backward,
}

impl<T: FftReal> LineTransforms<T> {
    pub(super) fn new(grid: &PencilGrid) -> Self {
        let [nx, ny, nz] = grid.points;
        let mut real = RealFftPlanner::new();
        let mut complex = FftPlanner::new();
        let (r2c, c2r) = (real.plan_fft_forward(nx), real.plan_fft_inverse(nx));
        let y = TransformPair::new(&mut complex, ny);
        let z = TransformPair::new(&mut complex, nz);
        let wanted = [
            r2c.get_scratch_len(),
            c2r.get_scratch_len(),
            y.scratch_len(),
            z.scratch_len(),
        ];
        let zeros = |len| vec![Complex::default(); len];
        Self {
            r2c,
            c2r,
            y,
            z,
            scratch: zeros(wanted.into_iter().max().unwrap_or(0)),
            real: vec![T::zero(); nx],
            before: zeros(ny),
            after: zeros(ny),
            x_tile: ComplexTile::new(X_ROWS, grid.modes()),
            z_tile: ComplexTile::new(z_rows(nz), nz),
        }
    }

    /// Transforms `line` into a row of the tile.
    pub(super) fn x_forward(&mut self, line: &[T], row: usize) {
        self.real.copy_from_slice(line);
        let modes = line.len() / 2 + 1;
        let to = self.x_tile.row_mut(row, modes);
        self.r2c
            .process_with_scratch(&mut self.real, to, &mut self.scratch)
            .expect("lengths as planned");
    }

    /// Transforms a row of the tile, which it destroys, into `line`.
    pub(super) fn x_backward(&mut self, row: usize, line: &mut [T]) {
        let modes = line.len() / 2 + 1;
        let from = self.x_tile.row_mut(row, modes);
        // The coefficients that are their own conjugates are real, except for rounding.
        from[0].im = T::zero();
        if line.len().is_multiple_of(2) {
            from[modes - 1].im = T::zero();
        }
        self.c2r
            .process_with_scratch(from, line, &mut self.scratch)
            .expect("lengths as planned, and real where it must be");
    }

    /// Transforms a line from `before` to `after`, or in other memory if the line is in one piece there.
    pub(super) fn y(
        &mut self,
        direction: FftDirection,
        from: Option<&[Complex<T>]>,
        to: Option<&mut [Complex<T>]>,
    ) {
        let from = from.unwrap_or(&self.before);
        let to = to.unwrap_or(&mut self.after);
        self.y
            .along(direction)
            .process_immutable_with_scratch(from, to, &mut self.scratch);
    }

    /// Transforms a row of the tile into `line`.
    pub(super) fn z_forward(&mut self, row: usize, line: &mut [Complex<T>]) {
        let from = self.z_tile.row(row, line.len());
        self.z
            .forward
            .process_immutable_with_scratch(from, line, &mut self.scratch);
    }

    /// Transforms `line` into a row of the tile.
    pub(super) fn z_backward(&mut self, line: &[Complex<T>], row: usize) {
        let to = self.z_tile.row_mut(row, line.len());
        self.z
            .backward
            .process_immutable_with_scratch(line, to, &mut self.scratch);
    }
}

impl<T: FftReal> TransformPair<T> {
    fn new(planner: &mut FftPlanner<T>, len: usize) -> Self {
        Self {
            forward: planner.plan_fft_forward(len),
            backward: planner.plan_fft_inverse(len),
        }
    }

    fn along(&self, direction: FftDirection) -> &dyn Fft<T> {
        match direction {
            FftDirection::Forward => &*self.forward,
            FftDirection::Backward => &*self.backward,
        }
    }

    fn scratch_len(&self) -> usize {
        let [forward, backward] =
            [&self.forward, &self.backward].map(|fft| fft.get_immutable_scratch_len());
        forward.max(backward)
    }
}

impl<T: FftReal> fmt::Debug for LineTransforms<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Lines (x {}, y {}, z {})",
            self.r2c.len(),
            self.y.forward.len(),
            self.z.forward.len()
        )
    }
}

/// Lines of z in a tile. Measured with 128³ and 256³ points: fewer lines use less of every page that a block touches, and more
/// do not stay in the second-level cache.
pub(super) fn z_rows(nz: usize) -> usize {
    (Z_CELLS / nz).max(X_ROWS)
}

/// Lines of x in a tile, measured like [`z_rows`]. Moving squares of lines and columns instead was slower.
pub(super) const X_ROWS: usize = 32;
const Z_CELLS: usize = 1 << 15;
