//! Runs futures: [`block_on()`] on the caller's thread, and spawned tasks on whatever threads are in `block_on`, or drive the
//! runtime on tokio.

mod block_on;
mod budget;
#[cfg(all(test, loom))]
mod loom_models;
mod parker;
mod sleep;
mod task;

pub use self::{
    block_on::without_turns,
    budget::{poll_proceed, proceed},
    task::JoinHandle,
};
pub(crate) use self::{
    block_on::{block_on, drain, drives, is_still, run_tasks},
    budget::refill,
    parker::Parker,
    sleep::sleep,
    task::{Queue, Task, spawn},
};
