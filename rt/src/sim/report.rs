//! What a simulation comes to.

use std::time::Duration;

use ripstop_fabric::sim::Stats;

/// What came of a simulation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report<T> {
    /// What each rank returned; `None` for one that a fault killed.
    pub results: Vec<Option<T>>,
    /// Virtual time from the start of all ranks to the end of the last.
    pub time: Duration,
    /// A hash of everything that happened, in order: the same seed gives the same digest, on any machine.
    pub digest: u64,
    /// What the fabric counted.
    pub stats: Stats,
    /// What the runtimes took at their ends.
    pub memory: Memory,
    /// Operations that were neither complete nor cancelled when their ranks ended: futures that were forgotten.
    pub leaked: u64,
}

/// Memory of all ranks' runtimes and drivers, without what the program itself holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Bytes.
    pub bytes: u64,
    /// Pairs of ranks in contact, counted from both sides.
    pub peers: u64,
    /// Bytes that are there for these.
    pub peer_bytes: u64,
}

impl Memory {
    /// Bytes for each peer in contact, rounded down; 0 without any.
    #[must_use]
    pub fn bytes_per_peer(&self) -> u64 {
        self.peer_bytes.checked_div(self.peers).unwrap_or(0)
    }
}
