//! The first word of a slot: which message or cells it holds.

use super::{CELL_FLAG, CELL_LEN, CELLS, HEADER_MAX, NAMED_SLOTS_MOD, ROOM};
use crate::shm::segment::CHUNK_LEN;

/// The frame of a slot with a message, or with cells, that arrived and were not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shm) struct RingFrame {
    pub(in crate::shm) header: usize,
    /// Length of the body, or of that of each cell.
    pub(in crate::shm) body: usize,
    /// True if the body is in a chunk, whose number is in the slot.
    pub(in crate::shm) chunk: bool,
    /// Number of cells in the slot, or 0 if the slot holds one message with its header.
    pub(in crate::shm) cells: u32,
    /// Messages that its sender had written to named slots before, modulo [`NAMED_SLOTS_MOD`].
    pub(in crate::shm) slot_messages: u8,
}

/// The frame is invalid, so the peer's memory is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shm) struct MalformedFrame;

impl RingFrame {
    #[inline]
    pub(super) fn pack(self, stamp: u32) -> u64 {
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
    pub(super) fn unpack(frame: u64) -> Result<Self, MalformedFrame> {
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

    /// Unpacks the frame of a slot that holds one message, if header and body are in the slot and have these lengths.
    #[inline]
    pub(super) fn plain(frame: u64, header: usize, body: usize) -> Option<Self> {
        if body > ROOM - header {
            return None;
        }
        let [.., flags, _, _] = frame.to_le_bytes();
        let plain = Self {
            header,
            body,
            chunk: false,
            cells: 0,
            slot_messages: flags >> 1,
        };
        (plain.pack(stamp_of(frame)) == frame).then_some(plain)
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
            && self.body <= CHUNK_LEN
    }
}

#[inline]
pub(super) const fn stamp_of(frame: u64) -> u32 {
    let [a, b, c, d, ..] = frame.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Returns the number of cells of a frame, or 0 if the frame is not one of cells.
#[inline]
pub(super) const fn cells_of(frame: u64) -> u32 {
    let [_, _, _, _, header, ..] = frame.to_le_bytes();
    if header > CELL_FLAG {
        (header - CELL_FLAG) as u32
    } else {
        0
    }
}
