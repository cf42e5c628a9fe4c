//! Tests of windows alone: no rank here has messages, collectives or recovery.

mod alone;
mod counts;
mod random_epochs;
