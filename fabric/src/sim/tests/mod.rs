//! Tests of simulated time: what happens when, and that it is the same in each run.

mod faults;
mod guards;
mod lists;
mod lives;
mod rails;
mod segments;
mod stage;
mod times;
