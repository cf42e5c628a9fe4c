//! Computes the work of all ranks of a group together. If ranks share processors, this work decides how long a collective
//! takes, and not only which step waits for which.

use super::{Shape, closed_forms::GroupModel};
use crate::{
    cost::Machine,
    plan::{
        AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, Reduce, ReduceScatter, Scatter,
        shape::powers,
    },
};

/// Messages of all ranks together, and the bytes that they combine and copy locally.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupTraffic {
    /// Numbers of messages, each with their length in bytes.
    pub(super) messages: Vec<(usize, f64)>,
    pub(super) reduced: f64,
    pub(super) copied: f64,
    /// True if no message waits for another one.
    pub(super) at_once: bool,
    /// True if data only moves: a rank sends different data to each rank, or sends and receives, and nothing is reduced.
    pub(super) moves: bool,
}

/// Totals over all ranks, exact for groups of a power of two. Algorithms in which one rank of each node communicates for the
/// others are not considered, because they are not used if all ranks are on one node.
pub trait TotalTraffic {
    /// Returns the work of all ranks.
    fn total(self, shape: &Shape) -> GroupTraffic;
}

impl GroupTraffic {
    /// Returns a load of `messages` messages of one length.
    fn of(messages: usize, bytes: f64) -> Self {
        Self {
            messages: vec![(messages, bytes)],
            ..Self::default()
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.messages.extend(other.messages);
        Self {
            messages: self.messages,
            reduced: self.reduced + other.reduced,
            copied: self.copied + other.copied,
            at_once: false,
            moves: false,
        }
    }

    /// Marks the load: all messages leave when the collective begins.
    fn at_once(self) -> Self {
        Self {
            at_once: true,
            ..self
        }
    }

    /// Marks the load: all messages differ, or travel in both directions.
    fn moving(self) -> Self {
        Self {
            moves: true,
            ..self
        }
    }

    /// Adds `times` reductions of `bytes` bytes.
    fn reducing(self, times: usize, bytes: f64) -> Self {
        Self {
            reduced: self.reduced + times as f64 * bytes,
            ..self
        }
    }

    /// Adds `times` copies of `bytes` bytes.
    fn copying(self, times: usize, bytes: f64) -> Self {
        Self {
            copied: self.copied + times as f64 * bytes,
            ..self
        }
    }

    /// Returns the time on one node, with all its processors at work.
    pub(super) fn time_ns(&self, machine: &Machine) -> f64 {
        let link = &machine.inside;
        let slot_bytes = if self.moves {
            machine.slot_moved_bytes
        } else {
            machine.slot_bytes
        };
        let message = |(count, bytes): &(usize, f64)| {
            let by_cell = self.at_once && *bytes <= slot_bytes as f64;
            let cold_ns = if by_cell { 0.0 } else { COLD_NS };
            *count as f64 * (2.0 * link.overhead_ns + cold_ns + link.transfer_ns(*bytes))
        };
        let messages_ns: f64 = self.messages.iter().map(message).sum();
        let reduced_ns = self.reduced / 1024.0 * machine.reduce_ns_per_kib;
        let copied_ns = self.copied / 1024.0 * machine.copy_ns_per_kib;
        (messages_ns + reduced_ns + copied_ns) / machine.processors as f64
    }
}

/// Time per message, besides its bytes, if ranks take turns on a processor and find cold caches each time. From `all_reduce` of
/// 1 KiB by 8 ranks on 2 processors, in 14, 24 and 56 messages.
const COLD_NS: f64 = 1500.0;

/// Returns the load of a tree down which each subtree gets its blocks.
fn scattered(size: usize, block: f64) -> GroupTraffic {
    let messages = (0..)
        .zip(GroupModel::levels(size))
        .map(|(level, (_, half))| {
            // If the size is no power of two, the last level is not full.
            let count = (1 << level).min(size - (1 << level));
            (count, half as f64 * block)
        });
    GroupTraffic {
        messages: messages.collect(),
        ..GroupTraffic::default()
    }
}

/// Returns the load of a message from every rank to every other rank.
fn pairs(size: usize, bytes: f64) -> GroupTraffic {
    GroupTraffic::of(size * (size - 1), bytes)
}

/// Returns the ranks that remain after folding to a power of two, the rounds among them, and the ranks that do not remain.
fn folded(size: usize) -> (usize, usize, usize) {
    let rounds = size.ilog2() as usize;
    (1 << rounds, rounds, size - (1 << rounds))
}

/// Returns the load of exchanging halves of the vector, in one direction.
fn halves(size: usize, bytes: f64) -> GroupTraffic {
    let (power, _, _) = folded(size);
    let half = |distance| (power, bytes * distance as f64 / power as f64);
    GroupTraffic {
        messages: powers(power).map(half).collect(),
        ..GroupTraffic::default()
    }
}

/// Returns the ranks of a tree that have a child.
const fn inner(size: usize) -> usize {
    size.div_ceil(2)
}

impl TotalTraffic for Barrier {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let size = shape.size;
        match self {
            Self::Dissemination => GroupTraffic::of(size * powers(size).count(), 0.0),
            Self::Flat => pairs(size, 0.0).at_once(),
            Self::Binomial | Self::Kary { .. } | Self::Leaders => {
                GroupTraffic::of(2 * (size - 1), 0.0)
            }
        }
    }
}

impl TotalTraffic for Bcast {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        let tree = GroupTraffic::of(size - 1, bytes);
        match self {
            Self::Kary { arity } if arity.saturating_add(1) >= size => tree.at_once(),
            Self::Binomial | Self::Kary { .. } | Self::Leaders => tree,
            Self::Chain { segments } => {
                GroupTraffic::of((size - 1) * segments, bytes / segments as f64)
            }
            Self::ScatterRing => {
                let part = bytes / size as f64;
                scattered(size, part).and(pairs(size, part))
            }
        }
    }
}

impl TotalTraffic for Gather {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, block) = (shape.size, shape.bytes as f64);
        match self {
            Self::Binomial => scattered(size, block).copying(inner(size), block),
            Self::Linear { .. } => GroupTraffic::of(size - 1, block)
                .copying(1, block)
                .at_once(),
        }
    }
}

impl TotalTraffic for Scatter {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, block) = (shape.size, shape.bytes as f64);
        match self {
            Self::Binomial => scattered(size, block).copying(inner(size), block),
            Self::Linear { .. } => {
                let all = GroupTraffic::of(size - 1, block)
                    .copying(1, block)
                    .at_once();
                // With two ranks there is a single message, which counts like one that is the same for all ranks.
                if size > 2 { all.moving() } else { all }
            }
        }
    }
}

impl TotalTraffic for AllGather {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, block) = (shape.size, shape.bytes as f64);
        let rounds = || powers(size).map(|distance| distance.min(size - distance));
        let sent = match self {
            Self::Ring => pairs(size, block),
            Self::RecursiveDoubling => GroupTraffic {
                messages: rounds()
                    .map(|blocks| (size, blocks as f64 * block))
                    .collect(),
                ..GroupTraffic::default()
            },
            // A message that crosses the end of the output is cut in two; each part counts as half.
            Self::Bruck => GroupTraffic {
                messages: rounds()
                    .flat_map(|blocks| {
                        let (cut, bytes) = (blocks - 1, blocks as f64 * block);
                        [(size - cut, bytes), (2 * cut, bytes / 2.0)]
                    })
                    .collect(),
                ..GroupTraffic::default()
            },
        };
        sent.copying(size, block)
    }
}

impl TotalTraffic for AllToAll {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, block) = (shape.size, shape.bytes as f64);
        let row = size as f64 * block;
        match self {
            Self::Pairwise { .. } | Self::Xor { .. } => {
                let all = pairs(size, block).copying(size, block);
                all.at_once().moving()
            }
            Self::Bruck => {
                let rounds = powers(size).count();
                let moved = rounds as f64 * row / 2.0;
                GroupTraffic::of(size * rounds, row / 2.0).copying(size, moved + 2.0 * row)
            }
            Self::Leaders => GroupTraffic::of(2 * (size - 1), row),
        }
    }
}

impl TotalTraffic for Reduce {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        match self {
            Self::Binomial => GroupTraffic::of(size - 1, bytes)
                .reducing(size - 1, bytes)
                .copying(inner(size), bytes),
            Self::Rabenseifner => {
                let gathered = scattered(size, bytes / size as f64);
                let all = halves(size, bytes).and(gathered);
                all.reducing(size - 1, bytes).copying(size, bytes)
            }
        }
    }
}

impl TotalTraffic for AllReduce {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        let (power, rounds, left) = folded(size);
        let others = GroupTraffic::of(2 * left, bytes).reducing(left, bytes);
        match self {
            Self::RecursiveDoubling => {
                let count = power * rounds;
                others.and(GroupTraffic::of(count, bytes).reducing(count, bytes))
            }
            Self::Rabenseifner => {
                let way = || halves(size, bytes);
                others.and(way()).and(way()).reducing(power - 1, bytes)
            }
            Self::Ring => {
                let count = size * (size - 1);
                GroupTraffic::of(2 * count, bytes / size as f64).reducing(size - 1, bytes)
            }
            Self::Flat => pairs(size, bytes)
                .reducing(size * (size - 1), bytes)
                .copying(size - 1, bytes)
                .at_once(),
            Self::ReduceBcast | Self::LeadersDoubling | Self::LeadersRabenseifner => {
                GroupTraffic::of(2 * (size - 1), bytes).reducing(size - 1, bytes)
            }
        }
    }
}

impl TotalTraffic for ReduceScatter {
    fn total(self, shape: &Shape) -> GroupTraffic {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        let block = bytes / size as f64;
        let moved = match self {
            Self::RecursiveHalving => halves(size, bytes).copying(size, bytes + block),
            Self::Pairwise { .. } => pairs(size, block).copying(size, block).at_once(),
            Self::Ring => pairs(size, block),
            Self::ReduceAndScatter => {
                let down = scattered(size, block).copying(inner(size), block);
                GroupTraffic::of(size - 1, bytes)
                    .and(down)
                    .copying(inner(size), bytes)
            }
        };
        moved.reducing(size - 1, bytes)
    }
}
