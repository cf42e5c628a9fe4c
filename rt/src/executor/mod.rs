//! Executors of futures.
//!
//! - [`block_on()`] runs a future on the caller's thread.
//! - Spawned tasks run on the threads that are in `block_on`, or that drive the runtime on tokio.
//! - [Courses](Course) run on the threads that wake them.

mod block_on;
mod budget;
mod background;
#[cfg(all(test, loom))]
mod loom_models;
mod parker;
mod sleep;
mod task;

pub(crate) use self::{
    block_on::{block_on, drain, drives, is_still, run_tasks, without_turns},
    budget::refill,
    parker::Parker,
    sleep::sleep,
    task::{Queue, Task, spawn},
};
pub use self::{
    budget::{poll_proceed, proceed},
    background::Course,
    task::JoinHandle,
};
