//! How a simulated cluster is made, and what is wrong with a description of one.

use std::fmt;

use super::{faults::Faults, model::Model, world};
use crate::{
    connect::{Job, Pattern, Scheme},
    memory,
};

/// A simulated cluster, before it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ranks, at least 1.
    pub ranks: u32,
    /// What things cost.
    pub model: Model,
    /// What goes wrong.
    pub faults: Faults,
    /// Decides all chance. The same seed and the same program give the same events.
    pub seed: u64,
    /// What the runtime sees of faults.
    pub transport: Transport,
    /// When queue pairs are made, where the adapters have such.
    pub scheme: Scheme,
    /// Queue pairs that a node can have at a time. Those of [`Scheme::AllToAll`] must fit; on demand, the connection that was
    /// silent longest gives its own up when there are no more, with [`Scheme::OnDemand`] as with [`Scheme::Hybrid`].
    pub queue_pairs_max: u32,
    /// Threads of a rank that make queue pairs at a time, at least 1. For [`Scheme::AllToAll`] the ranks of a node take turns.
    pub connect_threads: u32,
    /// Puts and gets of so many bytes or more carry a hash instead of bytes, if both ends are registered memory: the digest
    /// depends on what is sent, and what was at the other end stays there. So a message may be longer than there is memory.
    pub hash_from: u64,
    /// Those are not even hashed, and take as long as if they were: for schedules of more bytes than one machine can look at.
    pub lengths_only: bool,
    /// Nobody calls [`Cluster::advance`](super::Cluster::advance): a turn of progress that finds nothing runs an event. For
    /// programs that know drivers only.
    pub free_running: bool,
}

/// What the runtime sees of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Nothing but time: the adapters repair loss, order and repetition.
    #[default]
    Reliable,
    /// All: messages may be lost, doubled and overtaken, and there is no one-sided access.
    Datagram,
}

/// A field of a description that cannot be used, and what can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: String,
    why: String,
}

impl Config {
    /// So many ranks on the default [`Model`], without faults.
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks,
            model: Model::default(),
            faults: Faults::default(),
            seed: 0,
            transport: Transport::default(),
            scheme: Scheme::default(),
            queue_pairs_max: u32::MAX,
            connect_threads: 1,
            hash_from: u64::MAX,
            lengths_only: false,
            free_running: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.ranks == 0 {
            return Err(ConfigError::new("ranks", "0, and at least 1 is needed"));
        }
        self.model.check(self.ranks)?;
        self.faults.check(self.ranks, self.model.nic.rails)?;
        self.check_connections()?;
        let needed = u64::from(self.ranks) * world::BYTES_PER_RANK;
        match memory::available() {
            Some(room) if needed > room => Err(ConfigError::new(
                "ranks",
                format!(
                    "{} take {needed} bytes, and {room} bytes of memory are available: at most {} fit",
                    self.ranks,
                    room / world::BYTES_PER_RANK
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl Config {
    /// This cluster as the choice of a [`Scheme`] sees it.
    #[must_use]
    pub fn job(&self, pattern: Pattern) -> Job {
        Job {
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
                "0, and at least 1 is needed",
            ));
        }
        let job = self.job(Pattern::Dense);
        let fits = Scheme::choose_connecting(&job) == Scheme::AllToAll;
        if self.scheme == Scheme::AllToAll && !fits {
            let max = self.queue_pairs_max;
            return Err(ConfigError::new(
                "queue_pairs_max",
                format!(
                    "{max}, which is too few to connect all pairs: give more, or another scheme"
                ),
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

    /// The field, with its tables: `nic.rails`.
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
