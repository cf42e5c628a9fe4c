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
#![expect(unsafe_code, reason = "a header is filled before it is looked at")]

use std::{collections::VecDeque, mem::MaybeUninit};

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
        }
    }

    /// Returns how many messages were sent, modulo 2³².
    #[inline]
    pub(super) const fn position(&self) -> u32 {
        self.head
    }

    /// Sets how many messages were written to named slots, modulo [`NAMED_SLOTS_MOD`].
    #[inline]
    pub(super) const fn note_slots(&mut self, count: u8) {
        self.slot_messages = count;
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
                slot_messages: self.slot_messages,
            },
        );
    }

    /// Prefetches a later slot if it is free. In a burst of messages, its line arrives while the next ones are prepared.
    #[inline]
    pub(super) fn prefetch_later_slot(&self) {
        let ahead = self.head.wrapping_add(AHEAD);
        if ahead.wrapping_sub(self.tail) < self.memory.slots() {
            let slot = ahead & (self.memory.slots() - 1);
            self.memory.prefetch_for_write(slot);
        }
    }

    /// Prefetches the next slot. Its line takes about as long to arrive as an answer takes to be made.
    #[inline]
    pub(super) fn prefetch_next_slot(&self) {
        self.memory.prefetch_for_write(self.slot());
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

    #[inline]
    fn write(&mut self, first: &[u8], second: &[u8], frame: RingFrame) {
        let slot = self.slot();
        self.head = self.head.wrapping_add(1);
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
}

/// The frame of a message that has arrived and was not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingFrame {
    pub(super) header: usize,
    pub(super) body: usize,
    /// True if the body is in a chunk, whose number is in the slot.
    pub(super) chunk: bool,
    /// Messages that its sender had written to named slots before, modulo [`NAMED_SLOTS_MOD`].
    pub(super) slot_messages: u8,
}

impl<M: RingMemory> RingConsumer<M> {
    pub(super) const fn new(memory: M, start: u32) -> Self {
        Self {
            memory,
            position: start,
            published: start,
        }
    }

    /// Returns true if a message has arrived.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        stamp_of(self.memory.frame(self.slot())) == self.position.wrapping_add(1)
    }

    /// Returns the next message, or `Err` if its frame is invalid.
    #[inline]
    pub(super) fn peek(&self) -> Option<Result<RingFrame, MalformedFrame>> {
        let frame = self.memory.frame(self.slot());
        (stamp_of(frame) == self.position.wrapping_add(1)).then(|| RingFrame::unpack(frame))
    }

    /// Copies out the header of the message that `peek` found.
    #[inline]
    pub(super) fn header<'a>(
        &self,
        frame: RingFrame,
        into: &'a mut [MaybeUninit<u8>; HEADER_MAX],
    ) -> &'a [u8] {
        let into = &mut into[..frame.header];
        self.memory.read(self.slot(), 0, frame.header).copy_to(into);
        // SAFETY: `copy_to` has initialized all of `into`.
        unsafe { into.assume_init_ref() }
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
    pub(super) const fn position(&self) -> u32 {
        self.position
    }

    /// Prefetches a later message. In a burst, its line arrives while the next messages are handled.
    #[inline]
    pub(super) fn prefetch_next_slot(&self) {
        let slot = self.position.wrapping_add(AHEAD) & (self.memory.slots() - 1);
        self.memory.prefetch_for_read(slot);
    }

    /// Moves on to the next message. Returns true if it is time to call `publish`.
    #[inline]
    pub(super) fn advance(&mut self) -> bool {
        self.position = self.position.wrapping_add(1);
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
}

/// The frame is invalid, so the peer's memory is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedFrame;

impl RingFrame {
    #[inline]
    fn pack(self, stamp: u32) -> u64 {
        debug_assert!(self.is_sane(), "{self:?}");
        u64::from(stamp)
            | (self.header as u64) << 32
            | u64::from(self.chunk) << 40
            | u64::from(self.slot_messages) << 41
            | (self.body as u64) << 48
    }

    #[inline]
    fn unpack(frame: u64) -> Result<Self, MalformedFrame> {
        let [_, _, _, _, header, flags, low, high] = frame.to_le_bytes();
        let (header, body) = (header.into(), u16::from_le_bytes([low, high]).into());
        let unpacked = Self {
            header,
            body,
            chunk: flags & 1 == 1,
            slot_messages: flags >> 1,
        };
        if unpacked.is_sane() {
            Ok(unpacked)
        } else {
            Err(MalformedFrame)
        }
    }

    const fn is_sane(self) -> bool {
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
        HEADER_MAX, MalformedFrame, MaybeUninit, RingConsumer, RingFrame, RingProducer, SLOT_LEN,
    };
    use crate::memory::MemoryRegion;

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
                    slot_messages: i,
                }
            );
            assert_eq!(
                consumer.header(frame, &mut [MaybeUninit::uninit(); HEADER_MAX]),
                [i; 3]
            );
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
            slot_messages: 127,
        };
        assert_eq!(RingFrame::unpack(good.pack(7)), Ok(good));
        let bad = [
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
            super::RingMemory::set_tail(&producer.memory, tail);
            assert!(!producer.has_room(), "{tail}");
        }
    }
}
