//! How a simulated cluster is made, and what is wrong with a description of one.

use std::fmt;

use super::{faults::Faults, model::Model, world};
use crate::memory;

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
