//! The layers that each rank sends and receives.

use crate::wave::{
    domain::{AwpDomain, CellBox, GHOSTS},
    stencil::GhostWidths,
};

/// The ghosts of one component at one side: this rank's own, and those of the neighbor opposite.
#[derive(Clone, Copy, Debug)]
pub(super) struct GhostLane {
    pub(super) component: usize,
    /// Number of the lane, the same on all ranks, and below [`LANES_MAX`].
    pub(super) number: u32,
    /// The sender, and the ghosts that it fills.
    pub(super) from: Option<LaneEnd>,
    /// The receiver, and the own layers that become its ghosts.
    pub(super) to: Option<LaneEnd>,
}

/// One end of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneEnd {
    pub(super) peer: usize,
    pub(super) region: CellBox,
}

/// The most lanes: components, dimensions and sides.
pub(super) const LANES_MAX: u32 = 6 * 3 * 2;

/// Returns all lanes of a rank for components with these ghosts.
pub(super) fn lanes(domain: &AwpDomain, ghosts: &[GhostWidths]) -> Vec<GhostLane> {
    let mut lanes = Vec::new();
    for ((component, dim, high), number) in all().zip(0..) {
        let Some(of_component) = ghosts.get(component) else {
            break;
        };
        let count = of_component[dim][usize::from(high)];
        let end = |high: bool, region: CellBox| {
            let peer = domain.neighbor(dim, high)?;
            (count > 0).then_some(LaneEnd { peer, region })
        };
        let own = domain.own();
        let (first, last) = (own.start[dim], own.end[dim]);
        let (ghosts, layers) = if high {
            (last..last + count, first..first + count)
        } else {
            (first - count..first, last - count..last)
        };
        lanes.push(GhostLane {
            component,
            number,
            from: end(high, own.with(dim, ghosts)),
            to: end(!high, own.with(dim, layers)),
        });
    }
    lanes
}

fn all() -> impl Iterator<Item = (usize, usize, bool)> {
    (0..6).flat_map(|component| {
        (0..3).flat_map(move |dim| [false, true].map(|high| (component, dim, high)))
    })
}

const _: () = assert!(GHOSTS == 2, "a difference reaches over two cells");
