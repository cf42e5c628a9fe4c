//! Runs futures: [`block_on()`] on the caller's thread, and spawned tasks on whatever threads are in `block_on`.

mod block_on;
#[cfg(all(test, loom))]
mod loom_models;
mod parker;
mod sleep;
mod task;

pub use self::task::JoinHandle;
pub(crate) use self::{
    block_on::{block_on, drain, drives},
    parker::Parker,
    sleep::sleep,
    task::{Queue, Task, spawn},
};
