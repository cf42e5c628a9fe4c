//! One-sided windows.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

mod dynamic;
mod ends;
#[path = "../support/faulty.rs"]
mod faulty;
mod fences;
mod graphs;
mod making;
mod node;
mod numbers;
mod overlap;
mod passive;
mod pscw;
#[path = "../support/ranks.rs"]
mod ranks;
mod worlds;
