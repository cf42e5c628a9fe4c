//! The cells of a rank.

/// Dimensions by name, as indices of a triple.
#[derive(Debug)]
pub(super) struct HeatDim;

impl HeatDim {
    pub(super) const Z: usize = 0;
    pub(super) const Y: usize = 1;
    pub(super) const X: usize = 2;
}

/// One of the six sides of a rank's box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoxSide {
    pub(super) dim: usize,
    pub(super) high: bool,
}

/// All sides, low and high in z, in y, in x.
pub(super) const SIDES: [BoxSide; 6] = [
    BoxSide::new(HeatDim::Z, false),
    BoxSide::new(HeatDim::Z, true),
    BoxSide::new(HeatDim::Y, false),
    BoxSide::new(HeatDim::Y, true),
    BoxSide::new(HeatDim::X, false),
    BoxSide::new(HeatDim::X, true),
];

impl BoxSide {
    const fn new(dim: usize, high: bool) -> Self {
        Self { dim, high }
    }
}

/// A rank's box in the whole box. It has at least two cells in every dimension, so that no cell is on two opposite sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeatDomain {
    /// Cells of the whole box.
    pub(super) global: [usize; 3],
    /// Ranks in each dimension.
    grid: [usize; 3],
    /// Cells of the whole box before this rank's first.
    pub(super) before: [usize; 3],
    /// This rank's cells.
    pub(crate) cells: [usize; 3],
}

impl HeatDomain {
    /// Returns the part of `rank` in a grid of ranks. The last dimension varies fastest. Remaining cells go to the first ranks,
    /// one each.
    ///
    /// # Errors
    /// A sentence that names the dimension with too few cells.
    pub(crate) fn part(global: [usize; 3], grid: [usize; 3], rank: usize) -> Result<Self, String> {
        for (name, (cells, ranks)) in ["z", "y", "x"]
            .into_iter()
            .zip(global.into_iter().zip(grid))
        {
            if cells / ranks < 2 {
                return Err(format!(
                    "{cells} cells in {name} are too few for {ranks} ranks in {name}, each of which needs 2: take at least {}",
                    2 * ranks
                ));
            }
        }
        Ok(Self {
            global,
            grid,
            before: [0; 3],
            cells: global,
        }
        .of(rank))
    }

    /// Returns the part of another rank.
    pub(super) fn of(self, mut rank: usize) -> Self {
        let mut part = self;
        for dim in [HeatDim::X, HeatDim::Y, HeatDim::Z] {
            let (cells, ranks) = (self.global[dim], self.grid[dim]);
            let at = rank % ranks;
            rank /= ranks;
            part.before[dim] = at * (cells / ranks) + at.min(cells % ranks);
            part.cells[dim] = cells / ranks + usize::from(at < cells % ranks);
        }
        part
    }

    /// Returns the whole box, on one rank.
    pub(super) fn whole(global: [usize; 3]) -> Self {
        Self {
            global,
            grid: [1; 3],
            before: [0; 3],
            cells: global,
        }
    }
}
