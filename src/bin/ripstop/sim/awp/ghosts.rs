//! Ghosts by the neighbor that sends them, in a box that is cut into one cube for each rank.

/// Ranks in three dimensions, the last of which varies fastest. The box does not wrap around.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankGrid(pub(super) [usize; 3]);

/// Layers of ghosts of a quantity: by dimension, at the low and the high side.
pub(super) type GhostLayers = [[usize; 2]; 3];

/// The ghosts of one quantity at one side of a rank, which a neighbor sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GhostFace {
    pub(super) quantity: usize,
    /// Number of the face, the same at both ends.
    pub(super) number: u32,
    /// The rank at the other end.
    pub(super) peer: usize,
    /// Position among all ghosts of the receiver, in values.
    pub(super) at: usize,
    pub(super) len: usize,
}

/// The faces of one exchange of a rank.
#[derive(Clone, Debug)]
pub(super) struct GhostFaces {
    pub(super) incoming: Vec<GhostFace>,
    pub(super) outgoing: Vec<GhostFace>,
}

impl RankGrid {
    /// Returns the rank beside `rank` in `dim`, on the low or the high side.
    pub(super) fn neighbor(self, rank: usize, dim: usize, high: bool) -> Option<usize> {
        let stride: usize = self.0[dim + 1..].iter().product();
        let at = rank / stride % self.0[dim];
        if high {
            (at + 1 < self.0[dim]).then_some(rank + stride)
        } else {
            (at > 0).then(|| rank - stride)
        }
    }

    /// Returns the faces of a rank whose cube has faces of `face` cells.
    pub(super) fn lanes(self, rank: usize, ghosts: &[GhostLayers], face: usize) -> GhostFaces {
        let sides = all(ghosts).filter_map(|side| {
            let peer = self.neighbor(rank, side.dim, !side.high)?;
            let theirs = self.incoming(peer, ghosts, face);
            let lane = theirs.into_iter().find(|lane| lane.number == side.number)?;
            Some(GhostFace { peer, ..lane })
        });
        GhostFaces {
            outgoing: sides.collect(),
            incoming: self.incoming(rank, ghosts, face),
        }
    }

    fn incoming(self, rank: usize, ghosts: &[GhostLayers], face: usize) -> Vec<GhostFace> {
        let mut end = 0;
        let sides = all(ghosts).filter_map(|side| {
            let peer = self.neighbor(rank, side.dim, side.high)?;
            let (at, len) = (end, side.layers * face);
            end += len;
            Some(GhostFace {
                quantity: side.quantity,
                number: side.number,
                peer,
                at,
                len,
            })
        });
        sides.collect()
    }

    /// Splits a cube with `edge` cells in each dimension: the number of cells that a neighbor needs, and of the others.
    pub(super) fn split(self, rank: usize, edge: usize) -> [usize; 2] {
        let inner = (0..3).map(|dim| {
            let beside = [false, true].map(|high| self.neighbor(rank, dim, high).is_some());
            edge - beside.into_iter().filter(|&is| is).count() * REACH
        });
        let inner: usize = inner.product();
        [edge.pow(3) - inner, inner]
    }
}

impl GhostFaces {
    /// Returns the number of values that come in.
    pub(super) fn len(&self) -> usize {
        self.incoming.iter().map(|lane| lane.len).sum()
    }
}

struct GhostSide {
    quantity: usize,
    dim: usize,
    high: bool,
    layers: usize,
    number: u32,
}

/// Returns all sides with ghosts.
fn all(ghosts: &[GhostLayers]) -> impl Iterator<Item = GhostSide> {
    let sides = (0..ghosts.len()).flat_map(|quantity| {
        (0..3).flat_map(move |dim| [false, true].map(|high| (quantity, dim, high)))
    });
    let sides = (0..)
        .zip(sides)
        .map(|(number, (quantity, dim, high))| GhostSide {
            quantity,
            dim,
            high,
            layers: ghosts[quantity][dim][usize::from(high)],
            number,
        });
    sides.filter(|side| side.layers > 0)
}

/// Layers that a difference reaches over.
pub(super) const REACH: usize = 2;

/// Two layers of every quantity: of u, v, w and of xx, yy, zz, xy, xz, yz.
pub(super) const FULL: [&[GhostLayers]; 2] = [&[[[REACH; 2]; 3]; 3], &[[[REACH; 2]; 3]; 6]];

/// The layers that a difference reads, as the example computes them from its differences.
pub(super) const NEEDED: [&[GhostLayers]; 2] = [
    &[
        [[1, 2], [1, 2], [1, 2]],
        [[2, 1], [2, 1], [1, 2]],
        [[2, 1], [1, 2], [2, 1]],
    ],
    &[
        [[2, 1], [0, 0], [0, 0]],
        [[0, 0], [1, 2], [0, 0]],
        [[0, 0], [0, 0], [1, 2]],
        [[1, 2], [2, 1], [0, 0]],
        [[1, 2], [0, 0], [2, 1]],
        [[0, 0], [2, 1], [2, 1]],
    ],
];

#[cfg(test)]
mod tests {
    use super::{FULL, NEEDED, RankGrid};

    #[test]
    fn what_one_rank_sends_another_receives_at_that_place() {
        let grid = RankGrid([3, 2, 4]);
        for ghosts in FULL.into_iter().chain(NEEDED) {
            let all: Vec<_> = (0..24).map(|rank| grid.lanes(rank, ghosts, 10)).collect();
            let mut sent = 0;
            for (rank, lanes) in all.iter().enumerate() {
                for lane in &lanes.outgoing {
                    let theirs = &all[lane.peer].incoming;
                    let same = theirs.iter().find(|other| other.number == lane.number);
                    let same = same.expect("a lane with two ends");
                    assert_eq!((same.peer, same.at, same.len), (rank, lane.at, lane.len));
                    sent += 1;
                }
            }
            assert_eq!(
                sent,
                all.iter().map(|lanes| lanes.incoming.len()).sum::<usize>()
            );
        }
    }

    #[test]
    fn a_rank_in_the_middle_needs_half_of_all_layers() {
        let grid = RankGrid([3, 3, 3]);
        let values = |layers: [&[_]; 2]| -> usize {
            layers
                .iter()
                .map(|ghosts| grid.lanes(13, ghosts, 1).len())
                .sum()
        };
        assert_eq!((values(FULL), values(NEEDED)), (108, 54));
        assert_eq!(grid.split(13, 8), [512 - 64, 64]);
        assert_eq!(grid.split(0, 8), [512 - 216, 216]);
    }
}
