//! Engines over drivers in this process, in a time that the test owns.

mod alive;
mod hostile;
mod world;
