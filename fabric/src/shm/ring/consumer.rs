//! The receiving end of a ring.

use super::{
    AHEAD, CELL_LEN, CELLS, HEADER_MAX, MalformedFrame, REPEATED_LEN, RingFrame, RingMemory,
    frame::{cells_of, stamp_of},
};
use crate::driver::{PayloadRun, PayloadView};

/// The receiving end.
#[derive(Debug)]
pub(in crate::shm) struct RingConsumer<M> {
    memory: M,
    position: u32,
    published: u32,
    /// Messages consumed, modulo 2³².
    received: u32,
    /// Cells of the slot at `position` that were consumed.
    taken: u32,
    /// Header of the last message that had a slot of its own, which its cells repeat.
    header: [u8; HEADER_MAX],
    header_len: usize,
}

/// What a look for a message in a slot of its own has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shm) enum PlainLook {
    /// Nothing has arrived.
    Nothing,
    /// Something else has arrived, or may have.
    Other,
    Plain(RingFrame),
}

impl<M: RingMemory> RingConsumer<M> {
    pub(in crate::shm) const fn new(memory: M, start: u32) -> Self {
        Self {
            memory,
            position: start,
            published: start,
            received: start,
            taken: 0,
            header: [0; HEADER_MAX],
            header_len: 0,
        }
    }

    /// Returns true if a message has arrived.
    #[inline]
    pub(in crate::shm) fn is_ready(&self) -> bool {
        if self.taken == 0 {
            return self.frame_at(self.position).is_some();
        }
        self.has_news() || self.frame_at(self.position.wrapping_add(1)).is_some()
    }

    /// Returns the frame of the next message, or `Err` if it is invalid. After that, the consumer is at the slot of that message.
    #[inline]
    pub(in crate::shm) fn peek(&mut self) -> Option<Result<RingFrame, MalformedFrame>> {
        if !self.leave_read_line() {
            return None;
        }
        let frame = RingFrame::unpack(self.frame_at(self.position)?);
        Some(frame.and_then(|frame| {
            if self.taken == 0 || frame.cells > self.taken {
                Ok(frame)
            } else {
                Err(MalformedFrame)
            }
        }))
    }

    /// Looks for a message that has a slot of its own, with a header of the usual length and a body of this length.
    #[inline]
    pub(in crate::shm) fn peek_plain(&mut self, body: usize) -> PlainLook {
        if !self.leave_read_line() {
            return PlainLook::Nothing;
        }
        if self.taken > 0 {
            return PlainLook::Other; // a cell
        }
        let Some(frame) = self.frame_at(self.position) else {
            return PlainLook::Nothing;
        };
        match RingFrame::plain(frame, REPEATED_LEN, body) {
            Some(frame) => PlainLook::Plain(frame),
            None => PlainLook::Other,
        }
    }

    /// Copies the header of the message that `peek_plain` found, and returns it.
    #[inline]
    pub(in crate::shm) fn load_plain_header(&mut self) -> &[u8; REPEATED_LEN] {
        let header = self.header.first_chunk_mut().expect("is longer");
        let view = self
            .memory
            .read(self.position & (self.memory.slots() - 1), 0, REPEATED_LEN);
        view.copy_into(header);
        self.header_len = REPEATED_LEN;
        header
    }

    /// Copies the header of the message that `peek` found, which has a slot of its own, to where [`header`](Self::header) returns
    /// it.
    #[inline]
    pub(in crate::shm) fn load_header(&mut self, frame: RingFrame) {
        let view = self.memory.read(self.slot(), 0, frame.header);
        match frame.header {
            // A length known at compile time takes two instructions.
            REPEATED_LEN => view.copy_into(&mut self.header[..REPEATED_LEN]),
            len => view.copy_into(&mut self.header[..len]),
        }
        self.header_len = frame.header;
    }

    /// Returns the header of the message that `peek` found.
    #[inline]
    pub(in crate::shm) fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Returns how many cells of the slot that `peek` found are unread.
    #[inline]
    pub(in crate::shm) const fn unread_cells(&self, frame: RingFrame) -> u32 {
        frame.cells - self.taken
    }

    /// Returns the bodies of the first `count` unread cells of the slot that `peek` found, which has so many.
    #[inline]
    pub(in crate::shm) fn cells(&self, frame: RingFrame, count: u32) -> PayloadRun<'_> {
        let (first, len) = (self.taken as usize, count as usize);
        let memory = self
            .memory
            .read(self.slot(), first * CELL_LEN, len * CELL_LEN);
        PayloadRun::new(memory, frame.body, CELL_LEN)
    }

    /// Returns the body of the message that `peek` found, if it is in the slot.
    #[inline]
    pub(in crate::shm) fn body(&self, frame: RingFrame) -> PayloadView<'_> {
        self.memory.read(self.slot(), frame.header, frame.body)
    }

    /// Returns the number of the chunk that holds the body. The caller must check it, because the peer may write anything.
    #[inline]
    pub(in crate::shm) fn chunk(&self, frame: RingFrame) -> u32 {
        let mut bytes = [0; size_of::<u32>()];
        self.memory
            .read(self.slot(), frame.header, bytes.len())
            .copy_into(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Returns how many messages were consumed, modulo 2³².
    #[inline]
    pub(in crate::shm) const fn received(&self) -> u32 {
        self.received
    }

    /// Prefetches a later message. In a burst, its line arrives while the next messages are handled.
    #[inline]
    pub(in crate::shm) fn prefetch_next_slot(&self) {
        let slot = self.position.wrapping_add(AHEAD) & (self.memory.slots() - 1);
        self.memory.prefetch_for_read(slot);
    }

    /// Prefetches the line after one that is full of cells. It arrives while these are handled.
    #[inline]
    pub(in crate::shm) fn prefetch_next_line(&self, frame: RingFrame) {
        if frame.cells == CELLS {
            let slot = self.position.wrapping_add(1) & (self.memory.slots() - 1);
            self.memory.prefetch_for_read(slot);
        }
    }

    /// Moves on to the next slot.
    #[inline]
    pub(in crate::shm) const fn advance(&mut self) {
        self.received = self.received.wrapping_add(1);
        self.leave_slot();
    }

    /// Moves on by so many unread cells, and to the next slot after the last cell that a slot can hold.
    #[inline]
    pub(in crate::shm) const fn advance_cells(&mut self, count: u32) {
        self.received = self.received.wrapping_add(count);
        self.taken += count;
        if self.taken == CELLS {
            self.leave_slot();
        }
    }

    /// Returns true if it is time to call `publish`.
    #[inline]
    pub(in crate::shm) fn has_to_publish(&self) -> bool {
        self.position.wrapping_sub(self.published) >= self.memory.slots() / PUBLISHED_PER_LAP
    }

    /// Releases the consumed slots to the producer. Returns false if there were none.
    #[inline]
    pub(in crate::shm) fn publish(&mut self) -> bool {
        let news = self.published != self.position;
        if news {
            self.published = self.position;
            self.memory.set_tail(self.position);
        }
        news
    }

    fn slot(&self) -> u32 {
        self.position & (self.memory.slots() - 1)
    }

    const fn leave_slot(&mut self) {
        self.position = self.position.wrapping_add(1);
        self.taken = 0;
    }

    /// Moves on from a line of cells that are all read, if the producer has left it. Returns false if nothing has come after it.
    #[inline]
    fn leave_read_line(&mut self) -> bool {
        if self.taken == 0 || self.has_news() {
            return true;
        }
        if self.frame_at(self.position.wrapping_add(1)).is_none() {
            return false;
        }
        // The producer has left the line. A cell that it added before that is visible only now.
        if !self.has_news() {
            self.leave_slot();
        }
        true
    }

    /// Returns true if the frame at `position` is not the one after which `taken` cells were consumed.
    #[inline]
    fn has_news(&self) -> bool {
        let frame = self.frame_at(self.position);
        frame.is_some_and(|frame| cells_of(frame) != self.taken)
    }

    /// Returns the frame at a position, if it has the stamp of that position.
    #[inline]
    fn frame_at(&self, position: u32) -> Option<u64> {
        let frame = self.memory.frame(position & (self.memory.slots() - 1));
        (stamp_of(frame) == position.wrapping_add(1)).then_some(frame)
    }
}

impl<M> RingConsumer<M> {
    pub(in crate::shm) const fn memory(&self) -> &M {
        &self.memory
    }
}

/// How often per lap a consumer that is always busy publishes its position.
const PUBLISHED_PER_LAP: u32 = 4;
