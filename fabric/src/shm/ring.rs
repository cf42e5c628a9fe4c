//! One direction between two ranks: a ring of slots with one producer and one consumer.
//!
//! A slot is two cache lines: a frame word, then the header and, if it fits, the body. The low half of the frame is the stamp. At
//! position `i` the consumer waits for the stamp `i + 1` (modulo 2³²). No earlier lap left that stamp there, so slots are never
//! cleared. The producer stores the frame last. The consumer publishes its position from time to time, which returns the slots
//! and the chunks of their bodies.
//!
//! A frame also says how many messages its sender had written to named slots before, and such a slot says how far the ring
//! was. A receiver that takes a message of either kind therefore knows whether it has overtaken one of the other kind.
//!
//! The path of a small message has no allocation, lock or system call. One cache line crosses if header and body fit into 56
//! bytes.
//!
//! # Lines of repeated messages
//!
//! A stream of short messages with one and the same header, such as those of one type and tag, takes less than a line each. The
//! first such message has a slot of its own. Each later message that has the header of the message before it, and a body of at
//! most eight bytes, is a cell: its body alone. Seven cells and the frame fill a line, and the frame counts them.
//!
//! - A cell leaves at once, like any other message: the producer stores the body, then the frame with the new count, with release
//!   ordering. While the consumer does not look at the line, the line stays with the producer, and then crosses once with all its
//!   cells. If the consumer waits at the line, one cell costs one transfer of the line, as a slot does.
//! - The producer leaves a line when it is full, or when a message does not fit into it, and does not store to it any more. The
//!   consumer leaves it when the next slot has its stamp and the count, loaded again after that stamp, has not grown. So the
//!   producer need not close a line, which would cost one more transfer.
//! - The producer keeps the count and the header in its own memory and never reads a line. A producer that dies between the two
//!   stores has not sent the cell.
//! - The consumer takes the header from its own copy, and bounds the count and the length of the bodies. A line whose count
//!   shrinks, or that becomes another kind of slot, is malformed.

use std::collections::VecDeque;

use crate::driver::PayloadView;

/// The memory of a ring, as seen by both its ends.
pub(super) trait RingMemory {
    /// Returns the number of slots, a power of two.
    fn slots(&self) -> u32;
    /// Loads the frame of a slot, and acquires what the producer wrote before it stored this frame.
    fn frame(&self, slot: u32) -> u64;
    /// Loads the consumer's position, and acquires its reads of the slots before that.
    fn tail(&self) -> u32;
    /// Stores the consumer's position, which releases the slots before it.
    fn set_tail(&self, tail: u32);
    /// Writes `first` and then `second` after the frame word, then stores the frame with release ordering. Together they must fit
    /// into [`ROOM`].
    fn write(&self, slot: u32, first: &[u8], second: &[u8], frame: u64);
    /// Writes `cell`, the cell of this number after the frame word, then stores the frame with release ordering. The number must
    /// be below [`CELLS`].
    fn write_cell(&self, slot: u32, number: u32, cell: [u8; CELL_LEN], frame: u64);
    /// Prefetches the first line of a slot for reading.
    fn prefetch_for_read(&self, slot: u32);
    /// Prefetches the first line of a slot for writing.
    fn prefetch_for_write(&self, slot: u32);
    /// Lends `len` bytes at `offset` after the frame word. The range must be inside the slot.
    fn read(&self, slot: u32, offset: usize, len: usize) -> PayloadView<'_>;
}

/// The sending end.
#[derive(Debug)]
pub(super) struct RingProducer<M> {
    memory: M,
    head: u32,
    /// Position of the consumer when the producer last loaded it. May be stale, which only makes the ring look fuller than it is.
    tail: u32,
    /// Position and number of each chunk in flight. A chunk returns when the consumer has passed its position.
    lent: VecDeque<(u32, u32)>,
    /// Messages written to named slots, modulo [`NAMED_SLOTS_MOD`].
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
    pub(super) fn new(memory: M, start: u32) -> Self {
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
    pub(super) const fn sent(&self) -> u32 {
        self.sent
    }

    /// Sets how many messages were written to named slots, modulo [`NAMED_SLOTS_MOD`]. The next message begins a slot, because
    /// a frame gives that number for all its messages.
    #[inline]
    pub(super) const fn note_slots(&mut self, count: u8) {
        self.slot_messages = count;
        self.cells = 0;
    }

    /// Returns true if a slot is free.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        if self.head.wrapping_sub(self.tail) < self.memory.slots() {
            return true;
        }
        self.look();
        self.head.wrapping_sub(self.tail) < self.memory.slots()
    }

    /// Sends a message as a cell, if it repeats the header of the last message, its body fits, and there is room. Returns false
    /// otherwise.
    #[inline]
    pub(super) fn push_cell(&mut self, header: &[u8], body: &[u8]) -> bool {
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
    pub(super) fn push(&mut self, header: &[u8], body: &[u8]) {
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
    pub(super) fn push_chunk(&mut self, header: &[u8], chunk: u32, len: usize) {
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
    pub(super) fn prefetch_later_slot(&self) {
        if self.cells > 1 {
            return; // the slot was prefetched for the first cell
        }
        let ahead = self.head.wrapping_add(AHEAD);
        if ahead.wrapping_sub(self.tail) < self.memory.slots() {
            let slot = ahead & (self.memory.slots() - 1);
            self.memory.prefetch_for_write(slot);
        }
    }

    /// Prefetches the slot of the next message. Its line takes about as long to arrive as an answer takes to be made.
    #[inline]
    pub(super) fn prefetch_next_slot(&self) {
        let slot = if self.has_open_line() {
            self.last_slot()
        } else {
            self.slot()
        };
        self.memory.prefetch_for_write(slot);
    }

    /// Returns true if chunks are in flight.
    #[inline]
    pub(super) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Returns to `give` the chunks that the consumer has released.
    pub(super) fn reclaim(&mut self, mut give: impl FnMut(u32)) {
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
    pub(super) fn reclaim_all(&mut self, mut give: impl FnMut(u32)) {
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

/// The receiving end.
#[derive(Debug)]
pub(super) struct RingConsumer<M> {
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

/// The frame of a slot with a message, or with cells, that arrived and were not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingFrame {
    pub(super) header: usize,
    /// Length of the body, or of that of each cell.
    pub(super) body: usize,
    /// True if the body is in a chunk, whose number is in the slot.
    pub(super) chunk: bool,
    /// Number of cells in the slot, or 0 if the slot holds one message with its header.
    pub(super) cells: u32,
    /// Messages that its sender had written to named slots before, modulo [`NAMED_SLOTS_MOD`].
    pub(super) slot_messages: u8,
}

impl<M: RingMemory> RingConsumer<M> {
    pub(super) const fn new(memory: M, start: u32) -> Self {
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
    pub(super) fn is_ready(&self) -> bool {
        if self.taken == 0 {
            return self.frame_at(self.position).is_some();
        }
        self.has_news() || self.frame_at(self.position.wrapping_add(1)).is_some()
    }

    /// Returns the frame of the next message, or `Err` if it is invalid. After that, the consumer is at the slot of that message.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<Result<RingFrame, MalformedFrame>> {
        if self.taken > 0 && !self.has_news() {
            let _next = self.frame_at(self.position.wrapping_add(1))?;
            // The producer has left the line. A cell that it added before that is visible only now.
            if !self.has_news() {
                self.leave_slot();
            }
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

    /// Copies the header of the message that `peek` found, which has a slot of its own, to where [`header`](Self::header) returns
    /// it.
    #[inline]
    pub(super) fn load_header(&mut self, frame: RingFrame) {
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
    pub(super) fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Returns how many cells of the slot that `peek` found are unread.
    #[inline]
    pub(super) const fn unread_cells(&self, frame: RingFrame) -> u32 {
        frame.cells - self.taken
    }

    /// Returns the body of the first unread cell of the slot that `peek` found.
    #[inline]
    pub(super) fn cell(&self, frame: RingFrame) -> PayloadView<'_> {
        self.memory
            .read(self.slot(), self.taken as usize * CELL_LEN, frame.body)
    }

    /// Returns the body of the message that `peek` found, if it is in the slot.
    #[inline]
    pub(super) fn body(&self, frame: RingFrame) -> PayloadView<'_> {
        self.memory.read(self.slot(), frame.header, frame.body)
    }

    /// Returns the number of the chunk that holds the body. The caller must check it, because the peer may write anything.
    #[inline]
    pub(super) fn chunk(&self, frame: RingFrame) -> u32 {
        let mut bytes = [0; size_of::<u32>()];
        self.memory
            .read(self.slot(), frame.header, bytes.len())
            .copy_into(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Returns how many messages were consumed, modulo 2³².
    #[inline]
    pub(super) const fn received(&self) -> u32 {
        self.received
    }

    /// Prefetches a later message. In a burst, its line arrives while the next messages are handled.
    #[inline]
    pub(super) fn prefetch_next_slot(&self) {
        let slot = self.position.wrapping_add(AHEAD) & (self.memory.slots() - 1);
        self.memory.prefetch_for_read(slot);
    }

    /// Prefetches the line after one that is full of cells. It arrives while these are handled.
    #[inline]
    pub(super) fn prefetch_next_line(&self, frame: RingFrame) {
        if frame.cells == CELLS {
            let slot = self.position.wrapping_add(1) & (self.memory.slots() - 1);
            self.memory.prefetch_for_read(slot);
        }
    }

    /// Moves on to the next slot.
    #[inline]
    pub(super) const fn advance(&mut self) {
        self.received = self.received.wrapping_add(1);
        self.leave_slot();
    }

    /// Moves on to the next cell, or to the next slot after the last cell that a slot can hold.
    #[inline]
    pub(super) const fn advance_cell(&mut self) {
        self.received = self.received.wrapping_add(1);
        self.taken += 1;
        if self.taken == CELLS {
            self.leave_slot();
        }
    }

    /// Returns true if it is time to call `publish`.
    #[inline]
    pub(super) fn has_to_publish(&self) -> bool {
        self.position.wrapping_sub(self.published) >= self.memory.slots() / PUBLISHED_PER_LAP
    }

    /// Releases the consumed slots to the producer. Returns false if there were none.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
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

/// The frame is invalid, so the peer's memory is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedFrame;

impl RingFrame {
    #[inline]
    fn pack(self, stamp: u32) -> u64 {
        debug_assert!(self.is_sane(), "{self:?}");
        let header = if self.cells == 0 {
            self.header as u64
        } else {
            u64::from(self.cells | u32::from(CELL_FLAG))
        };
        u64::from(stamp)
            | header << 32
            | u64::from(self.chunk) << 40
            | u64::from(self.slot_messages) << 41
            | (self.body as u64) << 48
    }

    #[inline]
    fn unpack(frame: u64) -> Result<Self, MalformedFrame> {
        let [_, _, _, _, header, flags, low, high] = frame.to_le_bytes();
        let cells = cells_of(frame);
        let unpacked = Self {
            header: if cells == 0 { header.into() } else { 0 },
            body: u16::from_le_bytes([low, high]).into(),
            chunk: flags & 1 == 1,
            cells,
            slot_messages: flags >> 1,
        };
        if unpacked.is_sane() {
            Ok(unpacked)
        } else {
            Err(MalformedFrame)
        }
    }

    const fn is_sane(self) -> bool {
        if self.cells > 0 {
            return self.cells <= CELLS && self.body <= CELL_LEN && !self.chunk;
        }
        let behind = if self.chunk {
            size_of::<u32>()
        } else {
            self.body
        };
        self.header <= HEADER_MAX
            && self.slot_messages < NAMED_SLOTS_MOD
            && behind <= ROOM - self.header
            && self.body <= super::segment::CHUNK_LEN
    }
}

#[inline]
const fn stamp_of(frame: u64) -> u32 {
    let [a, b, c, d, ..] = frame.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Returns the number of cells of a frame, or 0 if the frame is not one of cells.
#[inline]
const fn cells_of(frame: u64) -> u32 {
    let [_, _, _, _, header, ..] = frame.to_le_bytes();
    if header > CELL_FLAG {
        (header - CELL_FLAG) as u32
    } else {
        0
    }
}

impl<M> RingProducer<M> {
    pub(super) const fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M> RingConsumer<M> {
    pub(super) const fn memory(&self) -> &M {
        &self.memory
    }
}

/// Bytes of a slot: two cache lines, which the processor's prefetcher loads together.
pub(super) const SLOT_LEN: usize = 128;
/// Most bytes of header and body together that fit into a slot.
pub(super) const ROOM: usize = SLOT_LEN - FRAME_LEN;
/// Longest header in bytes. It leaves room for a chunk's number.
pub(super) const HEADER_MAX: usize = ROOM - FRAME_LEN;
pub(super) const FRAME_LEN: usize = 8;

/// Bytes of a cell.
pub(super) const CELL_LEN: usize = 8;
/// Cells in a slot. With the frame they fill its first line.
pub(super) const CELLS: u32 = 7;
/// Length of the headers that cells repeat: that of short messages.
const REPEATED_LEN: usize = 24;
/// Marks, in the place of the header's length, a number of cells. No header is so long.
const CELL_FLAG: u8 = 0x80;
const _: () = assert!(HEADER_MAX < CELL_FLAG as usize);

/// Modulus of the counts of named slots in frames. At most half as many messages fit into the named slots, so counts
/// are unambiguous.
pub(super) const NAMED_SLOTS_MOD: u8 = 128;

/// Slots to prefetch ahead of a busy consumer. Two lines take longer to arrive than to process; with eight, lines are taken from
/// a producer that is about to write them.
const AHEAD: u32 = 4;

/// How often per lap a consumer that is always busy publishes its position.
const PUBLISHED_PER_LAP: u32 = 4;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::{
        super::mapped_ring::{CONTROL_LEN, MappedRing},
        CELLS, MalformedFrame, REPEATED_LEN, RingConsumer, RingFrame, RingMemory, RingProducer,
        SLOT_LEN,
    };
    use crate::{memory::MemoryRegion, random::SeededRandom};

    const SLOTS: u32 = 4;

    fn ring(start: u32) -> (RingProducer<MappedRing>, RingConsumer<MappedRing>) {
        let region =
            MemoryRegion::create("ring-test", CONTROL_LEN + SLOTS as usize * SLOT_LEN, true)
                .unwrap();
        let mapped = || MappedRing::new(&region, 0, CONTROL_LEN, SLOTS);
        (
            RingProducer::new(mapped(), start),
            RingConsumer::new(mapped(), start),
        )
    }

    #[test]
    fn positions_wrap_around() {
        let (mut producer, mut consumer) = ring(u32::MAX - 9);
        let mut given_back = 0;
        for i in 0..50_u8 {
            assert!(producer.has_room());
            producer.note_slots(i);
            producer.push_chunk(&[i; 3], i.into(), 5);
            let frame = consumer.peek().unwrap().unwrap();
            assert_eq!(
                frame,
                RingFrame {
                    header: 3,
                    body: 5,
                    chunk: true,
                    cells: 0,
                    slot_messages: i,
                }
            );
            consumer.load_header(frame);
            assert_eq!(consumer.header(), [i; 3]);
            assert_eq!(consumer.chunk(frame), u32::from(i));
            consumer.advance();
            assert!(consumer.peek().is_none());
            if i % 3 == 0 {
                consumer.publish();
                producer.reclaim(|chunk| given_back = chunk);
                assert_eq!(given_back, u32::from(i));
            }
        }
    }

    #[test]
    fn a_full_ring_has_no_room_until_the_consumer_says_so() {
        let (mut producer, mut consumer) = ring(0);
        (0..SLOTS).for_each(|_| producer.push(&[], &[]));
        assert!(!producer.has_room());
        consumer.advance();
        assert!(!producer.has_room());
        assert!(consumer.publish() && !consumer.publish());
        assert!(producer.has_room());
    }

    #[test]
    fn frames_that_cannot_be_are_refused() {
        let good = RingFrame {
            header: 112,
            body: 8192,
            chunk: true,
            cells: 0,
            slot_messages: 127,
        };
        assert_eq!(RingFrame::unpack(good.pack(7)), Ok(good));
        let cells = RingFrame {
            header: 0,
            body: 8,
            chunk: false,
            cells: CELLS,
            slot_messages: 127,
        };
        assert_eq!(RingFrame::unpack(cells.pack(7)), Ok(cells));
        let bad = [
            0x80 << 32,               // no cells, marked as cells
            0x88 << 32,               // more cells than fit into a line
            0x81 << 32 | 9 << 48,     // bodies longer than a cell
            0x81 << 32 | 1 << 40,     // cells in a chunk
            113 << 32 | 1 << 40,      // a header longer than any
            24 << 32 | 97 << 48,      // more than fits into the slot
            1 << 40 | 8193_u64 << 48, // more than a chunk
        ];
        for frame in bad {
            assert_eq!(RingFrame::unpack(frame), Err(MalformedFrame), "{frame:x}");
        }
    }

    #[test]
    fn a_tail_that_cannot_be_is_ignored() {
        let (mut producer, _consumer) = ring(100);
        (0..SLOTS).for_each(|_| producer.push(&[], &[]));
        for tail in [0, 99, 105, u32::MAX] {
            producer.memory.set_tail(tail);
            assert!(!producer.has_room(), "{tail}");
        }
    }

    type HeaderAndBody = (Vec<u8>, Vec<u8>);

    /// Reads all messages that have arrived, `budget` cells at a time. Returns their headers and bodies.
    fn read_all(
        consumer: &mut RingConsumer<MappedRing>,
        budget: u32,
    ) -> Result<Vec<HeaderAndBody>, MalformedFrame> {
        let mut read = Vec::new();
        while let Some(frame) = consumer.peek() {
            let frame = frame?;
            if frame.cells == 0 {
                consumer.load_header(frame);
                read.push((consumer.header().to_vec(), consumer.body(frame).to_vec()));
                consumer.advance();
                continue;
            }
            for _ in 0..consumer.unread_cells(frame).min(budget) {
                read.push((consumer.header().to_vec(), consumer.cell(frame).to_vec()));
                consumer.advance_cell();
            }
        }
        assert!(!consumer.is_ready());
        Ok(read)
    }

    #[test]
    fn seven_messages_that_repeat_a_header_share_a_slot() {
        let (mut producer, mut consumer) = ring(0);
        let header = [3; REPEATED_LEN];
        producer.push(&header, &[0; 30]);
        let cells = CELLS * (SLOTS - 1);
        for i in 1..=cells {
            assert!(producer.push_cell(&header, &[u8::try_from(i).unwrap(); 8]));
        }
        assert!(!producer.push_cell(&header, &[9; 8]), "the ring is full");
        let read = read_all(&mut consumer, CELLS).unwrap();
        assert_eq!(read.len(), 1 + cells as usize);
        assert_eq!(read[0], (header.to_vec(), vec![0; 30]));
        for (i, message) in (1..).zip(&read[1..]) {
            assert_eq!(*message, (header.to_vec(), vec![i; 8]));
        }
        assert_eq!(producer.sent(), consumer.received());
    }

    #[test]
    fn only_a_short_message_with_the_same_header_is_a_cell() {
        let (mut producer, _consumer) = ring(0);
        let header = [3; REPEATED_LEN];
        assert!(!producer.push_cell(&header, &[]), "the first message");
        producer.push(&header, &[]);
        assert!(!producer.push_cell(&[4; REPEATED_LEN], &[]));
        assert!(!producer.push_cell(&header, &[1; 9]));
        producer.push(&[3; 23], &[]);
        assert!(
            !producer.push_cell(&[3; 23], &[]),
            "a length that no short message has"
        );
        assert!(
            !producer.push_cell(&header, &[]),
            "the header before the last"
        );
    }

    #[test]
    fn a_cell_is_there_at_once_and_the_next_slot_ends_its_line() {
        let (mut producer, mut consumer) = ring(0);
        let header = [3; REPEATED_LEN];
        producer.push(&header, b"");
        assert_eq!(read_all(&mut consumer, 1).unwrap().len(), 1);
        for byte in 1..=3 {
            assert!(producer.push_cell(&header, &[byte]));
            assert!(consumer.is_ready());
            let read = read_all(&mut consumer, 1).unwrap();
            assert_eq!(read, [(header.to_vec(), vec![byte])]);
        }
        assert!(
            producer.push_cell(&header, &[4; 2]),
            "a body of another length begins a slot"
        );
        assert!(producer.push_cell(&header, &[5; 2]));
        producer.push(b"other", b"header");
        let read = read_all(&mut consumer, 1).unwrap();
        let cells = [4, 5].map(|byte| (header.to_vec(), vec![byte; 2]));
        assert_eq!(read[..2], cells);
        assert_eq!(read[2..], [(b"other".to_vec(), b"header".to_vec())]);
    }

    #[test]
    fn all_messages_of_a_slot_have_the_same_number_of_slot_messages_before_them() {
        let (mut producer, mut consumer) = ring(0);
        let header = [3; REPEATED_LEN];
        producer.push(&header, b"");
        assert!(producer.push_cell(&header, b"1"));
        producer.note_slots(1);
        assert!(producer.push_cell(&header, b"2"));
        consumer.advance();
        let frame = consumer.peek().unwrap().unwrap();
        assert_eq!((frame.cells, frame.slot_messages), (1, 0));
        consumer.advance_cell();
        let frame = consumer.peek().unwrap().unwrap();
        assert_eq!((frame.cells, frame.slot_messages), (1, 1));
    }

    #[test]
    fn a_line_that_loses_cells_or_becomes_another_slot_is_malformed() {
        let sane = RingFrame {
            header: 0,
            body: 8,
            chunk: false,
            cells: 2,
            slot_messages: 0,
        };
        let plain = RingFrame { cells: 0, ..sane };
        for then in [RingFrame { cells: 1, ..sane }, plain] {
            let (producer, mut consumer) = ring(0);
            let write = |frame: RingFrame| {
                producer.memory.write_cell(0, 0, [1; 8], frame.pack(1));
            };
            write(sane);
            let read = read_all(&mut consumer, CELLS).unwrap();
            assert_eq!(
                read,
                [(vec![], vec![1; 8]), (vec![], vec![0; 8])],
                "no header to repeat"
            );
            write(then);
            assert!(consumer.is_ready());
            assert_eq!(consumer.peek(), Some(Err(MalformedFrame)));
        }
    }

    #[test]
    fn any_mixture_of_messages_arrives_in_order() {
        for seed in 0..300 {
            let mut random = SeededRandom::new(seed);
            let (mut producer, mut consumer) = ring(u32::MAX - 20);
            let (mut sent, mut read) = (Vec::new(), Vec::new());
            for _ in 0..300 {
                let header = vec![u8::from(random.chance(0.1)); REPEATED_LEN];
                let len = if random.chance(0.9) {
                    8
                } else {
                    random.within(0..12)
                };
                let mut body = vec![0; usize::try_from(len).unwrap()];
                random.fill(&mut body);
                if random.chance(0.05) {
                    producer.note_slots(u8::try_from(random.within(0..128)).unwrap());
                }
                let is_cell = producer.push_cell(&header, &body);
                if is_cell || producer.has_room() {
                    if !is_cell {
                        producer.push(&header, &body);
                    }
                    sent.push((header, body));
                }
                if random.chance(0.3) {
                    let budget = u32::try_from(random.within(1..9)).unwrap();
                    read.extend(read_all(&mut consumer, budget).unwrap());
                    consumer.publish();
                }
            }
            read.extend(read_all(&mut consumer, CELLS).unwrap());
            assert_eq!(read, sent, "seed {seed}");
            assert_eq!(producer.sent(), consumer.received(), "seed {seed}");
        }
    }
}
