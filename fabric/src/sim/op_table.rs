//! Operations in flight, by key and by origin.

use std::ops::{Index, IndexMut};

use super::{
    heap::OpKey,
    onesided::SimOp,
    packets::PacketPayload,
    slab::{NO_SLOT, SimSlab, index},
};
use crate::driver::CommandToken;

/// Puts, gets and atomics in flight, including those of tasks.
///
/// The operations of an origin are a list, so a rank that ends visits its own operations only, however many there are in all.
#[derive(Debug)]
pub(super) struct SimOpTable {
    entries: SimSlab<OpEntry>,
    serial: u32,
    /// By origin, the slot of its last operation. Only as long as needed, so idle ranks take no room.
    latest: Vec<u32>,
}

#[derive(Debug)]
struct OpEntry {
    op: SimOp,
    serial: u32,
    /// Slots of the next later and earlier operations of the same origin.
    later: u32,
    earlier: u32,
}

impl SimOpTable {
    pub(super) const fn new() -> Self {
        Self {
            entries: SimSlab::new(),
            serial: 0,
            latest: Vec::new(),
        }
    }

    /// Adds an operation, as the last one of its origin.
    pub(super) fn insert(&mut self, op: SimOp) -> OpKey {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let origin = index(op.origin);
        if self.latest.len() <= origin {
            self.latest.resize(origin + 1, NO_SLOT);
        }
        let earlier = self.latest[origin];
        let slot = self.entries.insert(OpEntry {
            op,
            serial,
            later: NO_SLOT,
            earlier,
        });
        self.latest[origin] = slot;
        if let Some(earlier) = self.entries.get_mut(earlier) {
            earlier.later = slot;
        }
        OpKey { slot, serial }
    }

    /// Removes an operation.
    ///
    /// # Panics
    /// Panics if the operation was removed before.
    pub(super) fn remove(&mut self, key: OpKey) -> SimOp {
        let OpEntry {
            op,
            serial,
            later,
            earlier,
        } = self.entries.remove(key.slot);
        assert!(
            serial == key.serial,
            "the operation of {key:?} was removed before"
        );
        match self.entries.get_mut(later) {
            Some(later) => later.earlier = earlier,
            None => self.latest[index(op.origin)] = earlier,
        }
        if let Some(earlier) = self.entries.get_mut(earlier) {
            earlier.later = later;
        }
        op
    }

    /// Removes the operations of a token's tasks. Returns how many there were.
    pub(super) fn remove_tasks(&mut self, origin: u32, token: CommandToken) -> usize {
        let is_one = |op: &SimOp| op.task.as_ref().is_some_and(|task| task.is_of(token));
        self.remove_those(origin, is_one)
    }

    /// Removes the operations of a rank that has ended.
    pub(super) fn remove_origin(&mut self, origin: u32) {
        self.remove_those(origin, |_| true);
    }

    fn remove_those(&mut self, origin: u32, are_wanted: impl Fn(&SimOp) -> bool) -> usize {
        let keys = self.of_origins(&[origin], are_wanted);
        for key in &keys {
            self.remove(*key);
        }
        keys.len()
    }

    /// Returns an operation, unless it has ended.
    pub(super) fn get(&self, key: OpKey) -> Option<&SimOp> {
        let entry = self.entries.get(key.slot);
        let entry = entry.filter(|entry| entry.serial == key.serial)?;
        Some(&entry.op)
    }

    /// Returns the operations between two ranks, in either direction, in the order of their slots.
    pub(super) fn between(&self, one: u32, other: u32) -> Vec<OpKey> {
        let pair = [(one, other), (other, one)];
        self.of_origins(&[one, other], |op| pair.contains(&(op.origin, op.target)))
    }

    /// Returns true if a packet is a chunk of a task's put.
    pub(super) fn is_of_task(&self, payload: PacketPayload) -> bool {
        let PacketPayload::Chunk { op, .. } = payload else {
            return false;
        };
        self.get(op).is_some_and(|op| op.task.is_some())
    }

    /// Returns how many operations are in flight.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.iter().count()
    }

    /// Returns how many bytes the table takes.
    pub(super) fn footprint(&self) -> usize {
        self.entries.footprint() + self.latest.capacity() * size_of::<u32>()
    }

    /// Returns the operations that these ranks have started, in the order of their slots.
    fn of_origins(&self, origins: &[u32], are_wanted: impl Fn(&SimOp) -> bool) -> Vec<OpKey> {
        let mut keys = Vec::new();
        for &origin in origins {
            let latest = self.latest.get(index(origin));
            let mut slot = latest.copied().unwrap_or(NO_SLOT);
            while let Some(entry) = self.entries.get(slot) {
                if are_wanted(&entry.op) {
                    let serial = entry.serial;
                    keys.push(OpKey { slot, serial });
                }
                slot = entry.earlier;
            }
        }
        keys.sort_unstable_by_key(|key| key.slot);
        keys
    }
}

/// The operation of a key that [`SimOpTable::get`] has found.
impl Index<OpKey> for SimOpTable {
    type Output = SimOp;

    fn index(&self, key: OpKey) -> &SimOp {
        &self.entries[key.slot].op
    }
}

impl IndexMut<OpKey> for SimOpTable {
    fn index_mut(&mut self, key: OpKey) -> &mut SimOp {
        &mut self.entries[key.slot].op
    }
}
