//! Non-blocking collectives as offloaded task lists. Today the runtime carries simple ones (`ripstop_rt`); here are their
//! successors' [plans](plan).
#![forbid(unsafe_code)]

pub mod plan;
