//! Regions with names. A command for a name that its owner has not given yet waits at the owner's adapter.

use super::{heap::OpKey, slab::index, world::World};
use crate::{memory::Region, offload::RemoteCounter};

/// A command that waits for a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parked {
    Op(OpKey),
    /// A count: its sender, its counter, and the amount.
    Count(u32, RemoteCounter, u64),
}

impl World {
    pub(super) fn name(&mut self, rank: u32, name: u64, region: &Region) {
        let host = &mut self.hosts[index(rank)];
        host.name(name, region);
        let parked = host.take_parked();
        self.release(rank, parked);
    }

    /// Lets parked commands try again, in their order.
    pub(super) fn release(&mut self, rank: u32, parked: Vec<Parked>) {
        for parked in parked {
            match parked {
                Parked::Op(key) => self.go_on(key),
                Parked::Count(from, key, by) if self.hosts[index(rank)].is_open() => {
                    self.count_by_key(from, rank, key, by);
                }
                Parked::Count(..) => {}
            }
        }
    }
}
