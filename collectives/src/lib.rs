//! Non-blocking collectives: [`Collectives`] adds them to a communicator. Each proceeds by itself from its call to its end.
//!
//! A call becomes a [`plan`], which is a collective as data. The plan's algorithm is [chosen](mod@choose) by [`cost`], and the
//! plan is made a [program](plan::Plan::program), which the runtime runs. A repeated call reuses its program. The crate also has
//! sums with the [same bits](reproducible) for every plan.
#![forbid(unsafe_code)]

mod block_layout;
mod blocks;
mod cache;
mod call;
mod call_spec;
pub mod choose;
mod collectives;
pub mod cost;
mod graph;
mod neighborhood;
mod neighborhood_key;
pub mod op;
pub mod persistent;
pub mod plan;
mod ragged;
mod reduction;
pub mod reproducible;
mod rooted;
mod start;
mod tuning;

pub use self::{
    blocks::{AllToAllOp, Block, Blocks, ByBlocks},
    collectives::Collectives,
    graph::Graph,
    neighborhood::{Edges, Neighborhood},
    op::{CollectiveOp, ReductionOp},
    ragged::RaggedOp,
    reduction::{Reduction, ReproducibleSum},
    tuning::{Tuned, Tuning, machine_of, set_for},
};
