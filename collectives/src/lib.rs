//! Non-blocking collectives as offloaded task lists. Today the runtime carries simple ones (`ripstop_rt`); here are their
//! successors' [plans](plan), what [chooses](choose) among them by what they [cost], and sums that have the
//! [same bits](reproducible) whatever the plan.
#![forbid(unsafe_code)]

pub mod choose;
pub mod cost;
pub mod plan;
pub mod reproducible;

pub use reproducible::ReproducibleSum;
