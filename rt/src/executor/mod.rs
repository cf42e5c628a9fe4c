//! Executors of futures.
//!
//! - [`block_on()`] runs a future on the caller's thread.
//! - Spawned tasks run on the threads that are in `block_on`, or that drive the runtime on tokio.
//! - [Background futures](BackgroundFuture) run on the threads that wake them.

mod background;
mod block_on;
mod budget;
#[cfg(all(test, loom))]
mod loom_models;
mod parker;
mod sleep;
mod task;

pub use self::{
    background::BackgroundFuture,
    budget::{poll_proceed, proceed},
    task::{AbortedTask, JoinHandle},
};
pub(crate) use self::{
    block_on::{block_on, drain, drives, is_progress_paused, run_tasks, without_turns},
    budget::refill,
    parker::Parker,
    sleep::sleep,
    task::{RuntimeTask, TaskQueue, spawn},
};
