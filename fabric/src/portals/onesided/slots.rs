//! Commands in flight: a slot for each, and the words that its steps need.

use std::{io, sync::atomic::Ordering::SeqCst};

use super::{super::peer::UserPtr, steps::PortalsRmaCommand};
use crate::{driver::LocalRange, memory::MemoryRegion};

/// Operations in flight, and the words that they need.
#[derive(Debug)]
pub(in super::super) struct PortalsRmaSlots {
    slots: Vec<PortalsRmaSlot>,
    free: Vec<u32>,
    /// Memory of the slots, `part_len` slots in each part.
    parts: Vec<RmaSlotMemory>,
    part_len: u32,
    /// Bytes of a slot's own room for moved data, if the library may access memory after a peer's death.
    room_len: Option<usize>,
    /// Slots to retry: their peer has no entry yet (an unknown name, no room for a count, or moved memory), or the library has no
    /// room now.
    later: Vec<u32>,
    /// Slots that must not be reused, because the library may still do their operations.
    lost: usize,
}

/// Memory of some slots.
#[derive(Debug)]
struct RmaSlotMemory {
    /// Words of each slot: an operand, the previous value, and the two words of a counter.
    words: MemoryRegion,
    /// Room of each slot for moved data.
    room: Option<MemoryRegion>,
}

#[derive(Debug, Default)]
struct PortalsRmaSlot {
    generation: u32,
    work: Option<PortalsRmaCommand>,
}

/// Words of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum RmaSlotWord {
    Operand = 0,
    Before = 1,
    Counter = 2,
}

impl PortalsRmaSlots {
    /// Returns `count` slots, with `room` bytes of their own each for moved data, if given.
    pub(in super::super) fn new(count: u32, room: Option<usize>) -> io::Result<Self> {
        let part_len = count.max(1);
        Ok(Self {
            slots: (0..count).map(|_| PortalsRmaSlot::default()).collect(),
            free: (0..count).rev().collect(),
            parts: vec![RmaSlotMemory::new(part_len, room)?],
            part_len,
            room_len: room,
            later: Vec::new(),
            lost: 0,
        })
    }

    /// Returns the memory of a slot, and its index there.
    fn place(&self, slot: u32) -> (&RmaSlotMemory, usize) {
        let (part, nth) = (slot / self.part_len, slot % self.part_len);
        (&self.parts[part as usize], nth as usize)
    }

    /// Returns the room of a slot, and its offset.
    fn room(&self, slot: u32) -> Option<(&MemoryRegion, usize)> {
        let (part, nth) = self.place(slot);
        Some((part.room.as_ref()?, nth * self.room_len?))
    }

    /// Returns the memory to send a piece from: the piece itself, or a copy in the slot's room.
    pub(super) fn to_send(&self, slot: u32, piece: LocalRange) -> LocalRange {
        if let Some((room, at)) = self.room(slot) {
            room.copy_in(at, piece);
        }
        self.to_fill(slot, piece)
    }

    /// Returns the memory to fetch a piece into: the piece itself, or the slot's room.
    pub(super) fn to_fill(&self, slot: u32, piece: LocalRange) -> LocalRange {
        match self.room(slot) {
            Some((room, at)) => room.range().slice(at, piece.len()),
            None => piece,
        }
    }

    /// Stores a fetched piece, if it was fetched into the slot's room.
    pub(super) fn land(&self, slot: u32, piece: LocalRange) {
        if let Some((room, at)) = self.room(slot) {
            room.copy_out(at, piece);
        }
    }

    /// Returns the operations in flight to a rank, without those that wait for a retry.
    pub(super) fn towards(&self, rank: u32) -> Vec<(u32, PortalsRmaCommand)> {
        let in_flight = (0..).zip(&self.slots).filter_map(|(slot, entry)| {
            let work = entry.work.filter(|work| work.to == rank)?;
            Some((slot, work))
        });
        in_flight
            .filter(|(slot, _)| !self.later.contains(slot))
            .collect()
    }

    /// Gives up a slot for good, and replaces it by one with memory of its own.
    pub(super) fn retire_slot(&mut self, slot: u32) {
        self.remove(slot);
        self.free.pop();
        self.lost += 1;
        let new = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        if (new / self.part_len) as usize == self.parts.len() {
            let Ok(part) = RmaSlotMemory::new(self.part_len, self.room_len) else {
                return; // there is one slot less
            };
            self.parts.push(part);
        }
        self.slots.push(PortalsRmaSlot::default());
        self.free.push(new);
    }

    /// Returns true if operations wait for a retry.
    pub(in super::super) const fn have_retries(&self) -> bool {
        !self.later.is_empty()
    }

    pub(in super::super) fn is_idle(&self) -> bool {
        self.free.len() + self.later.len() + self.lost == self.slots.len()
    }

    pub(super) fn insert(&mut self, work: PortalsRmaCommand) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize].work = Some(work);
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.work = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
    }

    pub(in super::super) fn work(&self, slot: u32, generation: u32) -> Option<PortalsRmaCommand> {
        let entry = self.slots.get(slot as usize)?;
        entry.work.filter(|_| entry.generation == generation)
    }

    /// Returns the command in a slot.
    pub(in super::super) fn work_in(&self, slot: u32) -> Option<PortalsRmaCommand> {
        self.slots.get(slot as usize)?.work
    }

    /// Updates the command in a slot.
    pub(super) fn keep(&mut self, slot: u32, work: PortalsRmaCommand) {
        self.slots[slot as usize].work = Some(work);
    }

    /// Returns the user pointer for a step of a slot.
    pub(super) fn user_ptr(&self, slot: u32) -> u64 {
        UserPtr::Operation(slot, self.slots[slot as usize].generation).bits()
    }

    /// Schedules a retry of the command in a slot.
    pub(in super::super) fn schedule_retry(&mut self, slot: u32) {
        self.later.push(slot);
    }

    /// Takes the slots to retry.
    pub(super) fn take_retries(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.later)
    }

    /// Returns the words of a slot, from one on.
    pub(super) fn words(&self, slot: u32, word: RmaSlotWord, len: usize) -> LocalRange {
        let (part, nth) = self.place(slot);
        part.words.range().slice(at(nth, word), len)
    }

    pub(super) fn word(&self, slot: u32, word: RmaSlotWord) -> u64 {
        let (part, nth) = self.place(slot);
        part.words.atomic_u64(at(nth, word)).load(SeqCst)
    }

    pub(super) fn set_word(&self, slot: u32, word: RmaSlotWord, value: u64) {
        let (part, nth) = self.place(slot);
        part.words.atomic_u64(at(nth, word)).store(value, SeqCst);
    }
}

impl RmaSlotMemory {
    fn new(slots: u32, room: Option<usize>) -> io::Result<Self> {
        let room = room.map(|len| MemoryRegion::vacant(slots as usize * len));
        Ok(Self {
            words: MemoryRegion::anonymous(slots as usize * WORDS_LEN)?,
            room: room.transpose()?,
        })
    }
}

const fn at(nth: usize, word: RmaSlotWord) -> usize {
    nth * WORDS_LEN + 8 * word as usize
}

/// Bytes of a slot's words.
const WORDS_LEN: usize = 32;
