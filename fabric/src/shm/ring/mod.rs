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

mod consumer;
mod frame;
mod producer;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub(super) use self::{
    consumer::{PlainLook, RingConsumer},
    frame::{MalformedFrame, RingFrame},
    producer::RingProducer,
};
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
