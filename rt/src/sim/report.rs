//! Result of a simulation.

use std::time::Duration;

use ripstop_fabric::sim::Stats;

/// Result of a simulation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report<T> {
    /// Return value of each rank; `None` for a rank killed by a fault.
    pub results: Vec<Option<T>>,
    /// Virtual time from the start of all ranks to the end of the last rank.
    pub time: Duration,
    /// Hash of all events in order. The same seed gives the same digest on any machine.
    pub digest: u64,
    /// Counters of the fabric.
    pub stats: Stats,
    /// Memory of the runtimes when their ranks ended.
    pub memory: Memory,
    /// Number of operations that were neither complete nor canceled when their ranks ended, because their futures were
    /// forgotten.
    pub leaked: u64,
}

/// Memory of the runtimes and drivers of all ranks, without memory of the program itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Total, in bytes.
    pub bytes: u64,
    /// Pairs of ranks in contact, counted on both sides.
    pub peers: u64,
    /// Part of the memory that is for these pairs, in bytes.
    pub peer_bytes: u64,
}

impl Memory {
    /// Returns the bytes for each peer in contact, rounded down; 0 without any.
    #[must_use]
    pub fn bytes_per_peer(&self) -> u64 {
        self.peer_bytes.checked_div(self.peers).unwrap_or(0)
    }
}
