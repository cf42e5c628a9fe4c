//! What a provider is given to open its driver, and what it returns.

use std::{sync::Arc, time::Duration};

use super::DriverValues;
use crate::{
    counters::DriverStats,
    driver::{Driver, ExitRecord, PreparedEndpoint, WorldRank},
    shm::{BoardRanks, WakeMethod},
};

/// Place of a rank in its job.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by the runtime")]
pub struct JobPlace {
    /// Rank of this process in the job.
    pub rank: WorldRank,
    /// Number of ranks in the job.
    pub size: u32,
    /// Ranks of this node in ascending order, and their board. A board belongs to a node, and any driver may use it.
    pub node: BoardRanks,
    /// Greatest number of ranks on a node, which is the same on all ranks.
    pub ranks_per_node: u32,
}

impl JobPlace {
    /// Returns the index of this rank among the ranks of its node.
    #[must_use]
    pub fn on_node(&self) -> u32 {
        let place = self.node.place_of(self.rank);
        place.expect("a rank is among those of its node")
    }
}

/// Parameters for opening a driver.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by the runtime")]
pub struct OpenRequest<'a> {
    /// Place of this rank in the job.
    pub place: JobPlace,
    /// Means by which ranks of the node wake this rank, if they share memory.
    pub wake: WakeMethod,
    /// Time that a rank may take to appear.
    pub patience: Duration,
    /// Time for which a rank may be silent, if the user has set one. Otherwise the driver's own limits apply.
    pub detect: Option<Duration>,
    /// True if `process_vm_*` may be used.
    pub single_copy: bool,
    /// True if this driver must record how its rank ends. False if another driver of the same rank does so.
    pub announces_ends: bool,
    /// Values of the drivers' settings.
    pub values: &'a DriverValues,
    /// Counters that the driver updates.
    pub counters: Arc<DriverStats>,
}

impl OpenRequest<'_> {
    /// Returns the record of how ranks ended, if this driver must keep it.
    #[must_use]
    pub fn ends(&self) -> Option<Arc<dyn ExitRecord>> {
        let node = self.announces_ends.then(|| self.place.node.clone())?;
        Some(Arc::new(node))
    }
}

/// A driver as its provider opened it.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by providers")]
pub struct OpenedDriver {
    /// The driver.
    pub endpoint: DriverEndpoint,
    /// Sentences for the log. All ranks of a node get the same ones.
    pub notices: Vec<String>,
}

/// An opened driver, which may not know the other ranks yet.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the runtime must handle every kind"
)]
pub enum DriverEndpoint {
    /// The driver needs no addresses of the other ranks.
    Ready(Box<dyn Driver>),
    /// The driver needs the addresses of all ranks.
    Prepared(Box<dyn PreparedEndpoint>),
}

impl OpenedDriver {
    /// Returns a driver that needs no addresses.
    pub fn ready(driver: impl Driver + 'static) -> Self {
        Self {
            endpoint: DriverEndpoint::Ready(Box::new(driver)),
            notices: Vec::new(),
        }
    }

    /// Returns a driver that needs the addresses of all ranks.
    pub fn prepared(prepared: impl PreparedEndpoint + 'static) -> Self {
        Self {
            endpoint: DriverEndpoint::Prepared(Box::new(prepared)),
            notices: Vec::new(),
        }
    }
}
