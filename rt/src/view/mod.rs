//! The view of a rank: what the rank waits for, readable by other processes at any time.
//!
//! Each rank process has one memfd named `ripstop-view`. Another process of the same user finds it under `/proc/PID/fd` and reads
//! it without any help of the rank. So a view is readable while its rank is stopped, spins or holds the engine's lock. A process
//! that has opened the view before can read it after the rank was killed.
//!
//! - [`RankSnapshot`]: what a view says, as plain data.
//! - [`layout`](mod@layout): the bytes of the memfd, written by the rank and read by any process, which takes nothing for
//!   granted.
//! - `publisher`: when a rank writes. A thread that falls asleep writes a snapshot if the last one is at least [`PERIOD`] old.
//!   Otherwise it shortens its sleep, and writes when that has passed. So operations cost nothing, and after `PERIOD` at most, a
//!   rank that waits has a true view. A rank that computes has one too, because its agent sleeps meanwhile and says so. A rank
//!   that spins through short sleeps of its own has one, because a sleep publishes where it begins.
//! - [`RankFlight`]: the last operations that the rank has begun and ended, written while they go on.
//! - [`report`](mod@report): what is wrong with a job, from the views of its ranks. Pure.
//!
//! A view cannot say when an operation began, only when it was first seen in flight. And a rank without an agent that computes
//! shows its last snapshot, marked as not current.

mod flight;
mod in_flight;
pub mod layout;
pub mod look;
mod process_stat;
mod publisher;
pub mod report;
mod snapshot;

pub use flight::{FLIGHT_RECORDS, FlightEvent, FlightKind, FlightRecord, RankFlight};
pub(crate) use flight::{FlightNote, FlightRecorder};
pub use in_flight::OperationInFlight;
pub use process_stat::ProcessStat;
pub(crate) use publisher::ViewPublisher;
pub use snapshot::{
    PublishedComm, PublishedLock, PublishedPeer, PublishedSleep, PublishedWait, RankPhase,
    RankSnapshot, RecordedTotals, StoredGroup, WaitKind,
};

use std::time::Duration;

/// Least time between two snapshots of a rank. What one takes depends on the number of operations and of stored messages: some
/// microseconds for a few, more for many thousands, because each of them is visited.
pub const PERIOD: Duration = Duration::from_millis(100);
