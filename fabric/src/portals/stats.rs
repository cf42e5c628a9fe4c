//! Counters of the Portals driver.

use std::sync::Arc;

use crate::{
    counters::{Count, Counters},
    lanes::RAILS_MAX,
};

/// Counters that tests assert on and `ripstop info` prints.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PortalsCounters {
    /// Counters that all drivers have.
    pub all: Arc<Counters>,
    /// Events that were completions of own operations.
    pub ends: Count,
    /// Bytes kept for each peer when the driver was connected.
    pub peer_bytes: Count,
    /// Task-list notifications for tasks that the host had to do.
    pub aided: Count,
    /// Loans of memory to messages.
    pub lent: Count,
    /// Messages refused by a peer for lack of room.
    pub refused: Count,
    /// Times this rank lacked room and then admitted messages again.
    pub enabled: Count,
    /// Arrivals dropped because they were out of order; their senders resend them.
    pub repeated: Count,
    /// Arrivals that no peer can have sent correctly.
    pub nonsense: Count,
    /// Pieces of long puts and gets that were split over rails.
    pub pieces: Count,
    /// Bytes of messages and pieces passed to each rail.
    pub by_rail: [Count; RAILS_MAX],
    /// Lanes to peers that this rank found to have failed.
    pub lanes_failed: Count,
    /// Waits that the library refused. The queues were polled every millisecond instead.
    pub unwaited: Count,
    /// Times a queue had lost events.
    pub lost: Count,
}

impl PortalsCounters {
    /// Returns counters that share `all` with other drivers.
    #[must_use]
    pub fn of(all: &Arc<Counters>) -> Self {
        Self {
            all: Arc::clone(all),
            ..Self::default()
        }
    }
}
