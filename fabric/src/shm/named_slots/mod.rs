//! Named slots between two ranks, in one direction: short messages, which the receiver looks for by name.
//!
//! A ring hands out messages in order, and its receiver must sort them. A rank that knows the name of the message that it waits
//! for, such as that of a collective, polls the line of that name. That needs no order, no credits and no matching.
//!
//! - The sender writes the line, its stamp last.
//! - The receiver reports free lines in a word with one bit per slot, which flips with each message taken.
//! - The sender loads that word only when a slot seems to be full, and once for all slots. It goes on only when two dozen slots
//!   are free again. A sender that runs ahead would otherwise take the line of that word from the receiver with each message.
//! - Names are used in order of their tags, so each end prefetches the line of the next name before a message with it comes.
//! - A message that does not fit into a line lies in chunks of the sender, which the line names. They are free again when the
//!   slot is.
//! - Slots are few: a sender whose slot is full sends the message by other means.

mod lent_chunks;
#[cfg(test)]
mod tests;

use std::{
    hint,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

pub(super) use self::lent_chunks::LIST_LEN;
use self::lent_chunks::LentChunks;
use super::{
    pool::ChunkPool,
    ring::NAMED_SLOTS_MOD,
    segment::{CHUNK_LEN, ShmSegment},
};
use crate::{
    driver::{PayloadView, SLOT_MESSAGE_MAX, SlotName, SlotReceipt},
    memory::{MemoryRegion, RegionWords, prefetch_for_read, prefetch_line},
};

/// Slots of two ranks in one direction.
///
/// That many messages may be in flight before one takes the slower path, and that far a sender runs ahead of receivers that
/// wait for a processor. The slots fill one page, and their bits one word.
pub(super) const NAMED_SLOTS: usize = 64;

/// Most slots that may still be full when a sender goes on that has found its slot full.
const FULL_MAX: u32 = 40;

/// Spin hints between two loads of the receiver's bits. They take a quarter of a microsecond, in which the receiver takes a
/// message or two.
const PAUSES: u32 = 4;

/// Bytes of all slots of one direction.
pub(super) const NAMED_SLOTS_LEN: usize = NAMED_SLOTS * LINE_LEN;

/// The memory of slots, as seen by both its ends.
pub(super) trait NamedSlotMemory {
    /// Writes the words after the stamp, then stores the stamp with release ordering.
    fn write(&self, slot: usize, words: &[u64], stamp: u64);
    /// Prefetches a slot that will be written soon.
    fn prefetch_for_write(&self, slot: usize);
    /// Prefetches a slot that will be read soon.
    fn prefetch_for_read(&self, slot: usize);
    /// Loads the stamp, and acquires what was written before it.
    fn stamp(&self, slot: usize) -> u64;
    /// Returns a word after the stamp.
    fn word(&self, slot: usize, at: usize) -> u64;
    /// Loads the receiver's bits, and acquires its reads of the slots that these bits show as free.
    fn taken(&self) -> u64;
    /// Stores the receiver's bits, which releases the slots that they show as free.
    fn set_taken(&self, taken: u64);
    /// Returns the first `len` bytes of a chunk of the sender, if there is such a chunk.
    fn chunk(&self, chunk: u32, len: usize) -> Option<PayloadView<'_>>;
}

/// Sending end.
#[derive(Debug)]
pub(super) struct NamedSlotSender<L> {
    lines: L,
    /// Bits that flip with each message written.
    written: u64,
    /// The receiver's bits when the sender last loaded them. May be stale, which only makes slots look full.
    taken: u64,
    count: u32,
    lent: LentChunks,
}

impl<L: NamedSlotMemory> NamedSlotSender<L> {
    pub(super) const fn new(lines: L) -> Self {
        Self {
            lines,
            written: 0,
            taken: 0,
            count: 0,
            lent: LentChunks::new(),
        }
    }

    /// Returns how many messages were written.
    #[inline]
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Returns true if the slot of this name is free.
    #[inline]
    pub(super) fn has_room(&mut self, name: SlotName) -> bool {
        self.is_free(slot_of(name))
    }

    /// Writes a message of at most [`LINE_MAX`] bytes to its slot, which must be free. `ring` is the current position of the ring
    /// next to these slots.
    #[inline]
    pub(super) fn put(&mut self, name: SlotName, sig: u64, bytes: &[u8], ring: u32) {
        let mut words = [0; BEHIND];
        let (body, last) = bytes.as_chunks::<8>();
        for (into, word) in words[BODY_AT..].iter_mut().zip(body) {
            *into = u64::from_le_bytes(*word);
        }
        if !last.is_empty() {
            let mut word = [0; 8];
            word[..last.len()].copy_from_slice(last);
            words[BODY_AT + body.len()] = u64::from_le_bytes(word);
        }
        let used = BODY_AT + bytes.len().div_ceil(8);
        words[LEN_AT] = pack(ring << LEN_BITS | low(bytes.len() as u64), name.ctx);
        words[SIG_AT] = sig;
        self.leave(name, &words[..used]);
    }

    /// Writes a longer message of `bytes` bytes to its slot in the same way. Its bytes are in chunks, as the last message of the
    /// pool.
    pub(super) fn put_in_chunks(
        &mut self,
        name: SlotName,
        sig: u64,
        bytes: usize,
        ring: u32,
        pool: &mut ChunkPool,
    ) {
        if self.lent.count() >= LENT_MAX {
            self.reclaim(|chunk| pool.give_from_slot(chunk));
        }
        let number = self.count.wrapping_add(1);
        let chunks = self.lent.lend(slot_of(name), number, pool);
        let mut words = [0; BEHIND];
        words[BODY_AT] = bytes as u64;
        for (nth, chunk) in chunks.iter().enumerate() {
            words[BODY_AT + 1 + nth / 2] |= u64::from(*chunk) << (nth % 2 * 32);
        }
        words[LEN_AT] = pack(ring << LEN_BITS | IN_CHUNKS, name.ctx);
        words[SIG_AT] = sig;
        self.leave(name, &words);
    }

    /// Returns to `give` the chunks of messages that were taken.
    pub(super) fn reclaim(&mut self, give: impl FnMut(u32)) {
        if self.lent.count() == 0 {
            return;
        }
        self.taken = self.lines.taken();
        let (full, lines) = (self.full(), &self.lines);
        // A slot that is full again holds a later message, which may need no chunks.
        let lies = |slot: usize, number| full >> slot & 1 == 1 && high(lines.stamp(slot)) == number;
        self.lent.give_unless(lies, give);
    }

    /// Returns all chunks to `give`, because the receiver is down.
    pub(super) fn reclaim_all(&mut self, give: impl FnMut(u32)) {
        self.lent.give_unless(|_, _| false, give);
    }

    /// Returns true if chunks are in slots.
    pub(super) const fn has_lent(&self) -> bool {
        self.lent.count() > 0
    }

    #[inline]
    fn leave(&mut self, name: SlotName, words: &[u64]) {
        let slot = slot_of(name);
        self.written ^= 1 << slot;
        self.count = self.count.wrapping_add(1);
        self.lines.write(slot, words, pack(self.count, name.tag));
        let next = (slot + 1) % NAMED_SLOTS;
        if self.full() >> next & 1 == 0 {
            self.lines.prefetch_for_write(next);
        }
    }

    #[inline]
    fn is_free(&mut self, slot: usize) -> bool {
        if self.full() >> slot & 1 == 0 {
            return true;
        }
        self.taken = self.lines.taken();
        let goes_on = self.full() >> slot & 1 == 0 && self.full().count_ones() <= FULL_MAX;
        if !goes_on {
            // The receiver writes these bits with each message, so a sender that reads them all the time would slow it down.
            (0..PAUSES).for_each(|_| hint::spin_loop());
        }
        goes_on
    }

    /// Returns the bits of slots that were full when the sender last loaded the receiver's bits.
    #[inline]
    fn full(&self) -> u64 {
        self.taken ^ self.written
    }
}

/// Receiving end.
#[derive(Debug)]
pub(super) struct NamedSlotReceiver<L> {
    lines: L,
    /// By slot: number of the message that was last taken.
    last: [u32; NAMED_SLOTS],
    taken: u64,
    count: u32,
    /// Position up to which the ring next to the slots was read, or `None` once it is not read any more.
    ring: Option<u32>,
    /// Messages that the sender had written to slots before the last ring message that was read, modulo [`NAMED_SLOTS_MOD`].
    passed: u8,
    /// Bits of slots whose message the ring had already passed when its position last crossed a quarter. They stay passed however
    /// far the ring goes on.
    behind: u64,
}

impl<L: NamedSlotMemory> NamedSlotReceiver<L> {
    pub(super) const fn new(lines: L) -> Self {
        Self {
            lines,
            last: [0; NAMED_SLOTS],
            taken: 0,
            count: 0,
            ring: Some(0),
            passed: 0,
            behind: 0,
        }
    }

    /// Returns the number that the sender stored with the message of this name, if it is there and not ahead of the ring.
    #[inline]
    pub(super) fn peek(&self, name: SlotName) -> Option<u64> {
        let slot = slot_of(name);
        self.number(slot, name)?;
        if self.is_ahead(slot) {
            return None;
        }
        Some(self.lines.word(slot, SIG_AT))
    }

    /// Takes the message of this name, if it is there, after `fill` has read it.
    #[inline]
    pub(super) fn take(
        &mut self,
        name: SlotName,
        fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool,
    ) -> Option<SlotReceipt> {
        let slot = slot_of(name);
        let number = self.number(slot, name)?;
        Some(self.take_from(slot, number, fill))
    }

    /// Takes the message of this name like [`take`](Self::take), if [`peek`](Self::peek) returns `sig`. Otherwise returns what
    /// `peek` returns.
    #[inline]
    pub(super) fn take_expected(
        &mut self,
        name: SlotName,
        sig: u64,
        fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool,
    ) -> Result<SlotReceipt, Option<u64>> {
        let slot = slot_of(name);
        let number = self.number(slot, name).ok_or(None)?;
        if self.is_ahead(slot) {
            return Err(None);
        }
        match self.lines.word(slot, SIG_AT) {
            its if its == sig => Ok(self.take_from(slot, number, fill)),
            other => Err(Some(other)),
        }
    }

    /// Takes the message with this number from its slot, after `fill` has read it.
    #[inline(always)]
    fn take_from(
        &mut self,
        slot: usize,
        number: u32,
        fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool,
    ) -> SlotReceipt {
        let taken = SlotReceipt {
            sig: self.lines.word(slot, SIG_AT),
            overtook: number != self.count.wrapping_add(1),
            filled: self.read(slot, fill),
        };
        self.last[slot] = number;
        self.count = self.count.wrapping_add(1);
        self.taken ^= 1 << slot;
        self.behind &= !(1 << slot);
        self.lines.set_taken(self.taken);
        self.lines.prefetch_for_read((slot + 1) % NAMED_SLOTS);
        taken
    }

    /// Hands the message in a slot to `fill`. A peer wrote it, so its length and chunks may be invalid.
    #[inline]
    fn read(&self, slot: usize, fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool) -> bool {
        let len = high(self.lines.word(slot, LEN_AT)) & LEN_MASK;
        if len > low(LINE_MAX as u64) {
            return len == IN_CHUNKS && self.read_chunks(slot, fill);
        }
        let mut words = [[0; 8]; LINE_MAX / 8];
        let used = (len as usize).div_ceil(8);
        for (into, at) in words[..used].iter_mut().zip(BODY_AT..) {
            *into = self.lines.word(slot, at).to_le_bytes();
        }
        fill(&[PayloadView::from_slice(
            &words.as_flattened()[..len as usize],
        )])
    }

    fn read_chunks(&self, slot: usize, fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool) -> bool {
        let word = |at| self.lines.word(slot, BODY_AT + at);
        let mut pieces = [PayloadView::from_slice(&[]); CHUNKS_MAX];
        let mut left = usize::try_from(word(0)).unwrap_or(usize::MAX);
        let count = left.div_ceil(CHUNK_LEN);
        if count > CHUNKS_MAX {
            return false;
        }
        for (nth, piece) in pieces[..count].iter_mut().enumerate() {
            let chunk = low(word(1 + nth / 2) >> (nth % 2 * 32));
            let len = left.min(CHUNK_LEN);
            let Some(body) = self.lines.chunk(chunk, len) else {
                return false;
            };
            *piece = body;
            left -= len;
        }
        fill(&pieces[..count])
    }

    pub(super) const fn lines_mut(&mut self) -> &mut L {
        &mut self.lines
    }

    /// Records that ring messages were read: the ring's new position, and how many messages were in slots before the last of
    /// them.
    #[inline]
    pub(super) fn note_ring(&mut self, position: u32, slots: u8) {
        let before = self.ring.replace(position);
        self.passed = slots;
        if before.is_none_or(|before| (before ^ position) >> QUARTER_BITS != 0) {
            self.note_behind();
        }
    }

    #[cold]
    fn note_behind(&mut self) {
        for slot in 0..NAMED_SLOTS {
            let is_new = high(self.lines.stamp(slot)) != self.last[slot];
            if is_new && !self.is_ahead(slot) {
                self.behind |= 1 << slot;
            }
        }
    }

    /// Records that the ring is not read any more.
    pub(super) const fn leave_ring(&mut self) {
        self.ring = None;
    }

    /// Returns true if the message in a slot was sent after one that is still in the ring.
    #[inline]
    fn is_ahead(&self, slot: usize) -> bool {
        let sent = high(self.lines.word(slot, LEN_AT)) >> LEN_BITS;
        // The ring is shorter than half of what these bits count. What it has passed is recorded before it is half way round.
        self.ring.is_some_and(|read| {
            let unread = sent.wrapping_sub(read) << LEN_BITS;
            unread != 0 && unread < 1 << 31 && self.behind >> slot & 1 == 0
        })
    }

    /// Returns true if a slot message that was sent before the last ring message read has not been taken.
    ///
    /// The answer compares counts, so it may be wrong if later slot messages were taken, which
    /// [`overtook`](SlotReceipt::overtook) reports.
    #[inline]
    pub(super) const fn is_passed(&self) -> bool {
        let behind = (self.passed as u32).wrapping_sub(self.count) % NAMED_SLOTS_MOD as u32;
        behind != 0 && behind as usize <= NAMED_SLOTS
    }

    /// Returns the names of all messages in the slots.
    pub(super) fn names(&self) -> Vec<SlotName> {
        let name = |slot: usize| {
            let stamp = self.lines.stamp(slot);
            let ctx = low(self.lines.word(slot, LEN_AT));
            let tag = low(stamp);
            let name = SlotName { ctx, tag };
            (high(stamp) != self.last[slot] && slot_of(name) == slot).then_some(name)
        };
        (0..NAMED_SLOTS).filter_map(name).collect()
    }

    /// Returns the number of the message in the slot, if it is a new one of this name.
    #[inline]
    fn number(&self, slot: usize, name: SlotName) -> Option<u32> {
        let stamp = self.lines.stamp(slot);
        let is_it = low(stamp) == name.tag
            && high(stamp) != self.last[slot]
            && low(self.lines.word(slot, LEN_AT)) == name.ctx;
        is_it.then_some(high(stamp))
    }
}

/// Slots in memory that two processes map.
#[derive(Debug)]
pub(super) struct MappedNamedSlots {
    lines: RegionWords,
    taken: RegionWords,
    /// The sender's segment, once it is mapped, as long as messages may be in its chunks.
    chunks: Option<ShmSegment>,
}

impl MappedNamedSlots {
    /// Maps the slots at `start` and the word of bits at `taken_at`, both offsets into `region`.
    pub(super) fn new(region: &MemoryRegion, start: usize, taken_at: usize) -> Self {
        Self {
            lines: region.words(start, NAMED_SLOTS_LEN / 8),
            taken: region.words(taken_at, 1),
            chunks: None,
        }
    }

    pub(super) fn read_chunks(&mut self, of: ShmSegment) {
        self.chunks = Some(of);
    }

    pub(super) fn forget_chunks(&mut self) {
        self.chunks = None;
    }

    #[inline]
    fn line(&self, slot: usize) -> &NamedSlotLine {
        let (lines, _) = self.lines.as_chunks();
        &lines[slot]
    }
}

/// A slot: the stamp, and the words after it.
type NamedSlotLine = [AtomicU64; LINE_LEN / 8];

impl NamedSlotMemory for MappedNamedSlots {
    #[inline]
    fn write(&self, slot: usize, words: &[u64], stamp: u64) {
        let [first, behind @ ..] = self.line(slot);
        prefetch_line(first.as_ptr().cast());
        for (word, behind) in words.iter().zip(behind) {
            behind.store(*word, Relaxed);
        }
        first.store(stamp, Release);
    }

    #[inline]
    fn prefetch_for_write(&self, slot: usize) {
        prefetch_line(self.line(slot).as_ptr().cast());
    }

    #[inline]
    fn prefetch_for_read(&self, slot: usize) {
        prefetch_for_read(self.line(slot).as_ptr().cast());
    }

    #[inline]
    fn stamp(&self, slot: usize) -> u64 {
        self.line(slot)[0].load(Acquire)
    }

    #[inline]
    fn word(&self, slot: usize, at: usize) -> u64 {
        self.line(slot)[1 + at].load(Relaxed)
    }

    #[inline]
    fn taken(&self) -> u64 {
        self.taken[0].load(Acquire)
    }

    #[inline]
    fn set_taken(&self, taken: u64) {
        self.taken[0].store(taken, Release);
    }

    fn chunk(&self, chunk: u32, len: usize) -> Option<PayloadView<'_>> {
        let segment = self.chunks.as_ref()?;
        let is_there = chunk < segment.shape().chunks && len <= CHUNK_LEN;
        is_there.then(|| segment.region().payload(segment.shape().chunk(chunk), len))
    }
}

/// Returns the slot of a name. Consecutive tags of a context use different slots, and so do the first tags of several contexts.
#[inline]
const fn slot_of(name: SlotName) -> usize {
    let spread = name.tag.wrapping_add((name.ctx >> 1).wrapping_mul(11));
    spread as usize % NAMED_SLOTS
}

#[inline]
fn pack(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[inline]
const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline]
const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// Bytes of a slot, which is one cache line. It holds the stamp (number and tag), then length, ring position and context, then
/// the type, then the message.
const LINE_LEN: usize = 64;
/// Bits of the length. The position has the other bits of half a word.
const LEN_BITS: u32 = 8;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;
/// Bits of a quarter of the position's remaining range.
const QUARTER_BITS: u32 = 32 - LEN_BITS - 2;
const LEN_AT: usize = 0;
const SIG_AT: usize = 1;
const BODY_AT: usize = 2;
/// Words after the stamp.
const BEHIND: usize = BODY_AT + LINE_MAX / 8;
/// Longest message that fits into a line after the fields that name it, in bytes.
pub(super) const LINE_MAX: usize = 40;
/// Value of the length for a message in chunks. Its first word is its length, followed by its chunks, two to a word.
const IN_CHUNKS: u32 = LEN_MASK;
const CHUNKS_MAX: usize = (LINE_MAX / 8 - 1) * 2;
/// Chunks in slots before the sender checks which are free. A check takes the receiver's line from it, so it should be rare.
const LENT_MAX: usize = 8;

const _: () = assert!(8 * (1 + BODY_AT) + LINE_MAX == LINE_LEN, "one line crosses");
const _: () = assert!(
    SLOT_MESSAGE_MAX == CHUNKS_MAX * CHUNK_LEN,
    "as many as a line names"
);
const _: () = assert!(
    NAMED_SLOTS * 2 <= NAMED_SLOTS_MOD as usize,
    "numbers show which thread was first"
);
