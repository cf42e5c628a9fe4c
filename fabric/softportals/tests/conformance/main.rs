//! The guarantees of the specification, chapter by chapter, on interfaces that are connected in memory.
#![expect(
    clippy::unwrap_used,
    reason = "what the helpers of a test need is there, or the test fails"
)]

mod atomics;
mod counters;
mod descriptors;
mod events;
mod flow_control;
mod hostile;
mod interfaces;
mod list_entries;
mod match_entries;
mod model;
mod movement;
mod portal_table;
mod search;
mod triggered;
mod unexpected;
mod world;
