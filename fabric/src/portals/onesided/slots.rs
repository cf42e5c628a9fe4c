//! Commands under way: a slot for each, and the words that its steps need.

use std::sync::atomic::Ordering::SeqCst;

use super::{super::peer::Ticket, steps::Work};
use crate::{driver::LocalRange, memory::Region};

/// Operations under way, and the words that they need.
#[derive(Debug)]
pub(in super::super) struct Operations {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// For each slot: an operand, what was there before, and a counter's two words.
    words: Region,
    /// What has no entry at its peer yet: a name that is not given, no room for a count, or memory that has moved. And what the
    /// library has no room for now.
    later: Vec<u32>,
    /// Turns since those were tried last.
    patience: u32,
    /// Slots that nobody may use again, as the library may still do what was in them.
    lost: usize,
    /// For each slot, room for what moves, where the library may look at that after a peer's death; and how long it is.
    room: Option<(Region, usize)>,
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
    pub(in super::super) fn new(count: u32, room: Option<usize>) -> std::io::Result<Self> {
        let all = |len| Region::vacant(count.max(1) as usize * len).map(|region| (region, len));
        let len = count.max(1) as usize * WORDS_LEN;
        Ok(Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            free: (0..count).rev().collect(),
            words: Region::anonymous(len)?,
            later: Vec::new(),
            patience: 0,
            lost: 0,
            room: room.map(all).transpose()?,
        })
    }

    /// What the library may read instead of a piece that is sent.
    pub(super) fn to_send(&self, slot: u32, piece: LocalRange) -> LocalRange {
        if let Some((room, len)) = &self.room {
            room.copy_in(slot as usize * len, piece);
        }
        self.to_fill(slot, piece)
    }

    /// What the library may write instead of a piece that is fetched.
    pub(super) fn to_fill(&self, slot: u32, piece: LocalRange) -> LocalRange {
        match &self.room {
            Some((room, len)) => room.range().slice(slot as usize * len, piece.len()),
            None => piece,
        }
    }

    /// A piece was fetched.
    pub(super) fn land(&self, slot: u32, piece: LocalRange) {
        if let Some((room, len)) = &self.room {
            room.copy_out(slot as usize * len, piece);
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

    /// A slot is not to be used again.
    pub(super) fn lose(&mut self, slot: u32) {
        self.remove(slot);
        self.free.pop();
        self.lost += 1;
    }

    pub(in super::super) const fn waits_for_entries(&self) -> bool {
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

    /// In a turn now and then: the slots that are to be tried again.
    pub(super) fn take_later(&mut self) -> Vec<u32> {
        self.patience += 1;
        if self.patience < PATIENCE {
            return Vec::new();
        }
        self.patience = 0;
        std::mem::take(&mut self.later)
    }

    /// The words of a slot from one on.
    pub(super) fn words(&self, slot: u32, word: Word, len: usize) -> LocalRange {
        self.words.range().slice(place(slot, word), len)
    }

    pub(super) fn word(&self, slot: u32, word: Word) -> u64 {
        self.words.atomic_u64(place(slot, word)).load(SeqCst)
    }

    pub(super) fn set_word(&self, slot: u32, word: Word, value: u64) {
        self.words
            .atomic_u64(place(slot, word))
            .store(value, SeqCst);
    }
}

const fn place(slot: u32, word: Word) -> usize {
    slot as usize * WORDS_LEN + 8 * word as usize
}

/// Turns between two looks for an entry at a peer, which costs both a packet; in which something ends that has what there is room
/// for.
const PATIENCE: u32 = 64;
/// Bytes of a slot's words.
const WORDS_LEN: usize = 32;
