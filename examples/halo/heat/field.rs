//! The cells of a rank at one moment.

use ripstop::buffer::Layout;

use super::domain::{BoxSide, HeatDim};

/// Own cells with one layer of ghosts around them, in planes of rows.
#[derive(Debug)]
pub(super) struct HeatField {
    cells: [usize; 3],
    /// All cells, with the ghosts.
    pub(super) values: Vec<f64>,
}

impl HeatField {
    /// Makes a field of zeros.
    pub(super) fn new(cells: [usize; 3]) -> Self {
        let len = cells.map(|cells| cells + 2).iter().product();
        let values = vec![0.0; len];
        Self { cells, values }
    }

    /// Returns the own cells in each dimension.
    pub(super) fn cells(&self) -> [usize; 3] {
        self.cells
    }

    /// Returns the distance between rows, in cells.
    pub(super) fn width(&self) -> usize {
        self.cells[HeatDim::X] + 2
    }

    /// Returns plane `z`; own cells are in 1 to the number of planes.
    pub(super) fn plane(&self, z: usize) -> &[f64] {
        let len = self.plane_len();
        &self.values[z * len..][..len]
    }

    /// Like [`plane`](Self::plane), for writing.
    pub(super) fn plane_mut(&mut self, z: usize) -> &mut [f64] {
        let len = self.plane_len();
        &mut self.values[z * len..][..len]
    }

    fn plane_len(&self) -> usize {
        (self.cells[HeatDim::Y] + 2) * self.width()
    }

    /// Returns the own cells of plane `z`, row by row.
    pub(super) fn rows(&self, z: usize) -> impl Iterator<Item = &[f64]> {
        let width = self.width();
        self.plane(z)
            .chunks_exact(width)
            .skip(1)
            .take(self.cells[HeatDim::Y])
            .map(move |row| &row[1..width - 1])
    }

    /// Like [`rows`](Self::rows), for writing.
    pub(super) fn rows_mut(&mut self, z: usize) -> impl Iterator<Item = &mut [f64]> {
        let (width, rows) = (self.width(), self.cells[HeatDim::Y]);
        self.plane_mut(z)
            .chunks_exact_mut(width)
            .skip(1)
            .take(rows)
            .map(move |row| &mut row[1..width - 1])
    }

    /// Fills the ghosts at a side with NaN.
    pub(super) fn poison(&mut self, side: BoxSide) {
        let mut ghosts = self.cells.map(|cells| 1..cells + 1);
        let at = if side.high {
            self.cells[side.dim] + 1
        } else {
            0
        };
        ghosts[side.dim] = at..at + 1;
        let layout = Layout::subarray(&self.cells.map(|cells| cells + 2), &ghosts);
        layout.unpack(&vec![f64::NAN; layout.len()], &mut self.values);
    }

    /// Returns the index in its dimension of the own cells at a side.
    pub(super) fn layer(&self, side: BoxSide) -> usize {
        if side.high { self.cells[side.dim] } else { 1 }
    }
}
