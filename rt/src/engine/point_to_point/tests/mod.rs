//! Tests of point-to-point alone: no rank here has collectives, windows or recovery.

mod alone;
mod arriving;
pub(in crate::engine) mod held_back;
mod placing;
mod random_messages;
pub(in crate::engine) mod scripted_driver;
