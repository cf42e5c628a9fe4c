//! What this driver did with its adapter, counted.

use std::sync::Arc;

use crate::{
    counters::{Count, Counters},
    lanes::RAILS_MAX,
};

/// Counts that tests assert on and `ripstop info` prints.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PortalsCounters {
    /// What all drivers count.
    pub all: Arc<Counters>,
    /// Of the events, ends of own operations.
    pub ends: Count,
    /// Bytes that were kept for each peer when the driver was connected.
    pub peer_bytes: Count,
    /// Of the words about task lists, tasks that the host had to do.
    pub aided: Count,
    /// Memory that was lent to messages, each time.
    pub lent: Count,
    /// Messages that a peer had no room for, each time.
    pub refused: Count,
    /// Times that this rank had no room, and let messages in again.
    pub enabled: Count,
    /// Arrivals that were out of their order, and were forgotten because they come again.
    pub repeated: Count,
    /// Arrivals that no peer of ours can have sent.
    pub nonsense: Count,
    /// Pieces of long puts and gets that went by several rails.
    pub pieces: Count,
    /// Bytes that each rail was given to move, of messages and of pieces.
    pub by_rail: [Count; RAILS_MAX],
    /// Rails to a peer that this rank has found not to work.
    pub lanes_failed: Count,
    /// Waits that the library refused: its queues were looked at every millisecond instead.
    pub unwaited: Count,
    /// Times that a queue had lost events.
    pub lost: Count,
}

impl PortalsCounters {
    /// With what all drivers count in `all`.
    #[must_use]
    pub fn of(all: &Arc<Counters>) -> Self {
        Self {
            all: Arc::clone(all),
            ..Self::default()
        }
    }
}
