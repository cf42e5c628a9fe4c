//! The contract by which a driver offers itself to a job.
//!
//! A driver that jobs can select is a folder with a file `provider.rs` in it, and a line in
//! [`PROVIDERS`](crate::registry::PROVIDERS). A [`Provider`] says what the driver is for, which settings it reads and whether
//! it can run on this machine, and opens it. The runtime asks providers and capabilities, and names no driver.

mod opening;
pub mod parsing;
mod settings;

use std::{fmt, io};

pub use self::{
    opening::{DriverEndpoint, JobPlace, OpenRequest, OpenedDriver},
    settings::{DriverSetting, DriverValues},
};

/// Offers one driver.
pub trait Provider: Sync {
    /// Returns the name by which `RIPSTOP_FABRIC` selects the driver.
    fn name(&self) -> &'static str;

    /// Returns in a few words which ranks the driver connects, and by what.
    fn summary(&self) -> &'static str;

    /// Returns the ranks that the driver reaches.
    fn reach(&self) -> ProviderReach;

    /// Returns the typical time of a short message between two nodes, in nanoseconds one way.
    ///
    /// `RIPSTOP_FABRIC=auto` takes the network with the shortest time among those that all ranks of the job offer. It never takes
    /// a driver without one.
    fn auto_latency_ns(&self) -> Option<u32> {
        None
    }

    /// Returns the settings that the driver reads. Drivers may share a setting.
    fn settings(&self) -> &'static [&'static DriverSetting] {
        &[]
    }

    /// Returns variables that begin like settings and are none: tests of the driver and its libraries read them.
    fn other_variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the prefixes of names of threads that the driver or its libraries start, beside `ripstop-`. Such threads are not
    /// the application's.
    fn thread_prefixes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns a sentence about what the driver would use on this machine.
    ///
    /// Opens nothing that other processes can notice, and needs no job.
    ///
    /// # Errors
    /// The driver cannot run here. The text says why, and what to do about it.
    fn check(&self, values: &DriverValues) -> Result<String, String>;

    /// Opens the driver for this rank.
    ///
    /// The job fits what the driver [reaches](Self::reach).
    ///
    /// # Errors
    /// The driver cannot run here, as [`check`](Self::check) tells, or the system's error.
    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver>;
}

impl fmt::Debug for dyn Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The ranks that a driver reaches. Greater values include the smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProviderReach {
    /// Only the rank itself.
    Rank,
    /// The ranks of its node.
    Node,
    /// All ranks of the job.
    Job,
}
