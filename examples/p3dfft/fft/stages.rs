//! The stages between the transposes: lines are gathered from blocks, transformed, and laid into the blocks that leave.
//!
//! Blocks are `[z][x][y]`, with y fastest: in the row's transpose with the y of an X pencil, in the column's with the y of a Z
//! pencil. Where lines are gathered from them or written across them, whole cache lines are used while they are in the cache.

use std::ops::{Deref, Range};

use num_complex::Complex;

use super::{
    grid::PencilGrid,
    lines::{FftDirection, LineTransforms, X_ROWS},
    real::FftReal,
    slot::{PencilSlot, TransposeEnd},
    tile::TileColumns,
};

/// A plane of z in a slot, and its position in the field.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanePosition {
    /// Index in this rank's part of the field.
    pub(super) z: usize,
    /// Index in the row's slot.
    pub(super) in_row: usize,
    /// Index in the column's slot.
    pub(super) in_column: usize,
}

impl<T: FftReal> LineTransforms<T> {
    /// X: a plane of the field, along x, to the near end of the row.
    pub(super) fn forward_x(
        &mut self,
        grid: &PencilGrid,
        plane: PlanePosition,
        field: &[T],
        row: &mut PencilSlot<T>,
    ) {
        let (nx, height) = (grid.points[0], grid.y_in_row().len());
        let field = &field[plane.z * height * nx..][..height * nx];
        let mut blocks = row.blocks_mut(TransposeEnd::XSide);
        for y in (0..height).step_by(X_ROWS) {
            let rows = X_ROWS.min(height - y);
            for (row, line) in field[y * nx..].chunks_exact(nx).take(rows).enumerate() {
                self.x_forward(line, row);
            }
            for (i, block) in blocks.iter_mut().enumerate() {
                let x = grid.x_of(i);
                let columns = TileColumns {
                    start: x.start,
                    count: x.len(),
                    stride: height,
                    rows,
                };
                let to = &mut block[plane.in_row * x.len() * height..];
                self.x_tile.pour(columns, &mut to[y..]);
            }
        }
    }

    /// Reverses [`forward_x`](Self::forward_x).
    pub(super) fn backward_x(
        &mut self,
        grid: &PencilGrid,
        plane: PlanePosition,
        row: &PencilSlot<T>,
        field: &mut [T],
    ) {
        let (nx, height) = (grid.points[0], grid.y_in_row().len());
        let field = &mut field[plane.z * height * nx..][..height * nx];
        let blocks = row.blocks(TransposeEnd::XSide);
        for y in (0..height).step_by(X_ROWS) {
            let rows = X_ROWS.min(height - y);
            for (i, block) in blocks.iter().enumerate() {
                let x = grid.x_of(i);
                let columns = TileColumns {
                    start: x.start,
                    count: x.len(),
                    stride: height,
                    rows,
                };
                let from = &block[plane.in_row * x.len() * height..];
                self.x_tile.fill(columns, &from[y..]);
            }
            for (row, line) in field[y * nx..].chunks_exact_mut(nx).take(rows).enumerate() {
                self.x_backward(row, line);
            }
        }
    }

    /// Y: a plane from the far end of the row, along y, to the near end of the column.
    pub(super) fn forward_y(
        &mut self,
        grid: &PencilGrid,
        plane: PlanePosition,
        row: &PencilSlot<T>,
        column: &mut PencilSlot<T>,
    ) {
        let from = CutLines::new(
            grid,
            plane.in_row,
            |i| grid.y_of_row(i),
            row.blocks(TransposeEnd::ZSide),
        );
        let to = CutLines::new(
            grid,
            plane.in_column,
            |j| grid.y_of_column(j),
            column.blocks_mut(TransposeEnd::XSide),
        );
        self.along_y(FftDirection::Forward, from, to);
    }

    /// Reverses [`forward_y`](Self::forward_y).
    pub(super) fn backward_y(
        &mut self,
        grid: &PencilGrid,
        plane: PlanePosition,
        column: &PencilSlot<T>,
        row: &mut PencilSlot<T>,
    ) {
        let from = CutLines::new(
            grid,
            plane.in_column,
            |j| grid.y_of_column(j),
            column.blocks(TransposeEnd::XSide),
        );
        let to = CutLines::new(
            grid,
            plane.in_row,
            |i| grid.y_of_row(i),
            row.blocks_mut(TransposeEnd::ZSide),
        );
        self.along_y(FftDirection::Backward, from, to);
    }

    fn along_y(
        &mut self,
        direction: FftDirection,
        from: CutLines<&[Complex<T>]>,
        mut to: CutLines<&mut [Complex<T>]>,
    ) {
        for x in 0..from.width {
            let whole = from.whole(x);
            if whole.is_none() {
                from.gather(x, &mut self.before);
            }
            let in_place = to.whole_mut(x);
            let scatter = in_place.is_none();
            self.y(direction, whole, in_place);
            if scatter {
                to.scatter(x, &self.after);
            }
        }
    }

    /// Z: these lines from the far ends of a column's slots, along z, to the spectrum. Both are in the order of `(x, y)`, so
    /// lines of several x can be gathered at a time.
    pub(super) fn forward_z<'a>(
        &mut self,
        grid: &PencilGrid,
        rows: Range<usize>,
        column: impl Iterator<Item = &'a PencilSlot<T>>,
        spectrum: &mut [Complex<T>],
    ) {
        for (chunk, slot) in column.enumerate() {
            for (j, block) in slot.blocks(TransposeEnd::ZSide).into_iter().enumerate() {
                let columns = columns_of_z(grid, j, chunk, rows.len());
                self.z_tile.fill(columns, &block[rows.start..]);
            }
        }
        let lines = spectrum.chunks_exact_mut(grid.points[2]).skip(rows.start);
        for (row, line) in lines.take(rows.len()).enumerate() {
            self.z_forward(row, line);
        }
    }

    /// Reverses [`forward_z`](Self::forward_z).
    pub(super) fn backward_z<'a>(
        &mut self,
        grid: &PencilGrid,
        rows: Range<usize>,
        spectrum: &[Complex<T>],
        column: impl Iterator<Item = &'a mut PencilSlot<T>>,
    ) {
        let lines = spectrum.chunks_exact(grid.points[2]).skip(rows.start);
        for (row, line) in lines.take(rows.len()).enumerate() {
            self.z_backward(line, row);
        }
        for (chunk, slot) in column.enumerate() {
            for (j, block) in slot.blocks_mut(TransposeEnd::ZSide).into_iter().enumerate() {
                let columns = columns_of_z(grid, j, chunk, rows.len());
                self.z_tile.pour(columns, &mut block[rows.start..]);
            }
        }
    }
}

/// Returns the z of a chunk of the ranks at `j`, as columns of a tile of z lines.
fn columns_of_z(grid: &PencilGrid, j: usize, chunk: usize, rows: usize) -> TileColumns {
    let z = grid.z_of_chunk(j, chunk);
    TileColumns {
        start: z.start,
        count: z.len(),
        stride: grid.lines_of_z(),
        rows,
    }
}

/// Lines of y in one plane, each cut into one piece for each rank.
struct CutLines<B> {
    blocks: Vec<B>,
    /// Length of the pieces of each block.
    lens: Vec<usize>,
    plane: usize,
    /// Number of lines.
    width: usize,
}

impl<T: FftReal, B: Deref<Target = [Complex<T>]>> CutLines<B> {
    fn new(
        grid: &PencilGrid,
        plane: usize,
        part: impl Fn(usize) -> Range<usize>,
        blocks: Vec<B>,
    ) -> Self {
        let lens = (0..blocks.len()).map(|rank| part(rank).len()).collect();
        Self {
            blocks,
            lens,
            plane,
            width: grid.x().len(),
        }
    }

    /// Returns the start of line `x` in a block whose pieces are `len` long.
    fn at(&self, x: usize, len: usize) -> Range<usize> {
        let start = (self.plane * self.width + x) * len;
        start..start + len
    }

    /// Returns line `x`, if it is in one piece.
    fn whole(&self, x: usize) -> Option<&[Complex<T>]> {
        match (&self.blocks[..], &self.lens[..]) {
            ([block], [len]) => Some(&block[self.at(x, *len)]),
            _ => None,
        }
    }

    /// Concatenates the pieces of line `x`.
    fn gather(&self, x: usize, line: &mut [Complex<T>]) {
        let mut rest = line;
        for (block, &len) in self.blocks.iter().zip(&self.lens) {
            let (piece, after) = rest.split_at_mut(len);
            piece.copy_from_slice(&block[self.at(x, len)]);
            rest = after;
        }
    }
}

impl<T: FftReal> CutLines<&mut [Complex<T>]> {
    /// Returns line `x` for writing, if it is in one piece.
    fn whole_mut(&mut self, x: usize) -> Option<&mut [Complex<T>]> {
        let at = self.at(x, self.lens[0]);
        match &mut self.blocks[..] {
            [block] => Some(&mut block[at]),
            _ => None,
        }
    }

    /// Cuts a line into the pieces of line `x`.
    fn scatter(&mut self, x: usize, line: &[Complex<T>]) {
        let mut rest = line;
        for rank in 0..self.blocks.len() {
            let (piece, after) = rest.split_at(self.lens[rank]);
            let at = self.at(x, piece.len());
            self.blocks[rank][at].copy_from_slice(piece);
            rest = after;
        }
    }
}
