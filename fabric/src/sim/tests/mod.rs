//! Claims about simulated time: what is heard when, and that it is the same each time.

mod faults;
mod guards;
mod lists;
mod lives;
mod rails;
mod stage;
mod times;
