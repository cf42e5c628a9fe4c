//! The cells of a rank, and the ranks beside it.

use std::ops::Range;

/// Dimensions by name, as indices of a triple. Cells that differ only in z are adjacent in memory.
#[derive(Debug)]
pub(crate) struct AwpDim;

impl AwpDim {
    pub(crate) const X: usize = 0;
    pub(crate) const Y: usize = 1;
    pub(crate) const Z: usize = 2;
}

/// Layers of ghosts at every side of a box.
pub(crate) const GHOSTS: usize = 2;

/// A rank's box in the whole box. It has at least [`GHOSTS`] cells in every dimension, so that a neighbor needs only this
/// rank's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AwpDomain {
    /// Cells of the whole box.
    pub(crate) global: [usize; 3],
    /// Ranks in each dimension.
    grid: [usize; 3],
    /// True for dimensions that wrap around.
    pub(crate) periodic: [bool; 3],
    /// This rank's place in the grid.
    place: [usize; 3],
    /// Cells of the whole box before this rank's first.
    pub(crate) before: [usize; 3],
    /// This rank's cells.
    pub(crate) cells: [usize; 3],
}

impl AwpDomain {
    /// Returns the part of `rank` in a grid of ranks. The last dimension varies fastest. Remaining cells go to the first ranks,
    /// one each.
    ///
    /// # Errors
    /// A sentence that names the dimension with too few cells.
    pub(crate) fn part(
        global: [usize; 3],
        grid: [usize; 3],
        periodic: [bool; 3],
        rank: usize,
    ) -> Result<Self, String> {
        for (name, (cells, ranks)) in ["x", "y", "z"]
            .into_iter()
            .zip(global.into_iter().zip(grid))
        {
            if cells / ranks < GHOSTS {
                return Err(format!(
                    "{cells} cells in {name} are too few for {ranks} ranks in {name}, each of which needs {GHOSTS}: take at \
                     least {}",
                    GHOSTS * ranks
                ));
            }
        }
        let whole = Self {
            global,
            grid,
            periodic,
            place: [0; 3],
            before: [0; 3],
            cells: global,
        };
        Ok(whole.of(rank))
    }

    /// Returns the part of another rank.
    pub(crate) fn of(self, mut rank: usize) -> Self {
        let mut part = self;
        for dim in [AwpDim::Z, AwpDim::Y, AwpDim::X] {
            let (cells, ranks) = (self.global[dim], self.grid[dim]);
            let at = rank % ranks;
            rank /= ranks;
            part.place[dim] = at;
            part.before[dim] = at * (cells / ranks) + at.min(cells % ranks);
            part.cells[dim] = cells / ranks + usize::from(at < cells % ranks);
        }
        part
    }

    /// Returns the whole box, on one rank.
    pub(crate) fn whole(self) -> Self {
        Self {
            grid: [1; 3],
            ..self
        }
        .of(0)
    }

    /// Returns the rank beside this one in `dim`, on the low or the high side. In a dimension with one rank that wraps around,
    /// this is the rank itself.
    pub(super) fn neighbor(&self, dim: usize, high: bool) -> Option<usize> {
        let (at, ranks) = (self.place[dim], self.grid[dim]);
        let beside = match (high, self.periodic[dim]) {
            (true, true) => (at + 1) % ranks,
            (false, true) => (at + ranks - 1) % ranks,
            (true, false) => (at + 1 < ranks).then_some(at + 1)?,
            (false, false) => at.checked_sub(1)?,
        };
        let mut place = self.place;
        place[dim] = beside;
        Some((place[0] * self.grid[1] + place[1]) * self.grid[2] + place[2])
    }

    /// Returns true if nothing is beyond this side of the box, on any rank.
    pub(super) fn is_open_end(&self, dim: usize, high: bool) -> bool {
        self.neighbor(dim, high).is_none()
    }

    /// Returns the region of the own cells.
    pub(crate) fn own(&self) -> CellBox {
        CellBox {
            start: [GHOSTS; 3],
            end: self.cells.map(|cells| cells + GHOSTS),
        }
    }

    /// Returns the ghosts at the sides that have a neighbor, all layers and with their corners.
    pub(super) fn ghosts(&self) -> impl Iterator<Item = CellBox> {
        let all = CellBox {
            start: [0; 3],
            end: self.cells.map(|cells| cells + 2 * GHOSTS),
        };
        let sides = (0..3).flat_map(|dim| [(dim, false), (dim, true)]);
        let inner = sides.filter(|&(dim, high)| !self.is_open_end(dim, high));
        inner.map(move |(dim, high)| {
            let start = if high { self.cells[dim] + GHOSTS } else { 0 };
            all.with(dim, start..start + GHOSTS)
        })
    }

    /// Returns the position of a cell of the whole box in this rank's fields, if the cell belongs to this rank.
    pub(crate) fn local(&self, cell: [usize; 3]) -> Option<[usize; 3]> {
        let mut at = [0; 3];
        for dim in 0..3 {
            let inside = cell[dim].checked_sub(self.before[dim])?;
            at[dim] = (inside < self.cells[dim]).then_some(inside + GHOSTS)?;
        }
        Some(at)
    }

    /// Returns the rank that has a cell of the whole box.
    pub(crate) fn owner(&self, cell: [usize; 3]) -> usize {
        let ranks = 0..self.grid.iter().product();
        let mut owners = ranks.filter(|&rank| self.of(rank).local(cell).is_some());
        owners.next().unwrap_or_default()
    }

    /// Returns this rank's cells in a field of the whole box.
    pub(crate) fn in_whole(&self) -> CellBox {
        let start = self.before.map(|before| before + GHOSTS);
        CellBox {
            start,
            end: [0, 1, 2].map(|dim| start[dim] + self.cells[dim]),
        }
    }

    /// Splits the own cells: layers that a neighbor needs, and the rest. The regions do not overlap.
    pub(super) fn split(&self) -> (Vec<CellBox>, CellBox) {
        let (mut slabs, mut rest) = (Vec::new(), self.own());
        for dim in 0..3 {
            if !self.is_open_end(dim, false) {
                let end = (rest.start[dim] + GHOSTS).min(rest.end[dim]);
                slabs.push(rest.with(dim, rest.start[dim]..end));
                rest.start[dim] = end;
            }
            if !self.is_open_end(dim, true) {
                let start = (rest.end[dim] - GHOSTS).max(rest.start[dim]);
                slabs.push(rest.with(dim, start..rest.end[dim]));
                rest.end[dim] = start;
            }
        }
        slabs.retain(|slab| slab.len() > 0);
        (slabs, rest)
    }
}

/// A box of cells in a rank's fields, ghosts counted: the first own cell is [`GHOSTS`] in every dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellBox {
    pub(super) start: [usize; 3],
    pub(super) end: [usize; 3],
}

impl CellBox {
    pub(super) fn range(&self, dim: usize) -> Range<usize> {
        self.start[dim]..self.end[dim]
    }

    pub(super) fn edge(&self, dim: usize) -> usize {
        self.end[dim] - self.start[dim]
    }

    /// Returns the number of cells.
    pub(crate) fn len(&self) -> usize {
        (0..3).map(|dim| self.edge(dim)).product()
    }

    /// Returns the cell number `index`, z fastest.
    pub(crate) fn cell(&self, index: usize) -> [usize; 3] {
        let [_, ys, zs] = [0, 1, 2].map(|dim| self.edge(dim));
        let within = [index / (ys * zs), index / zs % ys, index % zs];
        [0, 1, 2].map(|dim| self.start[dim] + within[dim])
    }

    pub(super) fn contains(&self, cell: [usize; 3]) -> bool {
        (0..3).all(|dim| self.range(dim).contains(&cell[dim]))
    }

    /// Returns the same region with another range in `dim`.
    pub(crate) fn with(mut self, dim: usize, range: Range<usize>) -> Self {
        (self.start[dim], self.end[dim]) = (range.start, range.end);
        self
    }

    /// Returns the layer with this index in `dim`, counted from the first own one, if the region has it.
    pub(crate) fn plane(self, dim: usize, index: usize) -> Option<Self> {
        let at = index.checked_add(GHOSTS)?;
        let here = self.range(dim).contains(&at);
        here.then(|| self.with(dim, at..at + 1))
    }

    /// Returns the starts of the rows along z.
    pub(super) fn rows(self) -> impl Iterator<Item = [usize; 3]> {
        let [xs, ys] = [AwpDim::X, AwpDim::Y].map(|dim| self.range(dim));
        xs.flat_map(move |x| ys.clone().map(move |y| [x, y, self.start[AwpDim::Z]]))
    }
}
