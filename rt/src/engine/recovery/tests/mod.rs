//! Tests of recovery alone: no rank here has messages, collectives or windows.

mod alone;
mod random_failures;
mod revocations;
