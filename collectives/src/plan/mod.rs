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
//! Steps of these plans wait for earlier steps only. Two steps that may run at the same time touch no common element, unless both
//! only read it, and no step writes the input. [`check`] runs the plans of a whole group without a network.

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
/// Plans and their steps, whose spans count elements here. Their bytes follow when a program is made of a plan.
pub use ripstop_rt::internal::offload::{
    BufferSpan, CommRank, LOOKAHEAD_MIN, OperandSide, Plan, ProgramBuffer, ProgramStepId,
    StepAction,
};
pub use scan::{exscan, scan};
pub use scatter::Scatter;
