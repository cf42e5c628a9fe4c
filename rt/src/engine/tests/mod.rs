//! Tests of engines over drivers in this process, with a clock that the test controls.

mod calm;
mod closing;
mod ends;
mod first_arrival;
mod headers;
mod hostile;
mod in_place;
mod lent_buffers;
mod lists;
mod liveness;
mod message_runs;
mod programs;
mod recovery;
mod stall_probe;
mod windows;
mod world;
