//! The differences of which each quantity consists. Everything else follows from these tables: the update of a cell, and how
//! many layers of ghosts a neighbor has to send.

use super::domain::AwpDim;

/// The velocities, as indices.
pub(crate) const U: usize = 0;
pub(crate) const V: usize = 1;
pub(crate) const W: usize = 2;

/// The stresses, as indices.
pub(crate) const XX: usize = 0;
pub(crate) const YY: usize = 1;
pub(crate) const ZZ: usize = 2;
pub(crate) const XY: usize = 3;
pub(crate) const XZ: usize = 4;
pub(crate) const YZ: usize = 5;

/// A difference of four values of `of` along `dim`, `before` of which lie at lower indices than the result.
#[derive(Clone, Copy, Debug)]
pub(super) struct StencilDifference {
    pub(super) of: usize,
    pub(super) dim: usize,
    pub(super) before: usize,
}

/// From the cells −1, 0, 1 and 2: the result lies half a cell above.
const fn up(of: usize, dim: usize) -> StencilDifference {
    StencilDifference { of, dim, before: 1 }
}

/// From the cells −2, −1, 0 and 1: the result lies half a cell below.
const fn down(of: usize, dim: usize) -> StencilDifference {
    StencilDifference { of, dim, before: 2 }
}

/// For each velocity, the differences of stresses that it adds up.
pub(super) const VELOCITY: [[StencilDifference; 3]; 3] = [
    [
        down(XX, AwpDim::X),
        down(XY, AwpDim::Y),
        down(XZ, AwpDim::Z),
    ],
    [up(XY, AwpDim::X), up(YY, AwpDim::Y), down(YZ, AwpDim::Z)],
    [up(XZ, AwpDim::X), down(YZ, AwpDim::Y), up(ZZ, AwpDim::Z)],
];

/// The stretching in x, y and z, as differences of velocities.
pub(super) const STRETCH: [StencilDifference; 3] =
    [up(U, AwpDim::X), down(V, AwpDim::Y), down(W, AwpDim::Z)];

/// For each shear stress, the differences of velocities that it adds up: `XY`, `XZ`, `YZ`.
pub(super) const SHEAR: [[StencilDifference; 2]; 3] = [
    [up(U, AwpDim::Y), down(V, AwpDim::X)],
    [up(U, AwpDim::Z), down(W, AwpDim::X)],
    [up(V, AwpDim::Z), up(W, AwpDim::Y)],
];

/// Stresses that are computed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StressGroup {
    /// The three normal stresses, which share their differences.
    Normal,
    Xy,
    Xz,
    Yz,
}

impl StressGroup {
    pub(super) const ALL: [Self; 4] = [Self::Normal, Self::Xy, Self::Xz, Self::Yz];

    pub(super) fn components(self) -> &'static [usize] {
        match self {
            Self::Normal => &[XX, YY, ZZ],
            Self::Xy => &[XY],
            Self::Xz => &[XZ],
            Self::Yz => &[YZ],
        }
    }
}

/// Layers of ghosts of a component: by dimension, at the low and the high side.
pub(crate) type GhostWidths = [[usize; 2]; 3];

/// Layers of ghosts that are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangedLayers {
    pub(crate) velocity: [GhostWidths; 3],
    pub(crate) stress: [GhostWidths; 6],
}

impl ExchangedLayers {
    /// Two layers at each side.
    pub(crate) const FULL: Self = Self {
        velocity: [[[2; 2]; 3]; 3],
        stress: [[[2; 2]; 3]; 6],
    };

    /// The layers that a difference reads, which are half of all layers.
    pub(crate) const NEEDED: Self = Self {
        velocity: velocity_needed(),
        stress: stress_needed(),
    };
}

const fn velocity_needed() -> [GhostWidths; 3] {
    let mut needed = [[[0; 2]; 3]; 3];
    let mut i = 0;
    while i < 3 {
        needed[STRETCH[i].of] = with(needed[STRETCH[i].of], STRETCH[i]);
        let [first, second] = SHEAR[i];
        needed[first.of] = with(needed[first.of], first);
        needed[second.of] = with(needed[second.of], second);
        i += 1;
    }
    needed
}

const fn stress_needed() -> [GhostWidths; 6] {
    let mut needed = [[[0; 2]; 3]; 6];
    let mut i = 0;
    while i < 9 {
        let read = VELOCITY[i / 3][i % 3];
        needed[read.of] = with(needed[read.of], read);
        i += 1;
    }
    needed
}

/// Checks that no quantity is read by two differences along the same dimension that reach differently far.
const fn with(mut ghosts: GhostWidths, read: StencilDifference) -> GhostWidths {
    let reach = [read.before, 3 - read.before];
    let [low, high] = ghosts[read.dim];
    assert!(low + high == 0 || low == reach[0] && high == reach[1]);
    ghosts[read.dim] = reach;
    ghosts
}
