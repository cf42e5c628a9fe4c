//! Tests of engines over drivers in this process, with a clock that the test controls.

mod alive;
mod closing;
mod doubts;
mod ends;
mod headers;
mod hostile;
mod lists;
mod placing;
mod programs;
mod recovery;
mod windows;
mod world;
