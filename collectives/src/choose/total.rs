//! What all ranks of a group do together. Where they share processors, that counts, and not only what waits for what.

use super::{Shape, forms::Model};
use crate::{
    cost::Machine,
    plan::{
        AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, Reduce, ReduceScatter, Scatter,
        shape::powers,
    },
};

/// Messages of all ranks together, their bytes, and the bytes that are combined or moved in own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    pub(super) messages: f64,
    pub(super) bytes: f64,
    pub(super) reduced: f64,
}

/// The sum over all ranks, exact for groups of a power of two.
pub trait Total {
    /// How much there is to do.
    fn total(self, shape: &Shape) -> Load;
}

impl Load {
    /// So many messages of one length.
    fn of(messages: usize, bytes: f64) -> Self {
        let messages = messages as f64;
        Self {
            messages,
            bytes: messages * bytes,
            reduced: 0.0,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            reduced: self.reduced + other.reduced,
        }
    }

    /// So many times so many bytes.
    fn reducing(self, times: usize, bytes: f64) -> Self {
        Self {
            reduced: self.reduced + times as f64 * bytes,
            ..self
        }
    }

    /// On one node, with all its processors at work, for a collective of so many bytes.
    pub(super) fn time_ns(&self, machine: &Machine, bytes: usize) -> f64 {
        let link = &machine.inside;
        let cold_ns = if bytes > SHORT_MAX { COLD_NS } else { 0.0 };
        let each_ns = 2.0 * link.overhead_ns + cold_ns;
        let reduced_ns = self.reduced / 1024.0 * machine.reduce_ns_per_kib;
        let work_ns = self.messages * each_ns + link.transfer_ns(self.bytes) + reduced_ns;
        work_ns / machine.processors as f64
    }
}

/// What a message costs beyond its bytes where ranks take turns on a processor, and find nothing in its caches when they get it.
/// From `all_reduce` of 1 KiB by 8 ranks on 2 processors, in 14, 24 and 56 messages.
const COLD_NS: f64 = 1500.0;

/// Messages that are not longer are found in a cell, and cost next to nothing.
const SHORT_MAX: usize = 40;

/// A tree down which subtrees get their blocks.
fn scattered(size: usize, block: f64) -> Load {
    let bytes = (0..).zip(Model::levels(size));
    let bytes = bytes.map(|(level, (_, half))| (half << level) as f64 * block);
    Load {
        bytes: bytes.sum(),
        ..Load::of(size - 1, 0.0)
    }
}

/// Every rank to every other one.
fn pairs(size: usize, bytes: f64) -> Load {
    Load::of(size * (size - 1), bytes)
}

/// The ranks that stay after folding to a power of two, the rounds among them, and the ranks that do not stay.
fn folded(size: usize) -> (usize, usize, usize) {
    let rounds = size.ilog2() as usize;
    (1 << rounds, rounds, size - (1 << rounds))
}

/// Halves of the vector, there or back.
fn halves(size: usize, bytes: f64) -> Load {
    let (power, rounds, _) = folded(size);
    Load {
        bytes: (power - 1) as f64 * bytes,
        ..Load::of(power * rounds, 0.0)
    }
}

impl Total for Barrier {
    fn total(self, shape: &Shape) -> Load {
        let size = shape.size;
        match self {
            Self::Dissemination => Load::of(size * powers(size).count(), 0.0),
            Self::Flat => pairs(size, 0.0),
            Self::Binomial | Self::Kary { .. } | Self::Leaders => Load::of(2 * (size - 1), 0.0),
        }
    }
}

impl Total for Bcast {
    fn total(self, shape: &Shape) -> Load {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        match self {
            Self::Binomial | Self::Kary { .. } | Self::Leaders => Load::of(size - 1, bytes),
            Self::Chain { segments } => Load::of((size - 1) * segments, bytes / segments as f64),
            Self::ScatterRing => {
                let part = bytes / size as f64;
                scattered(size, part).and(pairs(size, part))
            }
        }
    }
}

impl Total for Gather {
    fn total(self, shape: &Shape) -> Load {
        match self {
            Self::Binomial => scattered(shape.size, shape.bytes as f64),
            Self::Linear { .. } => Load::of(shape.size - 1, shape.bytes as f64),
        }
    }
}

impl Total for Scatter {
    fn total(self, shape: &Shape) -> Load {
        match self {
            Self::Binomial => scattered(shape.size, shape.bytes as f64),
            Self::Linear { .. } => Load::of(shape.size - 1, shape.bytes as f64),
        }
    }
}

impl Total for AllGather {
    fn total(self, shape: &Shape) -> Load {
        let (size, block) = (shape.size, shape.bytes as f64);
        let rounds = match self {
            Self::Ring => size - 1,
            Self::RecursiveDoubling | Self::Bruck => powers(size).count(),
        };
        Load {
            bytes: pairs(size, block).bytes,
            ..Load::of(size * rounds, 0.0)
        }
    }
}

impl Total for AllToAll {
    fn total(self, shape: &Shape) -> Load {
        let (size, block) = (shape.size, shape.bytes as f64);
        let row = size as f64 * block;
        match self {
            Self::Pairwise { .. } | Self::Xor { .. } => pairs(size, block),
            Self::Bruck => {
                let rounds = powers(size).count();
                let moved = rounds as f64 * row / 2.0;
                Load::of(size * rounds, row / 2.0).reducing(size, moved + 2.0 * row)
            }
            Self::Leaders => Load::of(2 * (size - 1), row),
        }
    }
}

impl Total for Reduce {
    fn total(self, shape: &Shape) -> Load {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        match self {
            Self::Binomial => Load::of(size - 1, bytes).reducing(size - 1, bytes),
            Self::Rabenseifner => {
                let gathered = scattered(size, bytes / size as f64);
                halves(size, bytes).and(gathered).reducing(size - 1, bytes)
            }
        }
    }
}

impl Total for AllReduce {
    fn total(self, shape: &Shape) -> Load {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        let (power, rounds, left) = folded(size);
        let others = Load::of(2 * left, bytes).reducing(left, bytes);
        match self {
            Self::RecursiveDoubling => {
                let count = power * rounds;
                others.and(Load::of(count, bytes).reducing(count, bytes))
            }
            Self::Rabenseifner => {
                let way = halves(size, bytes);
                others.and(way).and(way).reducing(power - 1, bytes)
            }
            Self::Ring => {
                let count = size * (size - 1);
                Load::of(2 * count, bytes / size as f64).reducing(size - 1, bytes)
            }
            Self::Flat => pairs(size, bytes).reducing(size * (size - 1), bytes),
            Self::ReduceBcast | Self::LeadersDoubling | Self::LeadersRabenseifner => {
                Load::of(2 * (size - 1), bytes).reducing(size - 1, bytes)
            }
        }
    }
}

impl Total for ReduceScatter {
    fn total(self, shape: &Shape) -> Load {
        let (size, bytes) = (shape.size, shape.bytes as f64);
        let block = bytes / size as f64;
        let moved = match self {
            Self::RecursiveHalving => halves(size, bytes),
            Self::Pairwise { .. } | Self::Ring => pairs(size, block),
            Self::ReduceAndScatter => Load::of(size - 1, bytes).and(scattered(size, block)),
        };
        moved.reducing(size - 1, bytes)
    }
}
