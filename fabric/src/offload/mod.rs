//! Counters, and task lists that counters set going: communication that a driver does by itself.
//!
//! A rank makes [`Counters`] in memory that its driver allocated, sends their key to its peers, and reads them with a load.
//! Peers add to one with [`Command::Count`](crate::driver::Command::Count), or with a put that counts when its data is there.
//! A counter only grows: a threshold is cumulative, and nobody ever has to agree with others on when a counter may be reset. The
//! owner says with [`Command::Watch`](crate::driver::Command::Watch) which threshold it waits for, and hears of it in
//! [`Sink::reached`](crate::driver::Sink::reached); counts that reach no watched threshold wake nobody.
//!
//! Counts of different commands are in no order. Whoever must know that *all* of several puts are there waits for their number:
//! let each put add 1, and let the last word add `2³² - n` where `n` is how many there were, so that the counter is at a multiple
//! of 2³² exactly when all have come, in whatever order they came.
//!
//! A [`Task`] is a command that begins when counters of its rank have come far enough, and what it does counts in turn. A list of
//! tasks is posted with [`Command::List`](crate::driver::Command::List), and when all of them have begun, its owner is told
//! ([`Sink::triggered`](crate::driver::Sink::triggered)): then there is room for the next list. Whoever wants to know that all is
//! done watches a counter for it. So a schedule of any length goes on while its rank computes, with one wake-up for each list.
//!
//! Adapters run lists by themselves where [`Caps::triggered_max`](crate::driver::Caps::triggered_max) says so. For other drivers
//! there is no substitute: whoever would begin tasks in turns can as well send messages in them, and that takes fewer words.

mod combine;
mod counter;
mod lists;
mod task;
mod watches;

pub use combine::{Combination, Integer, Operator};
pub(crate) use counter::CELL_LEN;
pub use counter::{Counter, Counters, RemoteCounter, RemoteCounters};
#[cfg(all(test, loom))]
pub(crate) use counter::{Word, add, step};
pub(crate) use lists::{Lists, Order, TASKS_MAX, Told, is_own};
pub use task::{Action, Landing, Pair, Target, Task, When};
pub(crate) use watches::Watches;

/// Tasks that are let wait where so many triggered operations can: one for four of them, of which most tasks need about as many.
/// Where there are only a few, a task for each, as long as they are no more than eight: what finds no room is the host's to look
/// at.
pub(crate) const fn tasks_for(operations: u32) -> usize {
    match operations {
        0..8 => operations as usize,
        8..64 => 8,
        64.. => {
            let tasks = operations as usize / 4;
            if tasks < LISTED_MAX {
                tasks
            } else {
                LISTED_MAX
            }
        }
    }
}

/// Enough for any schedule that is cut into lists, and no burden for an adapter.
const LISTED_MAX: usize = 512;

/// Bytes of a block that one triggered operation combines, at the most: a longer one is combined sooner by a processor than by
/// the atomics of an adapter.
pub(crate) const PIECE_MAX: usize = 2048;

/// What a driver without task lists says to one.
pub(crate) const NO_LISTS: &str = "this driver runs no task lists: its `Caps::triggered_max` is 0";

/// What a driver without names says to one.
pub(crate) const NO_NAMES: &str = "this driver has no names: `Caps::names` says so";
