//! Errors of a simulation.

use std::{fmt, time::Duration};

use ripstop_fabric::sim::ConfigError;

use super::Stuck;
use crate::error::Error;

/// Reason why a simulation failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SimError {
    /// An argument is out of range. The text names it.
    Config(String),
    /// Ranks wait for each other forever.
    Deadlock(Stuck),
    /// The limit of virtual time was reached.
    TooLong {
        /// The limit.
        limit: Duration,
        /// Operations that the ranks wait for.
        stuck: Stuck,
    },
    /// A rank panicked.
    Panicked {
        /// The rank.
        rank: u32,
        /// Virtual time of the panic.
        time: Duration,
        /// Message of the panic.
        message: String,
    },
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(sentence) => f.write_str(sentence),
            Self::Deadlock(stuck) => write!(f, "deadlock: no rank can continue. {stuck}"),
            Self::TooLong { limit, stuck } => {
                write!(f, "not finished after {limit:?} of virtual time. {stuck}")
            }
            Self::Panicked {
                rank,
                time,
                message,
            } => write!(
                f,
                "rank {rank} panicked at {time:?} of virtual time: {message}"
            ),
        }
    }
}

impl std::error::Error for SimError {}

impl From<ConfigError> for SimError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<Error> for SimError {
    fn from(error: Error) -> Self {
        Self::Config(error.to_string())
    }
}
