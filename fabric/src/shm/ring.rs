//! One direction between two ranks: a ring of slots with one producer and one consumer.
//!
//! A slot is two cache lines: a frame word, then the header and, if it fits, the body. The frame's low half is the stamp. At
//! position `i` the consumer waits for the stamp `i + 1` (modulo 2³²), which no earlier lap left there, so that a slot is
//! never cleaned; the producer stores the frame last. The consumer says now and then how far it is, and by that gives back the
//! slots and the chunks that their bodies lay in.
//!
//! Small-message path: no allocation, lock or system call; one line crosses when header and body fit into 56 bytes.
#![expect(
    unsafe_code,
    reason = "slots are written and read as raw bytes between two processes"
)]

use std::{
    collections::VecDeque,
    mem::MaybeUninit,
    ptr::NonNull,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use crate::{
    driver::Payload,
    memory::{Region, prefetch_line},
};

/// The memory of a ring, as its two ends see it.
pub(super) trait Memory {
    /// A power of two.
    fn slots(&self) -> u32;
    /// Acquires what the producer wrote before it stored this frame.
    fn frame(&self, slot: u32) -> u64;
    /// Acquires the consumer's reads of the slots before it.
    fn tail(&self) -> u32;
    /// Releases the slots before it.
    fn set_tail(&self, tail: u32);
    /// Writes `first` and `second` behind the frame, one after the other, and then releases them by the frame. They fit:
    /// [`ROOM`].
    fn write(&self, slot: u32, first: &[u8], second: &[u8], frame: u64);
    /// Lends `len` bytes at `offset` behind the frame. They are inside the slot.
    fn read(&self, slot: u32, offset: usize, len: usize) -> Payload<'_>;
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Producer<M> {
    memory: M,
    head: u32,
    /// How far the consumer was when we looked last.
    tail: u32,
    /// Chunks under way, and the position that gives each back.
    lent: VecDeque<(u32, u32)>,
}

impl<M: Memory> Producer<M> {
    pub(super) fn new(memory: M, start: u32) -> Self {
        let lent = VecDeque::with_capacity(memory.slots() as usize);
        Self {
            memory,
            head: start,
            tail: start,
            lent,
        }
    }

    /// Whether a slot is free.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        if self.head.wrapping_sub(self.tail) < self.memory.slots() {
            return true;
        }
        self.look();
        self.head.wrapping_sub(self.tail) < self.memory.slots()
    }

    /// Sends a message whose body, if any, fits into the slot. There has to be room.
    #[inline]
    pub(super) fn push(&mut self, header: &[u8], body: &[u8]) {
        self.write(
            header,
            body,
            Frame {
                header: header.len(),
                body: body.len(),
                chunk: false,
            },
        );
    }

    /// Sends a message whose body of `len` bytes is in `chunk`. There has to be room.
    #[inline]
    pub(super) fn push_chunk(&mut self, header: &[u8], chunk: u32, len: usize) {
        self.lent.push_back((self.head, chunk));
        self.write(
            header,
            &chunk.to_le_bytes(),
            Frame {
                header: header.len(),
                body: len,
                chunk: true,
            },
        );
    }

    /// Whether chunks are under way.
    #[inline]
    pub(super) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Gives back the chunks that the consumer is done with.
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

    /// Gives back all chunks: the consumer is gone.
    pub(super) fn reclaim_all(&mut self, mut give: impl FnMut(u32)) {
        self.lent.drain(..).for_each(|(_, chunk)| give(chunk));
    }

    fn look(&mut self) {
        let tail = self.memory.tail();
        // A tail that did not move forward, or moved past us, is not the consumer's.
        if tail.wrapping_sub(self.tail) <= self.head.wrapping_sub(self.tail) {
            self.tail = tail;
        }
    }

    fn slot(&self) -> u32 {
        self.head & (self.memory.slots() - 1)
    }

    #[inline]
    fn write(&mut self, first: &[u8], second: &[u8], frame: Frame) {
        let slot = self.slot();
        self.head = self.head.wrapping_add(1);
        self.memory
            .write(slot, first, second, frame.pack(self.head));
    }
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Consumer<M> {
    memory: M,
    position: u32,
    published: u32,
}

/// A message that has come, not looked into yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) header: usize,
    pub(super) body: usize,
    /// The body is in a chunk, and its number in the slot.
    pub(super) chunk: bool,
}

impl<M: Memory> Consumer<M> {
    pub(super) const fn new(memory: M, start: u32) -> Self {
        Self {
            memory,
            position: start,
            published: start,
        }
    }

    /// Whether a message waits.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        stamp_of(self.memory.frame(self.slot())) == self.position.wrapping_add(1)
    }

    /// The next message; `Err` when what came cannot be one.
    #[inline]
    pub(super) fn peek(&self) -> Option<Result<Frame, Malformed>> {
        let frame = self.memory.frame(self.slot());
        (stamp_of(frame) == self.position.wrapping_add(1)).then(|| Frame::unpack(frame))
    }

    /// The header of the message that `peek` found.
    #[inline]
    pub(super) fn header<'a>(
        &self,
        frame: Frame,
        into: &'a mut [MaybeUninit<u8>; HEADER_MAX],
    ) -> &'a [u8] {
        let into = &mut into[..frame.header];
        self.memory.read(self.slot(), 0, frame.header).copy_to(into);
        // SAFETY: `copy_to` has initialised all of `into`.
        unsafe { into.assume_init_ref() }
    }

    /// The body of the message that `peek` found, when it is in the slot.
    #[inline]
    pub(super) fn body(&self, frame: Frame) -> Payload<'_> {
        self.memory.read(self.slot(), frame.header, frame.body)
    }

    /// The number of the chunk that the body is in. Nobody has checked it yet.
    #[inline]
    pub(super) fn chunk(&self, frame: Frame) -> u32 {
        let mut bytes = [0; size_of::<u32>()];
        self.memory
            .read(self.slot(), frame.header, bytes.len())
            .copy_into(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Goes on to the next message. Whether it is time to `publish`.
    #[inline]
    pub(super) fn advance(&mut self) -> bool {
        self.position = self.position.wrapping_add(1);
        self.position.wrapping_sub(self.published) >= self.memory.slots() / PUBLISHED_PER_LAP
    }

    /// Gives back what was consumed. Whether that was anything.
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

/// What came is no message: the peer's memory is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Frame {
    #[inline]
    fn pack(self, stamp: u32) -> u64 {
        debug_assert!(self.is_sane(), "{self:?}");
        u64::from(stamp)
            | (self.header as u64) << 32
            | u64::from(self.chunk) << 40
            | (self.body as u64) << 48
    }

    #[inline]
    fn unpack(frame: u64) -> Result<Self, Malformed> {
        let [_, _, _, _, header, flags, low, high] = frame.to_le_bytes();
        let (header, body) = (header.into(), u16::from_le_bytes([low, high]).into());
        let unpacked = Self {
            header,
            body,
            chunk: flags == 1,
        };
        if flags <= 1 && unpacked.is_sane() {
            Ok(unpacked)
        } else {
            Err(Malformed)
        }
    }

    const fn is_sane(self) -> bool {
        let behind = if self.chunk {
            size_of::<u32>()
        } else {
            self.body
        };
        self.header <= HEADER_MAX
            && behind <= ROOM - self.header
            && self.body <= super::segment::CHUNK_LEN
    }
}

#[inline]
const fn stamp_of(frame: u64) -> u32 {
    let [a, b, c, d, ..] = frame.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A ring in mapped memory: `slots * SLOT_LEN` bytes at `slots_start` and `CONTROL_LEN` at `control`, all inside `_mapped`.
#[derive(Debug)]
pub(super) struct Mapped {
    slots_start: NonNull<u8>,
    control: NonNull<u8>,
    mask: u32,
    _mapped: Region,
}

// SAFETY: the pointers lead into a `Region`, which is `Send`; only one end is made of it, and an end has one user at a time.
unsafe impl Send for Mapped {}

impl Mapped {
    /// # Panics
    /// When the ring or the control line are not inside the region, or not aligned.
    pub(super) fn new(region: &Region, control: usize, ring: usize, slots: u32) -> Self {
        assert!(
            slots.is_power_of_two()
                && ring.is_multiple_of(SLOT_LEN)
                && control.is_multiple_of(CONTROL_LEN)
        );
        let slots_start = region.at(ring, slots as usize * SLOT_LEN);
        let control = region.at(control, CONTROL_LEN);
        Self {
            slots_start,
            control,
            mask: slots - 1,
            _mapped: region.clone(),
        }
    }

    /// The consumer's word beside its tail: whether it lets the producer use chunks.
    pub(super) fn accepts(&self) -> &AtomicU32 {
        self.control_word(ACCEPTS)
    }

    /// The producer's word: whether it sleeps and wants to hear of room.
    pub(super) fn wants(&self) -> &AtomicU32 {
        self.control_word(WANTS)
    }

    #[inline]
    fn control_word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at < CONTROL_LEN);
        // SAFETY: inside the control line.
        let word = unsafe { self.control.add(at) };
        // SAFETY: mapped as long as `self`, aligned as the control line is, and only used as an atomic.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    #[inline]
    fn slot(&self, slot: u32) -> NonNull<u8> {
        // SAFETY: the mask keeps it inside the ring.
        unsafe { self.slots_start.add((slot & self.mask) as usize * SLOT_LEN) }
    }

    #[inline]
    fn frame_word(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: a slot starts with its frame, which is aligned and only used as an atomic.
        unsafe { AtomicU64::from_ptr(self.slot(slot).as_ptr().cast()) }
    }
}

impl<M> Producer<M> {
    pub(super) const fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M> Consumer<M> {
    pub(super) const fn memory(&self) -> &M {
        &self.memory
    }
}

impl Memory for Mapped {
    #[inline]
    fn slots(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    fn frame(&self, slot: u32) -> u64 {
        u64::from_le(self.frame_word(slot).load(Acquire))
    }

    #[inline]
    fn tail(&self) -> u32 {
        self.control_word(TAIL).load(Acquire)
    }

    #[inline]
    fn set_tail(&self, tail: u32) {
        self.control_word(TAIL).store(tail, Release);
    }

    /// The consumer polls the first line, and takes it away between any two writes to it: so the second line is written
    /// before it, and the first one all at once, from a copy. Both are asked for at the start, so that they come together.
    #[inline]
    fn write(&self, slot: u32, first: &[u8], second: &[u8], frame: u64) {
        assert!(
            first.len() <= ROOM && second.len() <= ROOM - first.len(),
            "{} + {} bytes in a slot",
            first.len(),
            second.len()
        );
        prefetch_line(self.slot(slot).as_ptr());
        let (first_near, first_far) = first.split_at(first.len().min(LINE_ROOM));
        let (second_near, second_far) =
            second.split_at(second.len().min(LINE_ROOM - first_near.len()));
        if first.len() + second.len() > LINE_ROOM {
            prefetch_line(self.slot(slot).as_ptr().wrapping_add(LINE_LEN));
            self.copy_far(slot, LINE_ROOM, first_far);
            self.copy_far(slot, first.len() + second_near.len(), second_far);
        }
        let mut line = [MaybeUninit::uninit(); LINE_ROOM];
        line[..first_near.len()].write_copy_of_slice(first_near);
        line[first_near.len()..][..second_near.len()].write_copy_of_slice(second_near);
        self.copy_near(slot, &line);
        self.frame_word(slot).store(frame.to_le(), Release);
    }

    #[inline]
    fn read(&self, slot: u32, offset: usize, len: usize) -> Payload<'_> {
        assert!(
            offset <= ROOM && len <= ROOM - offset,
            "{len} bytes at {offset} of a slot"
        );
        // SAFETY: inside the slot, as just checked.
        let start = unsafe { self.slot(slot).add(FRAME_LEN + offset) };
        // SAFETY: the slot is mapped as long as `self`, and lent no longer.
        unsafe { Payload::from_raw(start, len) }
    }
}

impl Mapped {
    #[inline]
    fn copy_near(&self, slot: u32, line: &[MaybeUninit<u8>; LINE_ROOM]) {
        // SAFETY: behind the frame, in the slot's first line.
        let into = unsafe { self.slot(slot).add(FRAME_LEN) };
        // SAFETY: the line is in the mapped ring, and the copy is on our stack.
        unsafe {
            into.as_ptr()
                .cast::<[MaybeUninit<u8>; LINE_ROOM]>()
                .copy_from_nonoverlapping(line, 1)
        };
    }

    /// `write` has checked that it fits.
    #[inline]
    fn copy_far(&self, slot: u32, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= ROOM);
        // SAFETY: inside the slot: `write` checked.
        let into = unsafe { self.slot(slot).add(FRAME_LEN + offset) };
        // SAFETY: as above; shared memory of the ring cannot overlap a caller's slice, which nobody else may write.
        unsafe {
            into.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

/// Two cache lines, which the processor's prefetcher takes together.
pub(super) const SLOT_LEN: usize = 128;
pub(super) const CONTROL_LEN: usize = 128;
/// Header and body together that fit into a slot.
pub(super) const ROOM: usize = SLOT_LEN - FRAME_LEN;
/// The longest header: it leaves room for a chunk's number.
pub(super) const HEADER_MAX: usize = ROOM - FRAME_LEN;
const FRAME_LEN: usize = 8;
const LINE_LEN: usize = 64;
const LINE_ROOM: usize = LINE_LEN - FRAME_LEN;

/// From one lap to the next the consumer says this many times how far it is, when it is busy all the time.
const PUBLISHED_PER_LAP: u32 = 4;

// The control line: the first half is the consumer's, the second the producer's.
const TAIL: usize = 0;
const ACCEPTS: usize = 4;
const WANTS: usize = 64;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::{
        CONTROL_LEN, Consumer, Frame, HEADER_MAX, Malformed, Mapped, MaybeUninit, Producer,
        SLOT_LEN,
    };
    use crate::memory::Region;

    const SLOTS: u32 = 4;

    fn ring(start: u32) -> (Producer<Mapped>, Consumer<Mapped>) {
        let region =
            Region::create("ring-test", CONTROL_LEN + SLOTS as usize * SLOT_LEN, true).unwrap();
        let mapped = || Mapped::new(&region, 0, CONTROL_LEN, SLOTS);
        (
            Producer::new(mapped(), start),
            Consumer::new(mapped(), start),
        )
    }

    #[test]
    fn positions_wrap_around() {
        let (mut producer, mut consumer) = ring(u32::MAX - 9);
        let mut given_back = 0;
        for i in 0..50_u8 {
            assert!(producer.has_room());
            producer.push_chunk(&[i; 3], i.into(), 5);
            let frame = consumer.peek().unwrap().unwrap();
            assert_eq!(
                frame,
                Frame {
                    header: 3,
                    body: 5,
                    chunk: true
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
        let good = Frame {
            header: 112,
            body: 8192,
            chunk: true,
        };
        assert_eq!(Frame::unpack(good.pack(7)), Ok(good));
        let bad = [
            113 << 32 | 1 << 40,      // a header longer than any
            24 << 32 | 97 << 48,      // more than fits into the slot
            24 << 32 | 2 << 40,       // flags that nobody sets
            1 << 40 | 8193_u64 << 48, // more than a chunk
        ];
        for frame in bad {
            assert_eq!(Frame::unpack(frame), Err(Malformed), "{frame:x}");
        }
    }

    #[test]
    fn a_tail_that_cannot_be_is_ignored() {
        let (mut producer, _consumer) = ring(100);
        (0..SLOTS).for_each(|_| producer.push(&[], &[]));
        for tail in [0, 99, 105, u32::MAX] {
            super::Memory::set_tail(&producer.memory, tail);
            assert!(!producer.has_room(), "{tail}");
        }
    }
}
