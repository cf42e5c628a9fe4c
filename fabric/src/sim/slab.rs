//! A slab: values in numbered slots that are reused.

use std::ops::{Index, IndexMut};

/// Values in slots. The slot freed last is reused first, because it is still in the cache.
#[derive(Debug)]
pub(super) struct SimSlab<T> {
    slots: Vec<SimSlabSlot<T>>,
    free: u32,
}

#[derive(Debug)]
enum SimSlabSlot<T> {
    Used(T),
    Free { next: u32 },
}

/// A number that no slot has.
pub(super) const NO_SLOT: u32 = u32::MAX;

impl<T> SimSlab<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NO_SLOT,
        }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let slot = self.free;
        match self.slots.get_mut(index(slot)) {
            Some(place) => {
                if let SimSlabSlot::Free { next } = *place {
                    self.free = next;
                }
                *place = SimSlabSlot::Used(value);
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).unwrap_or(NO_SLOT);
                assert!(slot != NO_SLOT, "{slot} entries in use at a time");
                self.slots.push(SimSlabSlot::Used(value));
                slot
            }
        }
    }

    /// Takes a value out of its slot.
    ///
    /// # Panics
    /// Panics if the slot is free.
    pub(super) fn remove(&mut self, slot: u32) -> T {
        let freed = SimSlabSlot::Free { next: self.free };
        let SimSlabSlot::Used(value) = std::mem::replace(&mut self.slots[index(slot)], freed)
        else {
            unreachable!("slot {slot} was freed twice");
        };
        self.free = slot;
        value
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        match self.slots.get(index(slot))? {
            SimSlabSlot::Used(value) => Some(value),
            SimSlabSlot::Free { .. } => None,
        }
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        match self.slots.get_mut(index(slot))? {
            SimSlabSlot::Used(value) => Some(value),
            SimSlabSlot::Free { .. } => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(slot, place)| match place {
                SimSlabSlot::Used(value) => Some((slot, value)),
                SimSlabSlot::Free { .. } => None,
            })
    }

    /// Returns how many bytes the slab takes, without what its values own.
    pub(super) fn footprint(&self) -> usize {
        self.slots.capacity() * size_of::<SimSlabSlot<T>>()
    }
}

impl<T> Index<u32> for SimSlab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.get(slot)
            .unwrap_or_else(|| unreachable!("slot {slot} is free"))
    }
}

impl<T> IndexMut<u32> for SimSlab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot)
            .unwrap_or_else(|| unreachable!("slot {slot} is free"))
    }
}

impl<T> Default for SimSlab<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Converts a rank or a slot number to an index.
pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::SimSlab;

    #[test]
    fn freed_slots_are_used_again_last_first() {
        let mut slab = SimSlab::new();
        let slots: Vec<u32> = (0..4).map(|value| slab.insert(value)).collect();
        assert_eq!((slab.remove(slots[1]), slab.remove(slots[3])), (1, 3));
        assert_eq!(slab.iter().count(), 2);
        assert_eq!(
            (slab.insert(10), slab.insert(11), slab.insert(12)),
            (3, 1, 4)
        );
        assert_eq!(slab.get(3), Some(&10));
        assert_eq!(
            slab.iter().map(|(_, value)| *value).collect::<Vec<_>>(),
            [0, 11, 2, 10, 12]
        );
    }
}
