//! A few rows in the first-level cache, between lines that are transformed and blocks whose elements lie across them.

use num_complex::Complex;

use super::real::FftReal;

/// Rows of complex numbers.
#[derive(Debug)]
pub(super) struct ComplexTile<T> {
    cells: Vec<Complex<T>>,
    /// Distance from one row to the next, in cells.
    pitch: usize,
}

/// Columns of a tile in a block elsewhere: column `c` of the tile begins at `c · stride` there, and is contiguous.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileColumns {
    /// The first column in the tile.
    pub(super) start: usize,
    pub(super) count: usize,
    pub(super) stride: usize,
    /// Number of rows in use.
    pub(super) rows: usize,
}

impl<T: FftReal> ComplexTile<T> {
    /// Makes a tile of `rows` rows of up to `len`.
    pub(super) fn new(rows: usize, len: usize) -> Self {
        // Rows lie one cache line further apart than they need to, so that rows whose length is a power of two do not compete
        // for the same cache sets.
        let pitch = len + 4;
        let cells = vec![Complex::default(); pitch * rows];
        Self { cells, pitch }
    }

    pub(super) fn row(&self, row: usize, len: usize) -> &[Complex<T>] {
        &self.cells[row * self.pitch..][..len]
    }

    pub(super) fn row_mut(&mut self, row: usize, len: usize) -> &mut [Complex<T>] {
        &mut self.cells[row * self.pitch..][..len]
    }

    /// Takes columns from a block.
    pub(super) fn fill(&mut self, columns: TileColumns, from: &[Complex<T>]) {
        let TileColumns {
            start,
            count,
            stride,
            rows,
        } = columns;
        for column in 0..count {
            let from = &from[column * stride..][..rows];
            let to = self.cells[start + column..].iter_mut().step_by(self.pitch);
            from.iter().zip(to).for_each(|(from, to)| *to = *from);
        }
    }

    /// Puts columns into a block.
    pub(super) fn pour(&self, columns: TileColumns, to: &mut [Complex<T>]) {
        let TileColumns {
            start,
            count,
            stride,
            rows,
        } = columns;
        for column in 0..count {
            let to = &mut to[column * stride..][..rows];
            let from = self.cells[start + column..].iter().step_by(self.pitch);
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }
}
