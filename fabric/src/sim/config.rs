//! Configuration of a simulated cluster, and what is wrong with an invalid one.

use std::fmt;

use super::{faults::Faults, model::Model, world};
use crate::{
    connect::{CommPattern, ConnectPolicy, JobShape},
    memory,
};

/// Configuration of a simulated cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Number of ranks, at least 1.
    pub ranks: u32,
    /// Costs of all actions.
    pub model: Model,
    /// Faults that happen in the run.
    pub faults: Faults,
    /// Seed of all randomness. The same seed and the same program give the same events.
    pub seed: u64,
    /// Delivery guarantee that the simulated driver gives.
    pub transport: Transport,
    /// Policy by which queue pairs are made, if the adapters have queue pairs.
    pub scheme: ConnectPolicy,
    /// Most queue pairs that a node can have at a time. With [`ConnectPolicy::AllToAll`] all of them must fit. With
    /// [`ConnectPolicy::OnDemand`] and [`ConnectPolicy::Hybrid`], the least recently used connection is evicted when there are no
    /// more.
    pub queue_pairs_max: u32,
    /// Threads of a rank that make queue pairs at the same time, at least 1. With [`ConnectPolicy::AllToAll`] the ranks of a node
    /// take turns.
    pub connect_threads: u32,
    /// Length in bytes from which puts and gets carry a hash instead of bytes, if both ends are registered memory.
    ///
    /// The digest still depends on the bytes sent, but the receiver's memory keeps its contents. A message may therefore be
    /// longer than physical memory.
    pub hash_from: u64,
    /// True if such puts and gets are not even hashed. They take the same simulated time. For schedules of more bytes than one
    /// machine can read.
    pub lengths_only: bool,
    /// True if no executor calls [`Cluster::advance`](super::Cluster::advance). A turn of progress that finds nothing then runs
    /// an event. For programs that use drivers only.
    pub free_running: bool,
}

/// Delivery guarantee that the simulated driver gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Only delays: the adapters repair loss, reordering and duplication.
    #[default]
    Reliable,
    /// All faults: messages may be lost, duplicated and reordered, and there is no one-sided access.
    Datagram,
}

/// An invalid field of a configuration, and its valid values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: String,
    why: String,
}

impl ClusterConfig {
    /// Returns the configuration of a cluster of `ranks` ranks on the default [`Model`], without faults.
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks,
            model: Model::default(),
            faults: Faults::default(),
            seed: 0,
            transport: Transport::default(),
            scheme: ConnectPolicy::default(),
            queue_pairs_max: u32::MAX,
            connect_threads: 1,
            hash_from: u64::MAX,
            lengths_only: false,
            free_running: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.ranks == 0 {
            return Err(ConfigError::new("ranks", "0 is too small: give at least 1"));
        }
        self.model.check(self.ranks)?;
        self.faults.check(self.ranks, self.model.nic.rails)?;
        self.check_connections()?;
        let needed = u64::from(self.ranks) * world::BYTES_PER_RANK;
        match memory::available() {
            Some(room) if needed > room => Err(ConfigError::new(
                "ranks",
                format!(
                    "{} take {needed} bytes, but {room} bytes of memory are available: give at most {}",
                    self.ranks,
                    room / world::BYTES_PER_RANK
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl ClusterConfig {
    /// Describes this cluster for the choice of a [`ConnectPolicy`].
    #[must_use]
    pub fn job(&self, pattern: CommPattern) -> JobShape {
        JobShape {
            ranks: self.ranks,
            ranks_per_node: self.model.node.ranks.min(self.ranks),
            lanes: self.model.nic.rails,
            queue_pairs_max: self.queue_pairs_max,
            connections_max: u32::MAX,
            datagrams: self.model.nic.datagram > 0,
            pattern,
        }
    }

    fn check_connections(&self) -> Result<(), ConfigError> {
        if self.connect_threads == 0 {
            return Err(ConfigError::new(
                "connect_threads",
                "0 is too small: give at least 1",
            ));
        }
        let job = self.job(CommPattern::Dense);
        let fits = ConnectPolicy::choose_connecting(&job) == ConnectPolicy::AllToAll;
        if self.scheme == ConnectPolicy::AllToAll && !fits {
            let max = self.queue_pairs_max;
            return Err(ConfigError::new(
                "queue_pairs_max",
                format!("{max} is too small to connect all pairs: give more, or another scheme"),
            ));
        }
        Ok(())
    }
}

impl ConfigError {
    pub(super) fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            why: why.into(),
        }
    }

    /// Returns the name of the field, including its tables, such as `nic.rails`.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.why)
    }
}

impl std::error::Error for ConfigError {}
