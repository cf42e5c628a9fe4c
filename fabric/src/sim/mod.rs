//! A simulated cluster: virtual time, thousands of ranks in one process, and chance from a seed.
//!
//! A [`Cluster`] holds everything that happens in the network and when: events, ordered by their time and then by the order in
//! which they were made (`heap`), hosts (`host`), adapters and links (`network`), and what is under way between them
//! (`world`). [`Sim`] is a rank's driver (`driver`). What everything costs is a [`Model`], and what goes wrong are [`Faults`].
//!
//! Time inside is in whole picoseconds. Nothing reads a clock and nothing is a floating-point number that decides when something
//! happens, so the same seed and the same program give the same [`digest`](Cluster::digest) on any machine.
//!
//! An executor of ranks calls [`advance`](Cluster::advance) until a host must run, runs what is runnable on it, and says
//! [`end_turn`](Cluster::end_turn). Programs that know drivers only let the cluster run by itself ([`Config::free_running`]).

mod calls;
mod config;
mod counting;
mod crc;
mod dial;
mod digest;
mod driver;
mod exports;
pub mod faults;
mod goback;
mod heap;
mod host;
mod link;
mod model;
mod naming;
mod network;
mod onesided;
mod slab;
mod stats;
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

use self::world::World;
pub use self::{
    config::{Config, ConfigError, Transport},
    driver::Sim,
    faults::Faults,
    model::{
        HostModel, Model, NetworkModel, NicModel, NodeModel, Noise, PmiModel, Server, Topology,
    },
    stats::{RankStats, Stats},
};
use crate::driver::Cost;

/// A simulated cluster; clones are handles to the same one.
#[derive(Clone)]
pub struct Cluster {
    world: Arc<Mutex<World>>,
}

/// Why [`Cluster::advance`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "an executor must know what to do with each"
)]
pub enum Step {
    /// A host must run: make a turn of its runtime, and then call [`Cluster::end_turn`].
    Turn {
        /// Whose.
        rank: u32,
        /// The application computes: only the progress agent may run, so poll no tasks.
        computing: bool,
    },
    /// Nothing will ever happen again, unless somebody is [woken](Cluster::wake).
    Quiet,
}

impl Cluster {
    /// Makes a cluster at time 0, with nothing to do: [`wake`](Self::wake) each rank for its first turn.
    ///
    /// # Errors
    /// Names the field of `config` that cannot be, and what can.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            world: Arc::new(Mutex::new(World::new(config))),
        })
    }

    /// The driver of a rank. Dropping it closes the rank.
    ///
    /// # Panics
    /// When there is no such rank, or its driver was made before.
    #[must_use]
    pub fn driver(&self, rank: u32) -> Sim {
        Sim::open(self.clone(), rank)
    }

    /// The time in nanoseconds: that of the host that runs now, and of the last event between turns.
    #[must_use]
    pub fn clock(&self) -> Arc<AtomicU64> {
        self.lock().clock()
    }

    /// Lets things happen until a host must run.
    ///
    /// # Panics
    /// When the turn before was not [ended](Self::end_turn).
    pub fn advance(&self) -> Step {
        self.lock().advance()
    }

    /// The host's turn is over. It gets the next one when something arrives for it or it is woken, and at `deadline`
    /// (nanoseconds) at the latest. Without a deadline it can sleep for ever; the one given before is forgotten.
    ///
    /// # Panics
    /// When it is not this rank's turn.
    pub fn end_turn(&self, rank: u32, deadline: Option<u64>) {
        self.lock().end_turn(rank, deadline);
    }

    /// Something in the program made the host runnable: it gets a turn as soon as it is free. While its application computes,
    /// the turn at the end of that is the one.
    pub fn wake(&self, rank: u32) {
        self.lock().wake(rank);
    }

    /// The rank's application computes for `time`, from the end of its turn on; then it gets a turn.
    pub fn compute(&self, rank: u32, time: Duration) {
        self.lock().compute(rank, time);
    }

    /// The rank ends here and now, without a word. The others are told after [`NetworkModel::failure_ns`].
    pub fn kill(&self, rank: u32) {
        self.lock().kill(rank);
    }

    /// The rank's host stands still for `time`, as a stopped process does. Its adapter goes on.
    pub fn pause(&self, rank: u32, time: Duration) {
        self.lock().pause(rank, time);
    }

    /// Whether the rank was neither closed nor killed.
    #[must_use]
    pub fn is_alive(&self, rank: u32) -> bool {
        self.lock().is_alive(rank)
    }

    /// Of all arrivals so far: their order, times, kinds and lengths, between whom, and the contents of messages, puts and gets.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.lock().digest()
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// What a rank did so far, and what the simulator keeps for it.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn rank_stats(&self, rank: u32) -> RankStats {
        self.lock().rank_stats(rank)
    }

    /// What the fabric's actions cost within a node, where there are several nodes of several ranks.
    #[must_use]
    pub fn cost_inside(&self) -> Option<Cost> {
        self.lock().cost_inside()
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        // A program that panicked elsewhere leaves the world as it was between two calls.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}
