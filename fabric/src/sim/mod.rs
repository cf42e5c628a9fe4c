//! A simulated cluster: virtual time, thousands of ranks in one process, and randomness from a seed.
//!
//! The main types are:
//!
//! - [`Cluster`]: everything that happens in the network, and when. Events are ordered by time, then by the order in which they
//!   were planned (`heap`). Hosts are in `host`, adapters and links in `network`, and packets and operations in flight in
//!   `packets` and `op_table`. `world` joins them.
//! - [`SimDriver`]: a rank's driver (`driver`).
//! - [`Model`]: what everything costs.
//! - [`Faults`]: what goes wrong.
//!
//! Time is in whole picoseconds. The simulator reads no clock, and no floating-point number decides when something happens. The
//! same seed and the same program therefore give the same [`digest`](Cluster::digest) on any machine.
//!
//! An executor of ranks calls [`advance`](Cluster::advance) until a host must run, runs its runnable tasks, and calls
//! [`end_turn`](Cluster::end_turn). Programs that use drivers only let the cluster advance itself
//! ([`ClusterConfig::free_running`]).

mod bells;
mod config;
mod connections;
mod counting;
mod digest;
mod driver;
mod exports;
pub mod faults;
mod goback;
mod heap;
mod host;
mod link;
mod lives;
mod model;
mod named_regions;
mod network;
mod onesided;
mod op_table;
mod packets;
mod segments;
mod slab;
mod stats;
mod task_costs;
mod tasks;
mod wire;
mod world;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use self::world::SimWorld;
pub use self::{
    config::{ClusterConfig, ConfigError, Transport},
    driver::SimDriver,
    faults::Faults,
    model::{
        FifoServer, HostModel, Model, NetworkModel, NicModel, NodeModel, Noise, PmiModel, Topology,
    },
    stats::{RankStats, Stats},
};
pub use crate::connect::{CommPattern, ConnectPolicy};
use crate::driver::DriverCost;

/// A simulated cluster. Clones are handles to the same cluster.
#[derive(Clone)]
pub struct Cluster {
    world: Arc<Mutex<SimWorld>>,
}

/// Reason why [`Cluster::advance`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "an executor must know what to do with each"
)]
pub enum ClusterStep {
    /// A host must run: make a turn of its runtime, then call [`Cluster::end_turn`].
    Turn {
        /// Rank of the host.
        rank: u32,
        /// True while the application computes. Only the progress agent may run then, so poll no tasks.
        computing: bool,
    },
    /// Nothing will ever happen again, unless a rank is [woken](Cluster::wake).
    Quiet,
}

impl Cluster {
    /// Makes a cluster at time 0 with nothing to do. Call [`wake`](Self::wake) for the first turn of each rank.
    ///
    /// # Errors
    /// Names the invalid field of `config`, and its valid values.
    pub fn new(config: ClusterConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            world: Arc::new(Mutex::new(SimWorld::new(config))),
        })
    }

    /// Returns the driver of a rank. Dropping it closes the rank.
    ///
    /// # Panics
    /// Panics if there is no such rank, or its driver was made before.
    #[must_use]
    pub fn driver(&self, rank: u32) -> SimDriver {
        SimDriver::open(self.clone(), rank)
    }

    /// Returns the clock in nanoseconds: the time of the host that runs now or, between turns, of the last event.
    #[must_use]
    pub fn clock(&self) -> Arc<AtomicU64> {
        self.lock().hosts.clock()
    }

    /// Runs events until a host must run.
    ///
    /// # Panics
    /// Panics if the previous turn was not [ended](Self::end_turn).
    pub fn advance(&self) -> ClusterStep {
        self.lock().advance()
    }

    /// Ends the host's turn.
    ///
    /// Its next turn comes when something arrives for it or it is woken, and no later than `deadline` (in nanoseconds). Without a
    /// deadline it may sleep forever. Each call replaces the previous deadline.
    ///
    /// # Panics
    /// Panics if it is not this rank's turn.
    pub fn end_turn(&self, rank: u32, deadline: Option<u64>) {
        let SimWorld { hosts, heap, .. } = &mut *self.lock();
        hosts.end_turn(rank, deadline, heap);
    }

    /// Makes the host runnable, because of something in the program. It gets a turn as soon as it is free, which is after the
    /// computation if its application is computing.
    pub fn wake(&self, rank: u32) {
        let SimWorld { hosts, heap, .. } = &mut *self.lock();
        hosts.wake(rank, heap);
    }

    /// Has the rank's application compute for `time` from the end of its turn on. Then it gets a turn.
    pub fn compute(&self, rank: u32, time: Duration) {
        let SimWorld { hosts, heap, .. } = &mut *self.lock();
        hosts.compute(rank, time, heap);
    }

    /// Ends the rank now, without notifying its peers. The other ranks are notified after [`NetworkModel::failure_ns`].
    pub fn kill(&self, rank: u32) {
        self.lock().kill(rank);
    }

    /// Stops the rank's host for `time`, like a stopped process. Its adapter keeps running.
    pub fn pause(&self, rank: u32, time: Duration) {
        let SimWorld { hosts, heap, .. } = &mut *self.lock();
        hosts.pause(rank, time, heap);
    }

    /// Notifies `peer` that a rank has closed, as if they had been in contact. Returns true if the rank has closed, and the peer
    /// had not been notified before.
    pub fn report_close(&self, rank: u32, peer: u32) -> bool {
        self.lock().announce_close(rank, peer)
    }

    /// Returns true if the rank was neither closed nor killed.
    #[must_use]
    pub fn is_alive(&self, rank: u32) -> bool {
        self.lock().hosts.is_alive(rank)
    }

    /// Returns a hash of all arrivals so far: their order, times, kinds, lengths, ranks, and the contents of messages, puts and
    /// gets.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.lock().digest.get()
    }

    /// Returns what has happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// Returns what a rank has done so far, and how much the simulator keeps for it.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    pub fn rank_stats(&self, rank: u32) -> RankStats {
        self.lock().rank_stats(rank)
    }

    /// Returns the costs of the fabric within a node, if there are several nodes with several ranks.
    #[must_use]
    pub fn cost_inside(&self) -> Option<DriverCost> {
        self.lock().cost_inside()
    }

    fn lock(&self) -> MutexGuard<'_, SimWorld> {
        // A panic of the program elsewhere cannot leave the world in the middle of a call, so a poisoned lock is fine.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}
