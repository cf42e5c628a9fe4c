//! What a rank counts on its own counters: its processor adds, in a word of its own, because the device's atomics and the
//! processor's know nothing of each other.

use std::{collections::BTreeMap, io};

use super::{core::Core, regions::check};
use crate::{
    memory::{Region, RemoteRegion, WeakRegion},
    offload::{CELL_LEN, Counter, RemoteCounter},
};

/// The own regions by slot, each with its generation: those of later ones take the places of those that are gone.
#[derive(Debug, Default)]
pub(super) struct Own(BTreeMap<u32, (u32, WeakRegion)>);

impl Own {
    /// A region was made, and this is the key to all of it.
    pub(super) fn add(&mut self, key: RemoteRegion, region: &Region) {
        self.0.insert(key.id, (key.generation, region.downgrade()));
    }

    fn find(&self, key: RemoteRegion) -> Option<Region> {
        let (generation, region) = self.0.get(&key.id)?;
        (*generation == key.generation).then(|| region.upgrade())?
    }
}

impl Core {
    pub(super) fn allocate(&mut self, len: usize) -> io::Result<Region> {
        let region = self.exports.allocate(len)?;
        if let Some(key) = self.exports.key_to(region.range()) {
            self.tasks.own.add(key, &region);
        }
        Ok(region)
    }

    /// Adds to a counter of this rank. Whether its key leads to one; by a name that is not given yet it does not.
    pub(super) fn count_by_key(&mut self, counter: RemoteCounter, by: u64) -> bool {
        let found = self.own_counter(counter);
        if let Some(counter) = &found {
            self.count_own(counter, by);
        }
        found.is_some()
    }

    /// Adds to a counter of this rank.
    pub(super) fn count_own(&mut self, counter: &Counter, by: u64) {
        counter.add_own(by);
        self.watches.counted(counter);
        if self.sleep.slept {
            // Somebody sleeps, and no device has anything to wake it with.
            let now = self.sleep.timer.now();
            let set = self.sleep.timer.set(Some(now));
            debug_assert!(set.is_ok(), "an alarm that exists can be set");
        }
    }

    fn own_counter(&self, counter: RemoteCounter) -> Option<Counter> {
        let cell = counter.cell()?;
        check(cell, self.me, CELL_LEN).ok()?;
        let region = match cell.name() {
            Some(name) => self.named(name),
            None => self.tasks.own.find(cell),
        };
        let region = region?;
        let offset = usize::try_from(cell.base).ok()?;
        let inside = offset
            .checked_add(CELL_LEN)
            .is_some_and(|end| end <= region.len());
        inside.then(|| Counter::in_region(region, offset))
    }
}
