//! Regions with names. A command for a name that its owner has not given yet waits at the owner's adapter.

use super::{heap::OpKey, world::SimWorld};
use crate::{memory::MemoryRegion, offload::RemoteCounter};

/// A command that waits for a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum ParkedCommand {
    Op(OpKey),
    /// A count: its sender, its counter, and the amount.
    Count(u32, RemoteCounter, u64),
}

impl SimWorld {
    pub(super) fn name(&mut self, rank: u32, name: u64, region: &MemoryRegion) {
        let host = &mut self.hosts[rank];
        host.name(name, region);
        let parked = host.take_parked();
        self.release(rank, parked);
    }

    /// Lets parked commands try again, in their order.
    pub(super) fn release(&mut self, rank: u32, parked: Vec<ParkedCommand>) {
        for parked in parked {
            match parked {
                ParkedCommand::Op(key) => self.resume_op(key),
                ParkedCommand::Count(from, key, by) if self.hosts[rank].is_open() => {
                    self.count_by_key(from, rank, key, by);
                }
                ParkedCommand::Count(..) => {}
            }
        }
    }
}
