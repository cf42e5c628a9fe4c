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

impl BoxSide {
    pub(super) const BELOW: Self = Self {
        dim: HeatDim::Z,
        high: false,
    };
    pub(super) const ABOVE: Self = Self {
        dim: HeatDim::Z,
        high: true,
    };

    /// Returns the side's number in [`SIDES`].
    pub(super) fn index(self) -> usize {
        2 * self.dim + usize::from(self.high)
    }
}

/// All sides, low and high in z, in y, in x.
pub(super) const SIDES: [BoxSide; 6] = [
    BoxSide::BELOW,
    BoxSide::ABOVE,
    BoxSide {
        dim: HeatDim::Y,
        high: false,
    },
    BoxSide {
        dim: HeatDim::Y,
        high: true,
    },
    BoxSide {
        dim: HeatDim::X,
        high: false,
    },
    BoxSide {
        dim: HeatDim::X,
        high: true,
    },
];

/// Sides in the order in which they are started. z is last: its planes leave the field when they are sent, and the other faces
/// have cells in them.
pub(super) const SIDES_TO_START: [BoxSide; 6] =
    [SIDES[4], SIDES[5], SIDES[2], SIDES[3], SIDES[0], SIDES[1]];

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
