//! The sending end of a ring.

use std::collections::VecDeque;

use super::{AHEAD, CELL_LEN, CELLS, REPEATED_LEN, RingFrame, RingMemory};

/// The sending end.
#[derive(Debug)]
pub(in crate::shm) struct RingProducer<M> {
    memory: M,
    head: u32,
    /// Position of the consumer when the producer last loaded it. May be stale, which only makes the ring look fuller than it is.
    tail: u32,
    /// Position and number of each chunk in flight. A chunk returns when the consumer has passed its position.
    lent: VecDeque<(u32, u32)>,
    /// Messages written to named slots, modulo [`NAMED_SLOTS_MOD`](super::NAMED_SLOTS_MOD).
    slot_messages: u8,
    /// Messages sent, modulo 2³².
    sent: u32,
    /// Header of the last message, if it has the length of those that cells repeat.
    last_header: Option<[u8; REPEATED_LEN]>,
    /// Cells in the slot before `head`, or 0 if no cell can be added there.
    cells: u32,
    /// Length of the bodies in these cells.
    cell_body: usize,
}

impl<M: RingMemory> RingProducer<M> {
    pub(in crate::shm) fn new(memory: M, start: u32) -> Self {
        let lent = VecDeque::with_capacity(memory.slots() as usize);
        Self {
            memory,
            head: start,
            tail: start,
            lent,
            slot_messages: 0,
            sent: start,
            last_header: None,
            cells: 0,
            cell_body: 0,
        }
    }

    /// Returns how many messages were sent, modulo 2³².
    #[inline]
    pub(in crate::shm) const fn sent(&self) -> u32 {
        self.sent
    }

    /// Sets how many messages were written to named slots, modulo [`NAMED_SLOTS_MOD`](super::NAMED_SLOTS_MOD). The next message
    /// begins a slot, because a frame gives that number for all its messages.
    #[inline]
    pub(in crate::shm) const fn note_slots(&mut self, count: u8) {
        self.slot_messages = count;
        self.cells = 0;
    }

    /// Returns true if a slot is free.
    #[inline]
    pub(in crate::shm) fn has_room(&mut self) -> bool {
        if self.head.wrapping_sub(self.tail) < self.memory.slots() {
            return true;
        }
        self.look();
        self.head.wrapping_sub(self.tail) < self.memory.slots()
    }

    /// Sends a message as a cell, if it repeats the header of the last message, its body fits, and there is room. Returns false
    /// otherwise.
    #[inline]
    pub(in crate::shm) fn push_cell(&mut self, header: &[u8], body: &[u8]) -> bool {
        let repeats = self
            .last_header
            .as_ref()
            .is_some_and(|last| header.as_array() == Some(last));
        if !repeats || body.len() > CELL_LEN {
            return false;
        }
        if !self.has_open_line() || self.cell_body != body.len() {
            if !self.has_room() {
                return false;
            }
            self.head = self.head.wrapping_add(1);
            (self.cells, self.cell_body) = (0, body.len());
        }
        let mut cell = [0; CELL_LEN];
        match body.as_array() {
            Some(word) => cell = *word,
            None => cell[..body.len()].copy_from_slice(body),
        }
        let number = self.cells;
        self.cells += 1;
        self.sent = self.sent.wrapping_add(1);
        let frame = RingFrame {
            header: 0,
            body: body.len(),
            chunk: false,
            cells: self.cells,
            slot_messages: self.slot_messages,
        };
        self.memory
            .write_cell(self.last_slot(), number, cell, frame.pack(self.head));
        true
    }

    /// Sends a message whose body, if any, fits into the slot. The caller has checked that there is room.
    #[inline]
    pub(in crate::shm) fn push(&mut self, header: &[u8], body: &[u8]) {
        self.write(
            header,
            body,
            RingFrame {
                header: header.len(),
                body: body.len(),
                chunk: false,
                cells: 0,
                slot_messages: self.slot_messages,
            },
        );
    }

    /// Sends a message whose body of `len` bytes is in `chunk`. The caller has checked that there is room.
    #[inline]
    pub(in crate::shm) fn push_chunk(&mut self, header: &[u8], chunk: u32, len: usize) {
        self.lent.push_back((self.head, chunk));
        self.write(
            header,
            &chunk.to_le_bytes(),
            RingFrame {
                header: header.len(),
                body: len,
                chunk: true,
                cells: 0,
                slot_messages: self.slot_messages,
            },
        );
    }

    /// Prefetches a later slot if it is free. In a burst of messages, its line arrives while the next ones are prepared.
    #[inline]
    pub(in crate::shm) fn prefetch_later_slot(&self) {
        if self.cells > 1 {
            return; // the slot was prefetched for the first cell
        }
        let ahead = self.head.wrapping_add(AHEAD);
        if ahead.wrapping_sub(self.tail) < self.memory.slots() {
            let slot = ahead & (self.memory.slots() - 1);
            self.memory.prefetch_for_write(slot);
        }
    }

    /// Returns true if chunks are in flight.
    #[inline]
    pub(in crate::shm) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Returns to `give` the chunks that the consumer has released.
    pub(in crate::shm) fn reclaim(&mut self, mut give: impl FnMut(u32)) {
        if self.lent.is_empty() {
            return;
        }
        self.look();
        while let Some(&(position, chunk)) = self.lent.front() {
            let is_done = position.wrapping_sub(self.tail) >= self.memory.slots();
            if !is_done {
                return;
            }
            self.lent.pop_front();
            give(chunk);
        }
    }

    /// Returns all chunks to `give`, because the consumer is down.
    pub(in crate::shm) fn reclaim_all(&mut self, mut give: impl FnMut(u32)) {
        self.lent.drain(..).for_each(|(_, chunk)| give(chunk));
    }

    /// Returns true if a cell can be added to the slot before `head`.
    #[inline]
    const fn has_open_line(&self) -> bool {
        0 < self.cells && self.cells < CELLS
    }

    fn look(&mut self) {
        let tail = self.memory.tail();
        // Ignore a tail that moved backward or past the producer's head: the consumer never writes such a value.
        if tail.wrapping_sub(self.tail) <= self.head.wrapping_sub(self.tail) {
            self.tail = tail;
        }
    }

    fn slot(&self) -> u32 {
        self.head & (self.memory.slots() - 1)
    }

    fn last_slot(&self) -> u32 {
        self.head.wrapping_sub(1) & (self.memory.slots() - 1)
    }

    #[inline]
    fn write(&mut self, first: &[u8], second: &[u8], frame: RingFrame) {
        let slot = self.slot();
        self.head = self.head.wrapping_add(1);
        self.sent = self.sent.wrapping_add(1);
        self.last_header = first.as_array().copied();
        self.cells = 0;
        self.memory
            .write(slot, first, second, frame.pack(self.head));
    }
}

impl<M> RingProducer<M> {
    pub(in crate::shm) const fn memory(&self) -> &M {
        &self.memory
    }
}
