//! Counters, and task lists that counters start: communication that a driver does by itself.
//!
//! A rank makes [`LocalCounters`] in memory that its driver allocated, sends their key to its peers, and reads them with a load.
//! Peers add to one with [`DriverCommand::Count`](crate::driver::DriverCommand::Count), or with a put that counts when its data
//! has arrived. A counter only grows. Thresholds are cumulative, so ranks never have to agree on when a counter may be reset. The
//! owner says with [`DriverCommand::Watch`](crate::driver::DriverCommand::Watch) which threshold it waits for, and is notified by
//! [`Sink::reached`](crate::driver::Sink::reached). Counts that reach no watched threshold wake no thread.
//!
//! Counts of different commands are in no order. A rank that must know that *all* of several puts have arrived waits for their
//! number. Each put adds 1, and the last count adds `2³² - n`, where `n` is the number of puts. The counter is then at a multiple
//! of 2³² exactly when all have arrived, in whatever order.
//!
//! A [`TriggeredTask`] is a command that begins when counters of its rank have reached thresholds, and its completion counts in
//! turn. A list of tasks is posted with [`TaskLists::post_list`](crate::driver::TaskLists::post_list). When all of its tasks have
//! begun, its owner is notified ([`Sink::triggered`](crate::driver::Sink::triggered)), and there is room for the next list. To
//! know that all of it is done, a rank watches a counter. So a schedule of any length goes on while its rank computes, with one
//! wake-up for each list.
//!
//! A driver takes lists if it hands out [`TaskLists`](crate::driver::TaskLists). Some adapters run them by themselves, and the
//! driver for verbs begins their tasks in its turns. For other drivers there is no substitute: if tasks would
//! have to begin in turns, a rank can send messages in these turns just as well, and needs fewer of them than of tasks.

mod combine;
mod counter;
mod scheduler;
mod task;
mod watches;

pub use combine::{CombineOperator, IntegerType, TypedOperator};
pub(crate) use counter::COUNTER_LEN;
#[cfg(all(test, loom))]
pub(crate) use counter::{CounterWord, add, step};
pub use counter::{LocalCounter, LocalCounters, RemoteCounter, RemoteCounters};
pub(crate) use scheduler::{ListEvent, TASKS_MAX, TaskScheduler, WatchRequest, is_scheduler_token};
pub use task::{CounterCondition, PairKey, PutLanding, PutTarget, TaskAction, TriggeredTask};
pub(crate) use watches::ThresholdWatches;

/// Returns how many tasks may wait where there is room for `operations` triggered operations. That is a quarter of `operations`
/// and at most [`LISTED_MAX`], because most tasks need about four. With room for fewer than 64, it is `operations`, but at most
/// eight. The host retries tasks without room.
pub(crate) const fn task_capacity(operations: u32) -> usize {
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

/// Most tasks that may wait: enough for any schedule that is cut into lists, and no burden for an adapter.
const LISTED_MAX: usize = 512;

/// Most bytes of a block that one triggered operation combines. A processor combines a longer one sooner than the atomics of an
/// adapter.
pub(crate) const PIECE_MAX: usize = 2048;

/// Error of a driver without task lists.
pub(crate) const NO_LISTS: &str = "this driver runs no task lists: it hands out no `TaskLists`";
