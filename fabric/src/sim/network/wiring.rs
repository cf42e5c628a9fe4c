//! Which links lie between two nodes of a rail.

use crate::sim::{model::Topology, slab::index};

/// A topology of so many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wiring {
    Crossbar,
    FatTree {
        arity: u32,
        levels: u32,
        places: u32,
    },
    Torus {
        size: [u32; 3],
    },
    Dragonfly {
        routers: u32,
        nodes: u32,
        groups: u32,
    },
}

/// How long a way is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hops {
    /// Switches or routers on it.
    pub(super) switches: u32,
    /// Links between them that were visited.
    pub(super) links: u32,
}

impl Wiring {
    pub(super) fn new(topology: Topology, nodes: u32) -> Self {
        match topology {
            Topology::Crossbar => Self::Crossbar,
            Topology::FatTree { arity } => {
                let (mut levels, mut places) = (1, arity);
                while places < nodes {
                    levels += 1;
                    places = places.saturating_mul(arity);
                }
                Self::FatTree {
                    arity,
                    levels,
                    places,
                }
            }
            Topology::Torus { size } => Self::Torus { size },
            Topology::Dragonfly {
                routers,
                nodes: each,
            } => Self::Dragonfly {
                routers,
                nodes: each,
                groups: nodes.div_ceil(routers * each),
            },
        }
    }

    /// Links of a rail that packets may have to wait for, without those of the adapters.
    pub(super) fn links(self) -> usize {
        match self {
            Self::Crossbar => 0,
            Self::FatTree { levels, places, .. } => 2 * index(levels - 1) * index(places),
            Self::Torus { size } => 6 * size.into_iter().map(index).product::<usize>(),
            Self::Dragonfly {
                routers, groups, ..
            } => {
                let (routers, groups) = (index(routers), index(groups));
                groups * routers * routers + groups * groups
            }
        }
    }

    /// Visits the links from one node to another, in order.
    pub(super) fn route(self, from: u32, to: u32, mut visit: impl FnMut(usize)) -> Hops {
        let mut hops = Hops::default();
        let mut count = |link: usize| {
            hops.links += 1;
            visit(link);
        };
        let switches = match self {
            Self::Crossbar => 1,
            Self::FatTree {
                arity,
                levels,
                places,
            } => climb(arity, (levels, places), (from, to), &mut count),
            Self::Torus { size } => walk(size, (from, to), &mut count),
            Self::Dragonfly {
                routers,
                nodes,
                groups,
            } => jump((routers, nodes, groups), (from, to), &mut count),
        };
        hops.switches = switches;
        hops
    }
}

/// Up to the lowest switch above both nodes, and down. With d-mod-k routing, the digits of the destination choose the links up, and
/// all ways to one destination come down on the same links.
fn climb(
    arity: u32,
    (levels, places): (u32, u32),
    (from, to): (u32, u32),
    visit: &mut impl FnMut(usize),
) -> u32 {
    let mut top = 1;
    let mut below = arity;
    while from / below != to / below {
        let up = from / below * below + to % below;
        visit(index(top - 1) * index(places) + index(up));
        top += 1;
        below = below.saturating_mul(arity);
    }
    let downs = index(levels - 1) * index(places);
    for level in (1..top).rev() {
        visit(downs + index(level - 1) * index(places) + index(to));
    }
    2 * top - 1
}

/// Along x, then y, then z, each the shorter way round.
fn walk(size: [u32; 3], (from, to): (u32, u32), visit: &mut impl FnMut(usize)) -> u32 {
    let place = |node: u32| {
        [
            node % size[0],
            node / size[0] % size[1],
            node / size[0] / size[1],
        ]
    };
    let (mut at, goal) = (place(from), place(to));
    let mut steps = 0;
    for axis in 0..3 {
        let around = size[axis];
        let ahead = (goal[axis] + around - at[axis]) % around;
        let backwards = ahead > around / 2;
        let distance = if backwards { around - ahead } else { ahead };
        for _ in 0..distance {
            let node = at[0] + size[0] * (at[1] + size[1] * at[2]);
            visit(6 * index(node) + 2 * axis + usize::from(backwards));
            at[axis] = (at[axis] + if backwards { around - 1 } else { 1 }) % around;
            steps += 1;
        }
    }
    steps
}

/// To the router that has the link to the other group, over, and to the destination's router.
fn jump(
    (routers, nodes, groups): (u32, u32, u32),
    (from, to): (u32, u32),
    visit: &mut impl FnMut(usize),
) -> u32 {
    let (mut router, goal) = (from / nodes, to / nodes);
    let mut passed = 1;
    let mut local = |from: u32, to: u32, visit: &mut dyn FnMut(usize)| {
        if from != to {
            visit(index(from) * index(routers) + index(to % routers));
            passed += 1;
        }
    };
    let (group, goal_group) = (router / routers, goal / routers);
    if group != goal_group {
        local(
            router,
            group * routers + gate(group, goal_group, routers),
            visit,
        );
        let globals = index(groups) * index(routers) * index(routers);
        visit(globals + index(group) * index(groups) + index(goal_group));
        router = goal_group * routers + gate(goal_group, group, routers);
        local(router, goal, visit);
        return passed + 1;
    }
    local(router, goal, visit);
    passed
}

/// The router of a group that has the link to another group: they take turns.
fn gate(group: u32, other: u32, routers: u32) -> u32 {
    let nth = if other > group { other - 1 } else { other };
    nth % routers
}
