//! One quantity in all cells of a rank.

use super::{
    domain::{AwpDim, AwpDomain, CellBox, GHOSTS},
    real::WaveReal,
};

/// Own cells with [`GHOSTS`] layers around them, z fastest.
#[derive(Clone, Debug)]
pub(crate) struct AwpField<T> {
    strides: [usize; 3],
    cells: Vec<T>,
}

impl<T: WaveReal> AwpField<T> {
    /// Makes a field of zeros.
    pub(super) fn new(domain: &AwpDomain) -> Self {
        let [x, y, z] = domain.cells.map(|cells| cells + 2 * GHOSTS);
        Self {
            strides: [y * z, z, 1],
            cells: vec![T::default(); x * y * z],
        }
    }

    /// Returns the index of a cell, ghosts counted.
    pub(super) fn at(&self, cell: [usize; 3]) -> usize {
        (0..3).map(|dim| cell[dim] * self.strides[dim]).sum()
    }

    /// Returns the distance between adjacent cells along `dim`.
    pub(super) fn stride(&self, dim: usize) -> usize {
        self.strides[dim]
    }

    pub(super) fn all(&self) -> &[T] {
        &self.cells
    }

    pub(crate) fn get(&self, cell: [usize; 3]) -> T {
        self.cells[self.at(cell)]
    }

    pub(crate) fn set(&mut self, cell: [usize; 3], value: T) {
        let at = self.at(cell);
        self.cells[at] = value;
    }

    /// Returns the cells from `start` on along z.
    pub(super) fn row(&self, start: [usize; 3], len: usize) -> &[T] {
        &self.cells[self.at(start)..][..len]
    }

    /// Like [`row`](Self::row), for writing.
    pub(super) fn row_mut(&mut self, start: [usize; 3], len: usize) -> &mut [T] {
        let at = self.at(start);
        &mut self.cells[at..][..len]
    }

    /// Copies a region to `packed`, which must have its length.
    pub(super) fn pack(&self, region: CellBox, packed: &mut [T]) {
        let len = region.edge(AwpDim::Z);
        for (start, line) in region.rows().zip(packed.chunks_exact_mut(len)) {
            line.copy_from_slice(self.row(start, len));
        }
    }

    /// Returns a copy of a region.
    pub(crate) fn block(&self, region: CellBox) -> Vec<T> {
        let mut block = vec![T::default(); region.len()];
        self.pack(region, &mut block);
        block
    }

    /// Copies `packed` to a region.
    pub(super) fn unpack(&mut self, region: CellBox, packed: &[T]) {
        let len = region.edge(AwpDim::Z);
        for (start, line) in region.rows().zip(packed.chunks_exact(len)) {
            self.row_mut(start, len).copy_from_slice(line);
        }
    }

    pub(super) fn fill(&mut self, region: CellBox, value: T) {
        let len = region.edge(AwpDim::Z);
        for start in region.rows() {
            self.row_mut(start, len).fill(value);
        }
    }
}
