//! A ring in memory that two processes map: where its slots and its control line are, and how they are written.
//!
//! Two measures here make a message faster by a third: a line is written in one go, and it is prefetched before that.
#![expect(
    unsafe_code,
    reason = "slots are written and read as raw bytes between two processes"
)]

use std::{
    mem::MaybeUninit,
    ptr::NonNull,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use super::ring::{CELL_LEN, CELLS, FRAME_LEN, ROOM, RingMemory, SLOT_LEN};
use crate::{
    driver::PayloadView,
    memory::{MemoryRegion, prefetch_for_read, prefetch_line},
};

/// A ring in mapped memory: `slots * SLOT_LEN` bytes at `slots_start`, and `CONTROL_LEN` bytes at `control`, all inside
/// `_mapped`.
#[derive(Debug)]
pub(super) struct MappedRing {
    slots_start: NonNull<u8>,
    control: NonNull<u8>,
    mask: u32,
    _mapped: MemoryRegion,
}

// SAFETY: the pointers lead into a `MemoryRegion`, which is `Send`. Each value is one end of a ring, and an end has one user at a
// time.
unsafe impl Send for MappedRing {}

impl MappedRing {
    /// Maps the control line at `control` and the slots at `ring`, both offsets into `region`.
    ///
    /// # Panics
    /// Panics if the ring or the control line is not inside the region, or not aligned.
    pub(super) fn new(region: &MemoryRegion, control: usize, ring: usize, slots: u32) -> Self {
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

    /// Returns the consumer's word that says whether the producer may use chunks. It is next to the tail.
    pub(super) fn accepts(&self) -> &AtomicU32 {
        self.control_word(ACCEPTS)
    }

    /// Returns the producer's word, which is 1 while it wants to be woken when there is room.
    pub(super) fn wants(&self) -> &AtomicU32 {
        self.control_word(WANTS)
    }

    #[inline]
    fn control_word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at < CONTROL_LEN);
        // SAFETY: the place is inside the control line.
        let word = unsafe { self.control.add(at) };
        // SAFETY: the memory is mapped as long as `self`, aligned as the control line is, and only used as an atomic.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    #[inline]
    fn slot(&self, slot: u32) -> NonNull<u8> {
        // SAFETY: the mask keeps the slot inside the ring.
        unsafe { self.slots_start.add((slot & self.mask) as usize * SLOT_LEN) }
    }

    #[inline]
    fn frame_word(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: a slot starts with its frame, which is aligned and only used as an atomic.
        unsafe { AtomicU64::from_ptr(self.slot(slot).as_ptr().cast()) }
    }
}

impl RingMemory for MappedRing {
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

    /// Writes the second line of the slot before the first, and the first in one go, from a copy.
    ///
    /// The consumer polls the first line, and takes it away between any two writes to it. Both lines are prefetched at the start,
    /// so that they arrive together.
    #[inline]
    fn write(&self, slot: u32, first: &[u8], second: &[u8], frame: u64) {
        assert!(
            first.len() <= ROOM && second.len() <= ROOM - first.len(),
            "{} + {} bytes in a slot",
            first.len(),
            second.len()
        );
        prefetch_line(self.slot(slot).as_ptr());
        // The usual message. Its line is put together in registers, which is not possible when the lengths are unknown.
        if let (Some(header), Some(word)) = (first.as_array::<24>(), second.as_array::<8>()) {
            let mut line = [MaybeUninit::uninit(); LINE_ROOM];
            line[..24].write_copy_of_slice(header);
            line[24..32].write_copy_of_slice(word);
            self.copy_to_line(slot, &line);
            self.frame_word(slot).store(frame.to_le(), Release);
            return;
        }
        let (first_in_line, first_after_line) = first.split_at(first.len().min(LINE_ROOM));
        let (second_in_line, second_after_line) =
            second.split_at(second.len().min(LINE_ROOM - first_in_line.len()));
        if first.len() + second.len() > LINE_ROOM {
            prefetch_line(self.slot(slot).as_ptr().wrapping_add(LINE_LEN));
            self.copy_after_line(slot, LINE_ROOM, first_after_line);
            self.copy_after_line(slot, first.len() + second_in_line.len(), second_after_line);
        }
        let mut line = [MaybeUninit::uninit(); LINE_ROOM];
        line[..first_in_line.len()].write_copy_of_slice(first_in_line);
        line[first_in_line.len()..][..second_in_line.len()].write_copy_of_slice(second_in_line);
        self.copy_to_line(slot, &line);
        self.frame_word(slot).store(frame.to_le(), Release);
    }

    #[inline]
    fn write_cell(&self, slot: u32, number: u32, cell: [u8; CELL_LEN], frame: u64) {
        assert!(number < CELLS, "cell {number} of a slot");
        // SAFETY: the cell is inside the slot's first line, as just checked.
        let into = unsafe { self.slot(slot).add(FRAME_LEN + number as usize * CELL_LEN) };
        // SAFETY: as above. The slot and the cell are aligned to eight bytes, and an array of bytes needs no alignment.
        unsafe { into.as_ptr().cast::<[u8; CELL_LEN]>().write(cell) };
        self.frame_word(slot).store(frame.to_le(), Release);
    }

    #[inline]
    fn prefetch_for_read(&self, slot: u32) {
        prefetch_for_read(self.slot(slot).as_ptr());
    }

    #[inline]
    fn prefetch_for_write(&self, slot: u32) {
        prefetch_line(self.slot(slot).as_ptr());
    }

    #[inline]
    fn read(&self, slot: u32, offset: usize, len: usize) -> PayloadView<'_> {
        assert!(
            offset <= ROOM && len <= ROOM - offset,
            "{len} bytes at {offset} of a slot"
        );
        // SAFETY: the place is inside the slot, as just checked.
        let start = unsafe { self.slot(slot).add(FRAME_LEN + offset) };
        // SAFETY: the slot is mapped as long as `self`, and lent no longer.
        unsafe { PayloadView::from_raw(start, len) }
    }
}

impl MappedRing {
    #[inline]
    fn copy_to_line(&self, slot: u32, line: &[MaybeUninit<u8>; LINE_ROOM]) {
        // SAFETY: after the frame, in the slot's first line.
        let into = unsafe { self.slot(slot).add(FRAME_LEN) };
        // SAFETY: the line is in the mapped ring, and the copy is on this thread's stack.
        unsafe {
            into.as_ptr()
                .cast::<[MaybeUninit<u8>; LINE_ROOM]>()
                .copy_from_nonoverlapping(line, 1)
        };
    }

    /// Copies bytes to a slot's second line. `write` has checked that they fit.
    #[inline]
    fn copy_after_line(&self, slot: u32, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= ROOM);
        // SAFETY: the place is inside the slot: `write` checked.
        let into = unsafe { self.slot(slot).add(FRAME_LEN + offset) };
        // SAFETY: as above. The ring's shared memory cannot overlap a caller's slice, which no other code may write.
        unsafe {
            into.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

/// Bytes of a control line.
pub(super) const CONTROL_LEN: usize = 128;
const LINE_LEN: usize = 64;
/// Bytes of a slot's first line after the frame.
const LINE_ROOM: usize = LINE_LEN - FRAME_LEN;

// The first half of the control line is the consumer's, the second the producer's.
const TAIL: usize = 0;
const ACCEPTS: usize = 4;
/// Offset in the control line of the receiver's word that says which named slots are free.
pub(super) const NAMED_SLOTS_TAKEN: usize = 8;
const WANTS: usize = 64;
