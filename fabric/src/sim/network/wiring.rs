//! Finds the links between two nodes, for each topology.

use crate::sim::{model::Topology, slab::index};

/// A topology with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizedTopology {
    Crossbar,
    FatTree(TreeShape),
    Torus { size: [u32; 3] },
    Dragonfly(DragonflyShape),
}

/// Size of a fat tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeShape {
    /// Links down from each switch.
    arity: u32,
    levels: u32,
    /// Nodes for which there is room.
    places: u32,
}

/// Size of a dragonfly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DragonflyShape {
    /// Routers of each group.
    routers: u32,
    /// Nodes of each router.
    nodes: u32,
    groups: u32,
}

/// Length of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HopCounts {
    /// Switches or routers on the path.
    pub(super) switches: u32,
    /// Links between switches that were visited.
    pub(super) links: u32,
}

impl SizedTopology {
    pub(super) fn new(topology: Topology, nodes: u32) -> Self {
        match topology {
            Topology::Crossbar => Self::Crossbar,
            Topology::FatTree { arity } => {
                let (mut levels, mut below) = (1, 1_u32);
                while below.saturating_mul(arity) < nodes {
                    levels += 1;
                    below *= arity;
                }
                // There are as many whole copies of the largest subtree below the top as are needed.
                let places = nodes.next_multiple_of(below);
                Self::FatTree(TreeShape {
                    arity,
                    levels,
                    places,
                })
            }
            Topology::Torus { size: [0, 0, 0] } => Self::Torus { size: cube(nodes) },
            Topology::Torus { size } => Self::Torus { size },
            Topology::Dragonfly {
                routers,
                nodes: each,
            } => Self::Dragonfly(DragonflyShape {
                routers,
                nodes: each,
                groups: nodes.div_ceil(routers * each),
            }),
        }
    }

    /// Returns the number of links of a rail that packets may wait for, without those of the adapters.
    pub(super) fn links(self) -> usize {
        match self {
            Self::Crossbar => 0,
            Self::FatTree(tree) => 2 * index(tree.levels - 1) * index(tree.places),
            Self::Torus { size } => 6 * size.into_iter().map(index).product::<usize>(),
            Self::Dragonfly(shape) => {
                let (routers, groups) = (index(shape.routers), index(shape.groups));
                groups * routers * routers + groups * groups
            }
        }
    }

    /// Visits the links from one node to another, in order.
    pub(super) fn route(self, from: u32, to: u32, mut visit: impl FnMut(usize)) -> HopCounts {
        let mut hops = HopCounts::default();
        let mut count = |link: usize| {
            hops.links += 1;
            visit(link);
        };
        let switches = match self {
            Self::Crossbar => 1,
            Self::FatTree(tree) => tree.climb(from, to, &mut count),
            Self::Torus { size } => walk(size, from, to, &mut count),
            Self::Dragonfly(shape) => shape.jump(from, to, &mut count),
        };
        hops.switches = switches;
        hops
    }
}

impl TreeShape {
    /// Goes up to the lowest switch above both nodes, and down again. With d-mod-k routing, the destination's digits choose the
    /// links up, and all paths to one destination come down on the same links.
    fn climb(self, from: u32, to: u32, visit: &mut impl FnMut(usize)) -> u32 {
        let Self {
            arity,
            levels,
            places,
        } = self;
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
}

/// Goes along x, then y, then z, each the shorter way round.
fn walk(size: [u32; 3], from: u32, to: u32, visit: &mut impl FnMut(usize)) -> u32 {
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

impl DragonflyShape {
    /// Goes to the router with the link to the other group, across, and to the destination's router.
    fn jump(self, from: u32, to: u32, visit: &mut impl FnMut(usize)) -> u32 {
        let Self {
            routers,
            nodes,
            groups,
        } = self;
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
}

/// Returns the router of a group that has the link to another group. The routers take turns.
fn gate(group: u32, other: u32, routers: u32) -> u32 {
    let nth = if other > group { other - 1 } else { other };
    nth % routers
}

/// Returns the most cubic torus with room for `nodes` nodes.
fn cube(nodes: u32) -> [u32; 3] {
    let x = (1..=nodes).find(|x| x.saturating_mul(*x).saturating_mul(*x) >= nodes);
    let x = x.unwrap_or(1);
    let rest = nodes.div_ceil(x);
    let y = (1..=rest)
        .find(|y| y.saturating_mul(*y) >= rest)
        .unwrap_or(1);
    [x, y, rest.div_ceil(y)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{HopCounts, SizedTopology, cube};
    use crate::sim::model::Topology;

    fn way(wiring: SizedTopology, from: u32, to: u32) -> (HopCounts, Vec<usize>) {
        let mut links = Vec::new();
        let hops = wiring.route(from, to, |link| links.push(link));
        assert!(
            links.iter().all(|link| *link < wiring.links()),
            "{wiring:?} {from} {to}: {links:?}"
        );
        (hops, links)
    }

    #[test]
    fn a_torus_is_walked_the_shorter_way_round() {
        let size = [5, 4, 3];
        let torus = SizedTopology::new(Topology::Torus { size }, 60);
        let node = |x: u32, y: u32, z: u32| x + 5 * (y + 4 * z);
        for ((x, y, z), hops) in [
            ((1, 0, 0), 1),
            ((4, 0, 0), 1),
            ((2, 0, 0), 2),
            ((3, 0, 0), 2),
            ((0, 2, 0), 2),
            ((4, 3, 2), 3),
            ((2, 2, 1), 5),
        ] {
            let (counted, links) = way(torus, 0, node(x, y, z));
            assert_eq!(
                (counted.switches, links.len()),
                (hops, hops as usize),
                "to {x} {y} {z}"
            );
        }
        // The path to the far corner follows each axis in turn.
        let (_, links) = way(torus, 0, node(1, 1, 1));
        assert_eq!(
            links,
            [
                0,
                6 * node(1, 0, 0) as usize + 2,
                6 * node(1, 1, 0) as usize + 4
            ]
        );
    }

    #[test]
    fn a_fat_tree_is_climbed_as_far_as_needed() {
        let tree = SizedTopology::new(Topology::FatTree { arity: 4 }, 64);
        for (to, switches) in [(3, 1), (4, 3), (15, 3), (16, 5), (63, 5)] {
            assert_eq!(way(tree, 0, to).0.switches, switches, "to {to}");
        }
    }

    #[test]
    fn a_shift_of_all_nodes_of_a_fat_tree_has_every_link_to_itself() {
        let tree = SizedTopology::new(Topology::FatTree { arity: 4 }, 64);
        for shift in 1..64 {
            let mut taken = BTreeSet::new();
            for from in 0..64 {
                let (_, links) = way(tree, from, (from + shift) % 64);
                assert!(
                    links.into_iter().all(|link| taken.insert(link)),
                    "shift {shift}, from {from}"
                );
            }
        }
    }

    #[test]
    fn a_dragonfly_crosses_at_most_one_link_between_groups() {
        let (routers, nodes) = (4, 2);
        let fly = SizedTopology::new(Topology::Dragonfly { routers, nodes }, 72);
        let locals = 9 * 16;
        for (from, to) in (0..72)
            .flat_map(|from| (0..72).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
        {
            let (hops, links) = way(fly, from, to);
            let globals = links.iter().filter(|link| **link >= locals).count();
            assert_eq!(globals, usize::from(from / 8 != to / 8), "{from} to {to}");
            assert!(
                links.len() <= 3 && hops.switches as usize == links.len() + 1,
                "{from} to {to}"
            );
        }
    }

    #[test]
    fn the_most_cubic_torus_has_room_for_all() {
        for nodes in 1..2000 {
            let [x, y, z] = cube(nodes);
            assert!(
                x * y * z >= nodes && x * y * z < nodes + x * y,
                "{nodes}: {x} {y} {z}"
            );
        }
        assert_eq!(cube(512), [8, 8, 8]);
    }
}
