//! Offers the tutorial driver to jobs of one rank, which need nothing of the system.

use std::io;

use super::world;
use crate::provider::{DriverValues, OpenRequest, OpenedDriver, Provider, ProviderReach};

/// Opens a [`LoopbackDriver`](super::LoopbackDriver) that reaches its own rank.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "has no fields")]
pub struct LoopbackProvider;

impl Provider for LoopbackProvider {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn summary(&self) -> &'static str {
        "queues in one process, for jobs of one rank"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Rank
    }

    fn check(&self, _values: &DriverValues) -> Result<String, String> {
        Ok("it needs no device and no library".to_owned())
    }

    fn open(&self, _request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        let alone = world(1).remove(0);
        Ok(OpenedDriver::ready(alone))
    }
}
