//! Tests of point-to-point alone: no rank here has collectives, windows or recovery.

mod alone;
mod arriving;
mod random_messages;
