//! The stages of a piece: computed plane by plane, polling the transposes in flight now and then, and sent on.

use std::ops::Range;

use num_complex::Complex;
use ripstop::{Comm, Result};

use super::{
    PencilFft,
    clock::FftPhase,
    exchange::TransposeMode,
    grid::PencilGrid,
    lines::z_rows,
    real::FftReal,
    slot::{PencilSlot, TransposeEnd},
    stages::PlanePosition,
};

/// A chunk of a variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct FftPiece {
    pub(super) number: usize,
    pub(super) var: usize,
    pub(super) chunk: usize,
}

/// The transposes of a row or a column: one slot for each chunk of one variable, or of two where one is computed while
/// another travels.
#[derive(Debug)]
pub(super) struct PencilTranspose<T: FftReal> {
    comm: Comm,
    slots: Vec<PencilSlot<T>>,
}

/// The ranks that take part in a transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GridAxis {
    Row,
    Column,
}

impl<T: FftReal> PencilFft<T> {
    pub(super) fn forward_x(&mut self, piece: FftPiece, field: &[T]) {
        if self.is_fused {
            return; // `forward_y` has done this, while the plane is in the cache
        }
        let planes = self.planes(piece);
        for (done, &plane) in planes.iter().enumerate() {
            let row = self.row.slot_mut(piece);
            self.lines.forward_x(&self.setup.grid, plane, field, row);
            self.watch.count(FftPhase::X);
            self.test(done, planes.len());
        }
        self.start(GridAxis::Row, piece, TransposeEnd::XSide);
    }

    pub(super) fn forward_y(&mut self, piece: FftPiece, field: &[T]) {
        let planes = self.planes(piece);
        for (done, &plane) in planes.iter().enumerate() {
            let (row, column) = (self.row.slot_mut(piece), self.column.slot_mut(piece));
            let grid = &self.setup.grid;
            if self.is_fused {
                self.lines.forward_x(grid, plane, field, row);
                self.watch.count(FftPhase::X);
            }
            self.lines.forward_y(grid, plane, row, column);
            self.watch.count(FftPhase::Y);
            self.test(done, planes.len());
        }
        self.start(GridAxis::Column, piece, TransposeEnd::XSide);
    }

    /// Transforms all chunks of the piece's variable.
    pub(super) fn forward_z(&mut self, piece: FftPiece, spectrum: &mut [Complex<T>]) {
        let tiles = self.tiles_of_z();
        for (done, rows) in tiles.iter().enumerate() {
            let column = self.column.slots_of(piece, self.setup.grid.chunks);
            let grid = &self.setup.grid;
            self.lines.forward_z(grid, rows.clone(), column, spectrum);
            self.watch.count(FftPhase::Z);
            self.test(done, tiles.len());
        }
    }

    /// Transforms all chunks of the piece's variable; they leave in their order.
    pub(super) fn backward_z(&mut self, piece: FftPiece, spectrum: &[Complex<T>]) {
        let chunks = self.setup.grid.chunks;
        let tiles = self.tiles_of_z();
        for (done, rows) in tiles.iter().enumerate() {
            let column = self.column.slots_of_mut(piece, chunks);
            let grid = &self.setup.grid;
            self.lines.backward_z(grid, rows.clone(), spectrum, column);
            self.watch.count(FftPhase::Z);
            self.test(done, tiles.len());
        }
        for number in piece.number..piece.number + chunks {
            self.start(
                GridAxis::Column,
                FftPiece { number, ..piece },
                TransposeEnd::ZSide,
            );
        }
    }

    pub(super) fn backward_y(&mut self, piece: FftPiece, field: &mut [T]) {
        let planes = self.planes(piece);
        for (done, &plane) in planes.iter().enumerate() {
            let (row, column) = (self.row.slot_mut(piece), self.column.slot_mut(piece));
            let grid = &self.setup.grid;
            self.lines.backward_y(grid, plane, column, row);
            self.watch.count(FftPhase::Y);
            if self.is_fused {
                self.lines.backward_x(grid, plane, row, field);
                self.watch.count(FftPhase::X);
            }
            self.test(done, planes.len());
        }
        self.start(GridAxis::Row, piece, TransposeEnd::ZSide);
    }

    pub(super) fn backward_x(&mut self, piece: FftPiece, field: &mut [T]) {
        if self.is_fused {
            return;
        }
        let planes = self.planes(piece);
        for (done, &plane) in planes.iter().enumerate() {
            let row = self.row.slot_mut(piece);
            self.lines.backward_x(&self.setup.grid, plane, row, field);
            self.watch.count(FftPhase::X);
            self.test(done, planes.len());
        }
    }

    /// Waits until a piece has changed its layout.
    pub(super) async fn finish_transpose(&mut self, axis: GridAxis, piece: FftPiece) -> Result<()> {
        self.transpose(axis).slot_mut(piece).finish().await?;
        self.watch.count(FftPhase::Wait);
        Ok(())
    }

    fn start(&mut self, axis: GridAxis, piece: FftPiece, from: TransposeEnd) {
        let (mode, poison) = (self.setup.mode, self.setup.poison);
        let transpose = self.transpose(axis);
        let comm = transpose.comm.clone();
        transpose.slot_mut(piece).start(&comm, mode, from, poison);
        self.watch.count(FftPhase::Start);
    }

    /// Polls after one of `units` of a stage, [`FftSetup::tests`](super::FftSetup::tests) times in the whole stage.
    fn test(&mut self, done: usize, units: usize) {
        let tests = match self.setup.mode {
            TransposeMode::Host => self.setup.tests,
            TransposeMode::Blocking | TransposeMode::Offload => return,
        };
        let due = (done + 1) * tests / units - done * tests / units;
        for _ in 0..due {
            self.row
                .slots
                .iter_mut()
                .chain(&mut self.column.slots)
                .for_each(PencilSlot::test);
        }
        self.watch.count(FftPhase::Start);
    }

    fn transpose(&mut self, axis: GridAxis) -> &mut PencilTranspose<T> {
        match axis {
            GridAxis::Row => &mut self.row,
            GridAxis::Column => &mut self.column,
        }
    }

    /// Returns the lines of z in groups of as many as a tile holds.
    fn tiles_of_z(&self) -> Vec<Range<usize>> {
        let grid = &self.setup.grid;
        let (lines, rows) = (grid.lines_of_z(), z_rows(grid.points[2]));
        let tile = |start: usize| start..lines.min(start + rows);
        (0..lines).step_by(rows).map(tile).collect()
    }

    fn planes(&self, piece: FftPiece) -> Vec<PlanePosition> {
        let grid = &self.setup.grid;
        let z = grid.z_of_chunk(grid.at[1], piece.chunk);
        let start = z.start - grid.z().start;
        let plane = |number| PlanePosition {
            z: start + number,
            in_row: if self.is_fused { 0 } else { number },
            in_column: number,
        };
        (0..z.len()).map(plane).collect()
    }
}

impl<T: FftReal> PencilTranspose<T> {
    /// Makes the transposes, with slots for `vars` variables.
    pub(super) fn of_row(comm: Comm, grid: &PencilGrid, vars: usize) -> Result<Self> {
        if grid.ranks[0] == 1 {
            // Nothing travels, so one plane is enough.
            let plane = [grid.modes() * grid.points[1]];
            let slots = vec![PencilSlot::new(&comm, &plane, &plane)?];
            return Ok(Self { comm, slots });
        }
        let blocks = |chunk| {
            let planes = grid.z_of_chunk(grid.at[1], chunk).len();
            let x_side = |i| planes * grid.x_of(i).len() * grid.y_in_row().len();
            let z_side = |i| planes * grid.x().len() * grid.y_of_row(i).len();
            let ranks = 0..grid.ranks[0];
            (
                ranks.clone().map(x_side).collect(),
                ranks.map(z_side).collect(),
            )
        };
        Self::new(comm, grid.chunks, vars, blocks)
    }

    /// Makes the transposes, with slots for `vars` variables.
    pub(super) fn of_column(comm: Comm, grid: &PencilGrid, vars: usize) -> Result<Self> {
        let width = grid.x().len();
        let blocks = |chunk| {
            let planes = |j| grid.z_of_chunk(j, chunk).len();
            let x_side = |j| planes(grid.at[1]) * width * grid.y_of_column(j).len();
            let z_side = |j| planes(j) * width * grid.y_in_column().len();
            let ranks = 0..grid.ranks[1];
            (
                ranks.clone().map(x_side).collect(),
                ranks.map(z_side).collect(),
            )
        };
        Self::new(comm, grid.chunks, vars, blocks)
    }

    fn new(
        comm: Comm,
        chunks: usize,
        vars: usize,
        blocks: impl Fn(usize) -> (Vec<usize>, Vec<usize>),
    ) -> Result<Self> {
        let mut slots = Vec::with_capacity(vars * chunks);
        for number in 0..vars * chunks {
            let (x_side, z_side) = blocks(number % chunks);
            slots.push(PencilSlot::new(&comm, &x_side, &z_side)?);
        }
        Ok(Self { comm, slots })
    }

    fn slot_mut(&mut self, piece: FftPiece) -> &mut PencilSlot<T> {
        let index = piece.number % self.slots.len();
        &mut self.slots[index]
    }

    /// Returns the slots of a piece's variable, chunk by chunk.
    fn slots_of(&self, piece: FftPiece, chunks: usize) -> impl Iterator<Item = &PencilSlot<T>> {
        let start = piece.var * chunks % self.slots.len();
        self.slots[start..start + chunks].iter()
    }

    fn slots_of_mut(
        &mut self,
        piece: FftPiece,
        chunks: usize,
    ) -> impl Iterator<Item = &mut PencilSlot<T>> {
        let start = piece.var * chunks % self.slots.len();
        self.slots[start..start + chunks].iter_mut()
    }
}
