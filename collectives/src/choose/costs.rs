//! For each algorithm: its cost, when it fits, and the parameters that are worth trying.

use super::{Algorithm, Shape, closed_forms::GroupModel};
use crate::{
    cost::Machine,
    plan::{
        AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, Reduce, ReduceScatter,
        SEGMENTS_MAX, Scatter, shape::powers,
    },
};

/// The largest group for which algorithms are considered in which each rank sends to each other rank at once. The model does
/// not count the memory of each message at its receiver, which grows with the group.
const FLAT_MAX: usize = 16;

/// Time per message, besides its bytes, if it does not land in a collective slot, where the receiver polls for it. The number
/// is from `all_reduce` of 32 and 64 KiB by two ranks, in one round and in two.
const MEETING_NS: f64 = 2000.0;

impl Algorithm for Barrier {
    const COLLECTIVE: &'static str = "barrier";

    fn variants(_: &Shape, _: &Machine) -> Vec<Self> {
        let trees = ARITIES.map(|arity| Self::Kary { arity });
        [
            &[
                Self::Dissemination,
                Self::Binomial,
                Self::Leaders,
                Self::Flat,
            ][..],
            &trees,
        ]
        .concat()
    }

    fn fits(self, shape: &Shape, machine: &Machine) -> bool {
        match self {
            Self::Leaders => shape.has_leaders(machine),
            Self::Flat => shape.size <= FLAT_MAX,
            _ => true,
        }
    }

    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
        let model = shape.model(machine);
        let dissemination = |model: &GroupModel<'_>| model.shifts(|_| 0.0);
        let tree = |model: &GroupModel<'_>| 2.0 * model.binomial(|_| 0.0);
        match self {
            Self::Dissemination => dissemination(&model),
            Self::Binomial => tree(&model),
            Self::Kary { arity } => 2.0 * kary(&model, arity, 0.0),
            Self::Flat => model.all_pairs(0.0),
            Self::Leaders => tree(&model.node()) + dissemination(&model.leaders(&machine.lone())),
        }
    }
}

impl Algorithm for Bcast {
    const COLLECTIVE: &'static str = "bcast";

    fn variants(shape: &Shape, machine: &Machine) -> Vec<Self> {
        let trees = ARITIES.map(|arity| Self::Kary { arity });
        let segments = segments(&shape.model(machine), shape.bytes as f64);
        let others = [
            Self::Binomial,
            Self::ScatterRing,
            Self::Chain { segments },
            Self::Leaders,
        ];
        [&others[..], &trees].concat()
    }

    fn fits(self, shape: &Shape, machine: &Machine) -> bool {
        match self {
            Self::Leaders => shape.has_leaders(machine),
            Self::Chain { segments } => segments <= SEGMENTS_MAX,
            _ => true,
        }
    }

    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
        let (model, bytes) = (shape.model(machine), shape.bytes as f64);
        let part = bytes / shape.size as f64;
        let tree = |model: &GroupModel<'_>| model.binomial(|_| bytes);
        match self {
            Self::Binomial => tree(&model),
            Self::Kary { arity } => kary(&model, arity, bytes),
            Self::Chain { segments } => chain(&model, bytes, segments),
            Self::ScatterRing => {
                model.binomial(|ranks| ranks as f64 * part) + model.ring(part, 0.0)
            }
            Self::Leaders => tree(&model.node()) + tree(&model.leaders(&machine.lone())),
        }
    }
}

/// Gather and scatter cost the same, with sending and receiving exchanged.
macro_rules! rooted {
    ($name:ident, $collective:literal, $row:ident) => {
        impl Algorithm for $name {
            const COLLECTIVE: &'static str = $collective;

            fn variants(_: &Shape, _: &Machine) -> Vec<Self> {
                Self::ALL.to_vec()
            }

            fn fits(self, _: &Shape, _: &Machine) -> bool {
                true
            }

            fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
                let (model, block) = (shape.model(machine), shape.bytes as f64);
                match self {
                    Self::Binomial => model.binomial(|ranks| ranks as f64 * block),
                    Self::Linear { .. } => {
                        let (node_peers, other_ranks) =
                            (model.local() - 1, shape.size - model.local());
                        let inside = GroupModel::$row(&machine.inside, block, node_peers);
                        inside + GroupModel::$row(&machine.across, block, other_ranks)
                    }
                }
            }
        }
    };
}

rooted!(Gather, "gather", incast);
rooted!(Scatter, "scatter", row);

impl Algorithm for AllGather {
    const COLLECTIVE: &'static str = "all_gather";

    fn variants(_: &Shape, _: &Machine) -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn fits(self, _: &Shape, _: &Machine) -> bool {
        true
    }

    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
        let (model, block) = (shape.model(machine), shape.bytes as f64);
        let blocks = |count: usize| count as f64 * block;
        match self {
            Self::Ring => model.ring(block, 0.0),
            Self::RecursiveDoubling => {
                let each = shape.size as f64 / model.power() as f64;
                let rounds = powers(model.power()).map(|d| model.exchange(blocks(d) * each, d));
                rounds.sum::<f64>()
                    + model.if_folded(block)
                    + model.if_folded(blocks(shape.size))
                    + model.copy(block)
            }
            Self::Bruck => model.shifts(|d| blocks(d.min(shape.size - d))) + model.copy(block),
        }
    }
}

impl Algorithm for AllToAll {
    const COLLECTIVE: &'static str = "all_to_all";

    fn variants(shape: &Shape, _: &Machine) -> Vec<Self> {
        let window = window(shape);
        vec![
            Self::Pairwise { window },
            Self::Xor { window },
            Self::Bruck,
            Self::Leaders,
        ]
    }

    fn fits(self, shape: &Shape, machine: &Machine) -> bool {
        match self {
            Self::Pairwise { .. } => true,
            Self::Xor { .. } => shape.size.is_power_of_two(),
            Self::Bruck => !shape.ragged,
            Self::Leaders => !shape.ragged && shape.has_leaders(machine),
        }
    }

    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
        let (model, block) = (shape.model(machine), shape.bytes as f64);
        match self {
            Self::Pairwise { .. } | Self::Xor { .. } => model.all_pairs(block),
            Self::Bruck => {
                let moved = block * shape.size as f64 / 2.0;
                let merges = powers(shape.size).count() as f64 * model.copy(moved);
                let turns = 2.0 * model.copy(block * shape.size as f64);
                model.shifts(|_| moved) + merges + turns
            }
            Self::Leaders => {
                let (row, local) = (block * shape.size as f64, model.local() as f64);
                let collect = GroupModel::incast(&machine.inside, row, model.local() - 1);
                let hand_out = GroupModel::row(&machine.inside, row, model.local() - 1);
                let between = model
                    .leaders(&machine.lone())
                    .all_pairs(block * local * local);
                collect + between + hand_out + 2.0 * model.copy(row)
            }
        }
    }
}

impl Algorithm for Reduce {
    const COLLECTIVE: &'static str = "reduce";

    fn variants(_: &Shape, _: &Machine) -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn fits(self, shape: &Shape, _: &Machine) -> bool {
        shape.order <= self.order()
    }

    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
        let (model, bytes) = (shape.model(machine), shape.bytes as f64);
        match self {
            Self::Binomial => reduce_up(&model, bytes),
            Self::Rabenseifner => {
                halving(&model, bytes, |d| d) + regather(&model, bytes) + model.copy(bytes)
            }
        }
    }
}

impl Algorithm for AllReduce {
    const COLLECTIVE: &'static str = "all_reduce";

    fn variants(_: &Shape, _: &Machine) -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn fits(self, shape: &Shape, machine: &Machine) -> bool {
        let needs_map = matches!(self, Self::LeadersDoubling | Self::LeadersRabenseifner);
        shape.order <= self.order()
            && (!needs_map || shape.has_leaders(machine))
            && (self != Self::Flat || shape.size <= FLAT_MAX)
    }

    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
        let (model, bytes) = (shape.model(machine), shape.bytes as f64);
        let down = |model: &GroupModel<'_>| model.binomial(|_| bytes);
        let (node, lone) = (model.node(), machine.lone());
        let leaders = model.leaders(&lone);
        let meetings_ns = self.meetings(shape, machine) * MEETING_NS;
        let messages_ns = match self {
            Self::RecursiveDoubling => doubling(&model, bytes),
            Self::Rabenseifner => rabenseifner(&model, bytes),
            Self::Ring => {
                let part = bytes / shape.size as f64;
                model.ring(part, model.reduce(part)) + model.ring(part, 0.0)
            }
            Self::ReduceBcast => reduce_up(&model, bytes) + down(&model),
            Self::Flat => {
                let others = (shape.size - 1) as f64;
                model.all_pairs(bytes) + others * model.reduce(bytes) + model.copy(bytes)
            }
            Self::LeadersDoubling => {
                reduce_up(&node, bytes) + doubling(&leaders, bytes) + down(&node)
            }
            Self::LeadersRabenseifner => {
                reduce_up(&node, bytes) + rabenseifner(&leaders, bytes) + down(&node)
            }
        };
        meetings_ns + messages_ns
    }
}

impl AllReduce {
    /// Returns the number of rounds of two ranks of a node whose messages do not land in collective slots.
    fn meetings(self, shape: &Shape, machine: &Machine) -> f64 {
        let has_cells = machine.slot_bytes > 0 && machine.per_node > 1;
        match self {
            _ if shape.size != 2 || !has_cells => 0.0,
            Self::RecursiveDoubling | Self::Flat if shape.bytes <= machine.slot_bytes => 0.0,
            Self::RecursiveDoubling | Self::Flat => 1.0,
            _ => 2.0,
        }
    }
}

impl Algorithm for ReduceScatter {
    const COLLECTIVE: &'static str = "reduce_scatter";

    fn variants(_: &Shape, _: &Machine) -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn fits(self, shape: &Shape, _: &Machine) -> bool {
        shape.order <= self.order()
    }

    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64 {
        let (model, bytes) = (shape.model(machine), shape.bytes as f64);
        let block = bytes / shape.size as f64;
        match self {
            Self::RecursiveHalving => {
                let apart = |d: usize| model.power() / (2 * d);
                halving(&model, bytes, apart) + model.copy(bytes) + model.if_folded(block)
            }
            Self::Pairwise { .. } => model.all_pairs(block) + model.reduce(block),
            Self::Ring => model.ring(block, model.reduce(block)),
            Self::ReduceAndScatter => {
                reduce_up(&model, bytes) + model.binomial(|ranks| ranks as f64 * block)
            }
        }
    }
}

/// Returns the time down or up a tree of at most `arity` children per rank, filled level by level.
fn kary(model: &GroupModel<'_>, arity: usize, bytes: f64) -> f64 {
    let arity = arity.min(model.size);
    let (mut parents, mut reached, mut total_ns) = (1, 1, 0.0);
    while reached < model.size {
        let children = (parents * arity).min(model.size - reached);
        let each = children.min(arity);
        let leaving = children - model.local().saturating_sub(reached).min(children);
        total_ns += if leaving == 0 {
            GroupModel::row(&model.machine.inside, bytes, each)
        } else {
            let of_one_node = leaving.min(parents.min(model.local()) * arity);
            model.crossing(bytes, of_one_node)
        };
        (parents, reached) = (children, reached + children);
    }
    total_ns
}

/// Returns the time from rank to rank in a chain; the slowest link limits the rate of segments.
fn chain(model: &GroupModel<'_>, bytes: f64, segments: usize) -> f64 {
    if model.size == 1 {
        return 0.0;
    }
    let part = bytes / segments as f64;
    let (nodes, machine) = (model.nodes(), model.machine);
    let slowest = if nodes > 1 {
        &machine.across
    } else {
        &machine.inside
    };
    let between = (nodes - 1) as f64 * GroupModel::hop(&machine.across, part);
    let inside = (model.size - nodes) as f64 * GroupModel::hop(&machine.inside, part);
    between + inside + (segments - 1) as f64 * (slowest.overhead_ns + slowest.busy_ns(part))
}

/// Returns the number of segments, a power of two, with which a chain is fastest.
fn segments(model: &GroupModel<'_>, bytes: f64) -> usize {
    let powers = (0..=SEGMENTS_LOG2_MAX).map(|bits| 1 << bits);
    let cost_ns = |segments: &usize| chain(model, bytes, *segments);
    powers
        .min_by(|a, b| cost_ns(a).total_cmp(&cost_ns(b)))
        .unwrap_or(1)
}

fn reduce_up(model: &GroupModel<'_>, bytes: f64) -> f64 {
    let levels = GroupModel::levels(model.size).count() as f64;
    model.binomial(|_| bytes) + levels * model.reduce(bytes) + model.copy(bytes)
}

fn doubling(model: &GroupModel<'_>, bytes: f64) -> f64 {
    let rounds = powers(model.power()).map(|d| model.exchange(bytes, d) + model.reduce(bytes));
    rounds.sum::<f64>() + merging(model, bytes) + model.if_folded(bytes)
}

fn rabenseifner(model: &GroupModel<'_>, bytes: f64) -> f64 {
    halving(model, bytes, |d| d) + regather(model, bytes) + model.if_folded(bytes)
}

/// Returns the time to exchange and combine halves of the vector. `distance(d)` is the distance of the ranks in the round in
/// which they exchange 1/(2d) of it.
fn halving(model: &GroupModel<'_>, bytes: f64, distance: impl Fn(usize) -> usize) -> f64 {
    let round = |d: usize| {
        let part = bytes / (2 * d) as f64;
        model.exchange(part, distance(d)) + model.reduce(part)
    };
    merging(model, bytes) + powers(model.power()).map(round).sum::<f64>()
}

/// Returns the time to gather all parts of the vector again after a [`halving`].
fn regather(model: &GroupModel<'_>, bytes: f64) -> f64 {
    let rounds = powers(model.power());
    rounds
        .map(|d| model.exchange(bytes / (2 * d) as f64, d))
        .sum()
}

/// Returns the time to merge ranks at the start of a reduction if their number is no power of two.
fn merging(model: &GroupModel<'_>, bytes: f64) -> f64 {
    if model.size.is_power_of_two() {
        0.0
    } else {
        model.if_folded(bytes) + model.reduce(bytes)
    }
}

/// Returns the number of sends in flight. The numbers are UCC's defaults for its pairwise algorithm.
fn window(shape: &Shape) -> usize {
    match (shape.size, shape.bytes) {
        (..=8, _) => shape.size,
        (_, ..=0x1_0000) => 32,
        (_, ..=0x10_0000) => 16,
        (..=16, ..=0x40_0000) => shape.size,
        (_, ..=0x40_0000) => 8,
        (_, ..=0x80_0000) => 4,
        _ => 1,
    }
}

const ARITIES: [usize; 3] = [2, 4, 8];
/// Binary logarithm of the most segments. More than 256 are overhead on any link that is not very slow.
const SEGMENTS_LOG2_MAX: u32 = 8;
