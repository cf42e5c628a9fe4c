//! The chunks of long messages in named slots, as kept by their sender.

use super::{super::pool::ChunkPool, CHUNKS_MAX, NAMED_SLOTS};

/// The slots whose chunks have not been returned.
#[derive(Debug)]
pub(super) struct LentChunks {
    /// Chunks of each slot. Empty until the first long message.
    by_slot: Vec<SlotChunkList>,
    /// Bits of slots that have chunks.
    slots: u64,
    count: usize,
}

/// The chunks of a message, and its number.
#[derive(Clone, Debug, Default)]
struct SlotChunkList {
    number: u32,
    chunks: Vec<u32>,
}

impl LentChunks {
    pub(super) const fn new() -> Self {
        Self {
            by_slot: Vec::new(),
            slots: 0,
            count: 0,
        }
    }

    /// Returns how many chunks are lent to all slots.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Lends the chunks of the pool's last message to message `number` in a slot. The slot was free, so the chunks it had are
    /// returned first.
    pub(super) fn lend(&mut self, slot: usize, number: u32, pool: &mut ChunkPool) -> &[u32] {
        if self.by_slot.is_empty() {
            self.by_slot = vec![SlotChunkList::default(); NAMED_SLOTS];
        }
        self.give(self.slots & 1 << slot, |chunk| pool.give_from_slot(chunk));
        let list = &mut self.by_slot[slot];
        list.number = number;
        pool.lend_last(&mut list.chunks);
        self.slots |= 1 << slot;
        self.count += list.chunks.len();
        &list.chunks
    }

    /// Returns chunks to `give`, except those of messages for which `lies` says, by slot and number, that they were not taken.
    pub(super) fn give_unless(&mut self, lies: impl Fn(usize, u32) -> bool, give: impl FnMut(u32)) {
        let mut free = self.slots;
        for slot in slots_of(self.slots) {
            if lies(slot, self.by_slot[slot].number) {
                free &= !(1 << slot);
            }
        }
        self.give(free, give);
    }

    fn give(&mut self, slots: u64, mut give: impl FnMut(u32)) {
        self.slots &= !slots;
        for slot in slots_of(slots) {
            let chunks = &mut self.by_slot[slot].chunks;
            self.count -= chunks.len();
            chunks.drain(..).for_each(&mut give);
        }
    }
}

fn slots_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(slot)
    })
}

/// Most bytes of bookkeeping for a slot's chunks.
pub(in super::super) const LIST_LEN: usize =
    size_of::<SlotChunkList>() + CHUNKS_MAX * size_of::<u32>();
