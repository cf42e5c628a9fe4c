//! Container with stable ids: an id that outlives its value is detected.

use std::collections::VecDeque;

/// A slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationalId {
    /// Index of the slot.
    pub slot: u32,
    /// Number of earlier uses of the slot.
    pub generation: u32,
}

impl GenerationalId {
    /// Returns the id as one number, for the wire and for handles.
    #[must_use]
    pub const fn bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// Returns the id that [`Self::bits`] encoded.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is wanted")]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            slot: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

/// Values in slots. Free slots are reused in the order in which they became free, so a stale id stays invalid as long as
/// possible.
#[derive(Debug)]
pub(crate) struct SoftSlab<T> {
    slots: Vec<SoftSlabSlot<T>>,
    free: VecDeque<u32>,
    len: usize,
    /// Mask of the generation bits in use.
    generations: u32,
}

#[derive(Debug)]
struct SoftSlabSlot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> SoftSlab<T> {
    pub(crate) const fn new() -> Self {
        Self::with_generations(u32::MAX)
    }

    /// Returns a slab whose generations are limited to the bits of a mask.
    pub(crate) const fn with_generations(generations: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            len: 0,
            generations,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Stores a value and returns its id.
    ///
    /// # Panics
    /// With 2^32 values, which no limit allows.
    pub(crate) fn insert(&mut self, value: T) -> GenerationalId {
        self.len += 1;
        if let Some(slot) = self.free.pop_front() {
            let place = &mut self.slots[slot as usize];
            place.value = Some(value);
            return GenerationalId {
                slot,
                generation: place.generation,
            };
        }
        let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 values");
        self.slots.push(SoftSlabSlot {
            generation: 0,
            value: Some(value),
        });
        GenerationalId {
            slot,
            generation: 0,
        }
    }

    pub(crate) fn get(&self, id: GenerationalId) -> Option<&T> {
        let place = self.slots.get(id.slot as usize)?;
        place
            .value
            .as_ref()
            .filter(|_| place.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: GenerationalId) -> Option<&mut T> {
        let place = self.slots.get_mut(id.slot as usize)?;
        place
            .value
            .as_mut()
            .filter(|_| place.generation == id.generation)
    }

    pub(crate) fn remove(&mut self, id: GenerationalId) -> Option<T> {
        self.get(id)?;
        let place = &mut self.slots[id.slot as usize];
        place.generation = place.generation.wrapping_add(1) & self.generations;
        self.free.push_back(id.slot);
        self.len -= 1;
        place.value.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (GenerationalId, &T)> {
        (0..).zip(&self.slots).filter_map(|(slot, place)| {
            let generation = place.generation;
            Some((GenerationalId { slot, generation }, place.value.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{GenerationalId, SoftSlab};

    #[test]
    fn a_number_names_nothing_after_its_value_is_gone() {
        let mut slab = SoftSlab::new();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(second.slot, first.slot);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!((slab.get(second), slab.len()), (Some(&'b'), 1));
        assert_eq!(GenerationalId::from_bits(second.bits()), second);
    }

    #[test]
    fn the_slot_that_is_free_for_longest_is_used_next() {
        let mut slab = SoftSlab::new();
        let ids = [slab.insert(0), slab.insert(1), slab.insert(2)];
        slab.remove(ids[2]);
        slab.remove(ids[0]);
        assert_eq!(slab.insert(3).slot, 2);
        assert_eq!(slab.iter().map(|(_, v)| *v).collect::<Vec<_>>(), [1, 3]);
    }
}
