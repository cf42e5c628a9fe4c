//! Commands under way: a slot for each, and the words that its steps need.

use std::{io, sync::atomic::Ordering::SeqCst};

use super::{super::peer::Ticket, steps::Work};
use crate::{driver::LocalRange, memory::Region};

/// Operations under way, and the words that they need.
#[derive(Debug)]
pub(in super::super) struct Operations {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Memory of slots, of so many at a time.
    parts: Vec<Part>,
    part_len: u32,
    /// What may move by a slot, where the library may look at that after a peer's death.
    room_len: Option<usize>,
    /// What has no entry at its peer yet: a name that is not given, no room for a count, or memory that has moved. And what the
    /// library has no room for now.
    later: Vec<u32>,
    /// Slots that nobody may use again, as the library may still do what was in them.
    lost: usize,
}

/// Memory of some slots.
#[derive(Debug)]
struct Part {
    /// For each: an operand, what was there before, and a counter's two words.
    words: Region,
    /// For each, room for what moves.
    room: Option<Region>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    work: Option<Work>,
}

/// The words of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    Operand = 0,
    Before = 1,
    Cell = 2,
}

impl Operations {
    /// So many slots, with room of their own for what moves if it has a length.
    pub(in super::super) fn new(count: u32, room: Option<usize>) -> io::Result<Self> {
        let part_len = count.max(1);
        Ok(Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            free: (0..count).rev().collect(),
            parts: vec![Part::new(part_len, room)?],
            part_len,
            room_len: room,
            later: Vec::new(),
            lost: 0,
        })
    }

    /// The memory of a slot, and its number there.
    fn place(&self, slot: u32) -> (&Part, usize) {
        let (part, nth) = (slot / self.part_len, slot % self.part_len);
        (&self.parts[part as usize], nth as usize)
    }

    /// The room of a slot, and where it begins.
    fn room(&self, slot: u32) -> Option<(&Region, usize)> {
        let (part, nth) = self.place(slot);
        Some((part.room.as_ref()?, nth * self.room_len?))
    }

    /// What the library may read instead of a piece that is sent.
    pub(super) fn to_send(&self, slot: u32, piece: LocalRange) -> LocalRange {
        if let Some((room, at)) = self.room(slot) {
            room.copy_in(at, piece);
        }
        self.to_fill(slot, piece)
    }

    /// What the library may write instead of a piece that is fetched.
    pub(super) fn to_fill(&self, slot: u32, piece: LocalRange) -> LocalRange {
        match self.room(slot) {
            Some((room, at)) => room.range().slice(at, piece.len()),
            None => piece,
        }
    }

    /// A piece was fetched.
    pub(super) fn land(&self, slot: u32, piece: LocalRange) {
        if let Some((room, at)) = self.room(slot) {
            room.copy_out(at, piece);
        }
    }

    /// What is under way to a rank, but for what waits for an entry.
    pub(super) fn towards(&self, rank: u32) -> Vec<(u32, Work)> {
        let under_way = (0..).zip(&self.slots).filter_map(|(slot, entry)| {
            let work = entry.work.filter(|work| work.to == rank)?;
            Some((slot, work))
        });
        under_way
            .filter(|(slot, _)| !self.later.contains(slot))
            .collect()
    }

    /// A slot is not to be used again. Another one, with memory of its own, takes its place.
    pub(super) fn lose(&mut self, slot: u32) {
        self.remove(slot);
        self.free.pop();
        self.lost += 1;
        let new = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        if (new / self.part_len) as usize == self.parts.len() {
            let Ok(part) = Part::new(self.part_len, self.room_len) else {
                return; // there is one less
            };
            self.parts.push(part);
        }
        self.slots.push(Slot::default());
        self.free.push(new);
    }

    /// Whether something is to be tried again.
    pub(in super::super) const fn wait(&self) -> bool {
        !self.later.is_empty()
    }

    pub(in super::super) fn is_idle(&self) -> bool {
        self.free.len() + self.later.len() + self.lost == self.slots.len()
    }

    pub(super) fn insert(&mut self, work: Work) -> Option<u32> {
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

    pub(in super::super) fn work(&self, slot: u32, generation: u32) -> Option<Work> {
        let entry = self.slots.get(slot as usize)?;
        entry.work.filter(|_| entry.generation == generation)
    }

    /// What is under way in a slot.
    pub(in super::super) fn work_in(&self, slot: u32) -> Option<Work> {
        self.slots.get(slot as usize)?.work
    }

    /// It goes on with this.
    pub(super) fn keep(&mut self, slot: u32, work: Work) {
        self.slots[slot as usize].work = Some(work);
    }

    /// What comes back with the end of a step of a slot.
    pub(super) fn ticket(&self, slot: u32) -> u64 {
        Ticket::Operation(slot, self.slots[slot as usize].generation).bits()
    }

    /// What is in a slot has no entry at its peer yet, or found no room.
    pub(in super::super) fn try_later(&mut self, slot: u32) {
        self.later.push(slot);
    }

    /// The slots that are to be tried again.
    pub(super) fn take_later(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.later)
    }

    /// The words of a slot from one on.
    pub(super) fn words(&self, slot: u32, word: Word, len: usize) -> LocalRange {
        let (part, nth) = self.place(slot);
        part.words.range().slice(at(nth, word), len)
    }

    pub(super) fn word(&self, slot: u32, word: Word) -> u64 {
        let (part, nth) = self.place(slot);
        part.words.atomic_u64(at(nth, word)).load(SeqCst)
    }

    pub(super) fn set_word(&self, slot: u32, word: Word, value: u64) {
        let (part, nth) = self.place(slot);
        part.words.atomic_u64(at(nth, word)).store(value, SeqCst);
    }
}

impl Part {
    fn new(slots: u32, room: Option<usize>) -> io::Result<Self> {
        let room = room.map(|len| Region::vacant(slots as usize * len));
        Ok(Self {
            words: Region::anonymous(slots as usize * WORDS_LEN)?,
            room: room.transpose()?,
        })
    }
}

const fn at(nth: usize, word: Word) -> usize {
    nth * WORDS_LEN + 8 * word as usize
}

/// Bytes of a slot's words.
const WORDS_LEN: usize = 32;
