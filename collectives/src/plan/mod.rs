//! Plans: collectives as data.
//!
//! A [`Plan`] is one rank's part of one collective: a list of [steps](StepAction) that send, receive, copy and combine spans of
//! its memory, each after the steps it [waits for](Plan::after). Making a plan needs no network, no clock and no other rank. It
//! takes time and memory in proportion to its own steps. An executor of plans keeps three rules:
//!
//! - A step begins when all the steps it waits for have completed. Steps that are not ordered may run at the same time.
//! - The k-th send from one rank to another, in the order of the list, matches the k-th receive there from it.
//! - A step may be held back until a few steps before it in the list have completed. Every plan here completes if each rank
//!   looks at [`LOOKAHEAD_MIN`] unfinished steps or more at a time, even if no send completes before its receive has begun. So
//!   a long plan can be cut into bounded lists.
//!
//! Each collective is an enum of algorithms with a method `plan`. An algorithm that does not fit returns [`UnfitPlan`] (a power
//! of two is needed, the operation does not commute, …); the caller then chooses another. All lengths are in elements. The docs
//! give costs in the notation of Hockney and of Thakur, Rabenseifner and Gropp (2005): α for a message, β for an element that
//! travels, γ for an element that is combined, with p ranks, n elements, and lg the logarithm to base 2, rounded up.
//!
//! [`check`] runs the plans of a whole group without a network.

use std::ops::Range;

mod allgather;
mod allreduce;
mod alltoall;
mod barrier;
mod bcast;
mod blocks;
mod builder;
pub mod check;
mod gather;
mod names;
mod neighborhood;
mod rank_layout;
mod reduce;
mod reduce_scatter;
mod scan;
mod scatter;
pub(crate) mod shape;
#[cfg(test)]
mod tests;

pub use allgather::AllGather;
pub use allreduce::AllReduce;
pub use alltoall::AllToAll;
pub use barrier::Barrier;
pub use bcast::Bcast;
pub(crate) use bcast::SEGMENTS_MAX;
pub use blocks::BlockPartition;
pub use gather::Gather;
pub use names::{OperandOrder, UnfitPlan, UnknownAlgorithm};
pub(crate) use neighborhood::self_blocks;
pub use neighborhood::{EdgePairing, NeighborEdge, neighbors};
pub use rank_layout::{NodeLayout, RankLayout};
pub use reduce::Reduce;
pub use reduce_scatter::ReduceScatter;
/// The steps of programs, with spans that count elements here. Their bytes follow when a program is made of a plan.
pub use ripstop_rt::internal::offload::{
    BufferSpan, CommRank, OperandSide, ProgramBuffer, ProgramStepId, StepAction,
};
pub use scan::{exscan, scan};
pub use scatter::Scatter;

/// The fewest unfinished steps of each rank, counted from the first one in the order of the list, that must be in flight at a
/// time for a collective to complete. Ranks exchange at most two sends and two receives before they wait.
pub const LOOKAHEAD_MIN: usize = 4;

/// One rank's part of one collective.
///
/// A plan made by this module guarantees that its steps wait for earlier steps only, that no two steps that may run at the same
/// time touch the same element unless both only read it, and that the input is never written. It does not guarantee that the
/// other ranks follow plans of the same collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    rank: usize,
    size: usize,
    steps: Vec<PlanStep>,
    /// The steps that each step waits for, concatenated.
    edges: Vec<ProgramStepId>,
    scratch: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlanStep {
    action: StepAction,
    after: Range<usize>,
}

impl Plan {
    /// Returns the rank whose plan it is.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks in the group.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of steps.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the scratch memory that the plan needs, in elements.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        self.scratch
    }

    /// Returns the steps, in the order of the list; every step comes after those it waits for.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = (ProgramStepId, &StepAction)> {
        let steps = self.steps.iter().enumerate();
        steps.map(|(index, step)| (ProgramStepId::new(index), &step.action))
    }

    /// Returns the action of a step.
    ///
    /// # Panics
    /// Panics for a step of a longer plan.
    #[must_use]
    pub fn action(&self, step: ProgramStepId) -> &StepAction {
        &self.steps[step.index()].action
    }

    /// Returns the steps that must complete before this one begins.
    ///
    /// # Panics
    /// Panics for a step of a longer plan.
    #[must_use]
    pub fn after(&self, step: ProgramStepId) -> &[ProgramStepId] {
        &self.edges[self.steps[step.index()].after.clone()]
    }

    const fn empty(rank: usize, size: usize) -> Self {
        Self {
            rank,
            size,
            steps: Vec::new(),
            edges: Vec::new(),
            scratch: 0,
        }
    }

    /// Adds a step that waits for the edges added since the last one.
    fn push(&mut self, action: StepAction) -> ProgramStepId {
        let first = self.steps.last().map_or(0, |step| step.after.end);
        self.steps.push(PlanStep {
            action,
            after: first..self.edges.len(),
        });
        ProgramStepId::new(self.steps.len() - 1)
    }
}
