//! The cells of a rank at one moment.

use super::domain::{BoxSide, HeatDim};

/// Own cells with one layer of ghosts around them, in planes of rows.
///
/// The planes that z neighbors exchange are separate vectors: an operation owns them while the planes between are computed, and
/// they travel without being packed.
#[derive(Debug)]
pub(super) struct HeatField {
    cells: [usize; 3],
    /// Cells of a plane.
    plane: usize,
    /// The ghost planes, below the first and above the last plane.
    pub(super) ghosts: [Vec<f64>; 2],
    /// The first and the last plane of own cells.
    pub(super) faces: [Vec<f64>; 2],
    /// The planes between the first and the last.
    inner: Vec<f64>,
}

impl HeatField {
    /// Makes a field of zeros.
    pub(super) fn new(cells: [usize; 3]) -> Self {
        let plane = (cells[HeatDim::Y] + 2) * (cells[HeatDim::X] + 2);
        let planes = |count: usize| vec![0.0; count * plane];
        Self {
            cells,
            plane,
            ghosts: [planes(1), planes(1)],
            faces: [planes(1), planes(1)],
            inner: planes(cells[HeatDim::Z] - 2),
        }
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
        let last = self.cells[HeatDim::Z];
        match z {
            0 => &self.ghosts[0],
            1 => &self.faces[0],
            _ if z < last => &self.inner[(z - 2) * self.plane..][..self.plane],
            _ if z == last => &self.faces[1],
            _ => &self.ghosts[1],
        }
    }

    /// Like [`plane`](Self::plane), for writing.
    pub(super) fn plane_mut(&mut self, z: usize) -> &mut [f64] {
        let last = self.cells[HeatDim::Z];
        match z {
            0 => &mut self.ghosts[0],
            1 => &mut self.faces[0],
            _ if z < last => &mut self.inner[(z - 2) * self.plane..][..self.plane],
            _ if z == last => &mut self.faces[1],
            _ => &mut self.ghosts[1],
        }
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

    /// Copies the own cells at a y or x side to `face`. A z side travels without packing.
    pub(super) fn pack(&self, side: BoxSide, face: &mut [f64]) {
        let (at, width, length) = (self.layer(side, 0), self.width(), self.face_row(side));
        if side.dim == HeatDim::Z {
            return;
        }
        for (z, line) in (1..).zip(face.chunks_exact_mut(length)) {
            let plane = self.plane(z);
            match side.dim {
                HeatDim::Y => line.copy_from_slice(&plane[at * width + 1..][..length]),
                _ => line
                    .iter_mut()
                    .zip(plane[width + at..].iter().step_by(width))
                    .for_each(|(to, from)| *to = *from),
            }
        }
    }

    /// Copies `face` to the ghosts at a y or x side; for z they are received in place.
    pub(super) fn unpack(&mut self, side: BoxSide, face: &[f64]) {
        let (at, width, length) = (self.layer(side, 1), self.width(), self.face_row(side));
        if side.dim == HeatDim::Z {
            return;
        }
        for (z, line) in (1..).zip(face.chunks_exact(length)) {
            let plane = self.plane_mut(z);
            match side.dim {
                HeatDim::Y => plane[at * width + 1..][..length].copy_from_slice(line),
                _ => line
                    .iter()
                    .zip(plane[width + at..].iter_mut().step_by(width))
                    .for_each(|(from, to)| *to = *from),
            }
        }
    }

    /// Returns the index in its dimension of the own cells at a side, or of the cells `out` further.
    pub(super) fn layer(&self, side: BoxSide, out: usize) -> usize {
        if side.high {
            self.cells[side.dim] + out
        } else {
            1 - out
        }
    }

    /// Returns how many elements of a packed face come from one plane.
    pub(super) fn face_row(&self, side: BoxSide) -> usize {
        face_len(self.cells, side) / self.cells[HeatDim::Z]
    }
}

/// Returns how many elements are packed for a side; none for z.
pub(super) fn face_len([planes, rows, columns]: [usize; 3], side: BoxSide) -> usize {
    match side.dim {
        HeatDim::Y => planes * columns,
        HeatDim::X => planes * rows,
        _ => 0,
    }
}
