//! Counters of the Portals driver.

use std::sync::Arc;

use crate::{
    counters::{DriverStats, StatCount},
    lanes::RAILS_MAX,
};

/// Counters that tests assert on and `ripstop info` prints.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PortalsCounters {
    /// Counters that all drivers have.
    pub all: Arc<DriverStats>,
    /// Events that were completions of own operations.
    pub ends: StatCount,
    /// Bytes kept for each peer when the driver was connected.
    pub peer_bytes: StatCount,
    /// Task-list notifications for tasks that the host had to do.
    pub aided: StatCount,
    /// Loans of memory to messages.
    pub lent: StatCount,
    /// Messages refused by a peer for lack of room.
    pub refused: StatCount,
    /// Times this rank lacked room and then admitted messages again.
    pub enabled: StatCount,
    /// Arrivals dropped because they were out of order; their senders resend them.
    pub repeated: StatCount,
    /// Arrivals that no peer can have sent correctly.
    pub nonsense: StatCount,
    /// Pieces of long puts and gets that were split over rails.
    pub pieces: StatCount,
    /// Bytes of messages and pieces passed to each rail.
    pub by_rail: [StatCount; RAILS_MAX],
    /// Lanes to peers that this rank found to have failed.
    pub lanes_failed: StatCount,
    /// Waits that the library refused. The queues were polled every millisecond instead.
    pub unwaited: StatCount,
    /// Times a queue had lost events.
    pub lost: StatCount,
}

impl PortalsCounters {
    /// Returns counters that share `all` with other drivers.
    #[must_use]
    pub fn of(all: &Arc<DriverStats>) -> Self {
        Self {
            all: Arc::clone(all),
            ..Self::default()
        }
    }
}
