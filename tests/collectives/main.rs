//! Collectives, as users call them.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

mod alone;
mod combined;
mod elements;
mod failing;
mod forms;
#[path = "../support/given.rs"]
mod given;
mod going_on;
mod into;
mod killed;
mod neighbors;
mod nodes;
mod ragged;
#[path = "../support/ranks.rs"]
mod ranks;
mod results;
mod simulated;
mod torn;
mod wakes;
mod words;
