//! Hand-written collectives that the engine runs by itself.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

mod failing;
#[path = "../support/faulty.rs"]
mod faulty;
mod going_on;
mod make;
#[path = "../support/ranks.rs"]
mod ranks;
mod results;
