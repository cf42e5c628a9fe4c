//! Offers shared memory to jobs on one node.

use std::{io, sync::Arc};

use super::{Board, Shm, ShmConfig, cma};
use crate::provider::{DriverValues, OpenRequest, OpenedDriver, Provider, ProviderReach};

/// Opens a [`Shm`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "has no fields")]
pub struct ShmProvider;

impl Provider for ShmProvider {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn summary(&self) -> &'static str {
        "shared memory, within a node"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Node
    }

    fn check(&self, _values: &DriverValues) -> Result<String, String> {
        Board::create(1).map_err(|why| {
            format!("shared memory cannot be allocated ({why}): allow memfd_create, or raise the limit of memory")
        })?;
        Ok(match cma::probe() {
            Ok(()) => "process_vm_readv works, so long messages are copied once".to_owned(),
            Err(why) => format!("long messages are copied twice: {why}"),
        })
    }

    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        let config = ShmConfig {
            wake: request.wake,
            single_copy: request.single_copy,
            patience: request.patience,
            counters: Arc::clone(&request.counters),
            ..ShmConfig::new(request.place.on_node())
        };
        let shm = Shm::open(&request.place.node.board, config)?;
        Ok(OpenedDriver::ready(shm))
    }
}
