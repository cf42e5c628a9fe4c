//! Non-blocking collectives: [`Collectives`] gives them to a communicator, and each goes on by itself from its call to its end.
//!
//! A call is made into a [`plan`], collectives as data, by what [chooses](mod@choose) among algorithms by what they [`cost`];
//! a plan is [lowered](lower()) to a program, which the runtime carries out. Calls that are repeated find their program again.
//! Sums that have the [same bits](reproducible) whatever the plan are here too.
#![forbid(unsafe_code)]

mod around;
mod ask;
mod blocks;
mod cache;
mod call;
pub mod choose;
mod collectives;
pub mod cost;
mod graph;
mod lower;
mod neighbourhood;
pub mod op;
pub mod persistent;
pub mod plan;
mod ragged;
mod reduction;
pub mod reproducible;
mod start;
mod tuning;

pub use self::{
    blocks::{AllToAllOp, Block, Blocks, ByBlocks},
    collectives::Collectives,
    graph::Graph,
    lower::lower,
    neighbourhood::{Edges, Neighborhood},
    op::{CollectiveOp, ReductionOp},
    ragged::RaggedOp,
    reduction::{Reduction, ReproducibleSum},
    tuning::{Tuned, Tuning, machine_of, set_for},
};
