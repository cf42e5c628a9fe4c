//! One-sided windows.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

mod fences;
mod pscw;
#[path = "../support/ranks.rs"]
mod ranks;
mod worlds;
