//! Engines over drivers in this process, in a time that the test owns.

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
