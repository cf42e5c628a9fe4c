//! A rank's segment: the memory that it owns and its peers map.
//!
//! One memfd per rank. It is sparse, so unused parts have no pages. In order, it contains:
//!
//! - the head and the contact bits;
//! - the bits of the ranks that the owner has given up;
//! - the table of regions;
//! - for each source rank, a control line;
//! - for each source rank, a ring and named slots, written by that rank;
//! - the chunks, written by the owner.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{
        AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use super::{
    board::{Board, BoardEntry, index},
    handover::publish_memory,
    mapped_ring::CONTROL_LEN,
    named_slots::NAMED_SLOTS_LEN,
    peer_fds,
    ring::SLOT_LEN,
};
use crate::memory::{MemoryRegion, RegionWord};

/// A mapped segment, this rank's own or a peer's. Its shape was checked against its length.
#[derive(Clone, Debug)]
pub(super) struct ShmSegment {
    region: MemoryRegion,
    shape: SegmentShape,
}

/// The counts that determine a segment's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentShape {
    /// Number of ranks on the node.
    pub(super) size: u32,
    /// Slots of each ring, a power of two.
    pub(super) slots: u32,
    /// Chunks in the pool.
    pub(super) chunks: u32,
}

impl ShmSegment {
    /// Creates the segment of `rank`, which is this rank.
    pub(super) fn create(board: &Board, rank: u32, shape: SegmentShape) -> io::Result<Self> {
        let region = MemoryRegion::create("ripstop-segment", shape.len(), false)?;
        region.reserve(0, HEAD_LEN)?;
        for (at, value) in [
            (RANK_AT, rank),
            (SIZE_AT, shape.size),
            (SLOTS_AT, shape.slots),
            (CHUNKS_AT, shape.chunks),
        ] {
            region.atomic_u32(at).store(value, Relaxed);
        }
        region.atomic_u64(COOKIE_AT).store(board.cookie(), Relaxed);
        region
            .atomic_u64(SECRET_AT)
            .store(RandomState::new().hash_one(rank), Relaxed);
        region.atomic_u64(MAGIC_AT).store(MAGIC, Release);
        publish_memory(&region);
        Ok(Self { region, shape })
    }

    /// Maps a peer's segment.
    pub(super) fn open(board: &Board, rank: u32, entry: &BoardEntry) -> io::Result<Self> {
        let fd = peer_fds::memory(board, rank, entry.segment_fd)?;
        let len = usize::try_from(entry.segment_len).unwrap_or(usize::MAX);
        let region = MemoryRegion::open(fd, len, true)?;
        let of = |at| region.atomic_u32(at).load(Relaxed);
        let ours = region.atomic_u64(MAGIC_AT).load(Acquire) == MAGIC
            && region.atomic_u64(COOKIE_AT).load(Relaxed) == board.cookie()
            && of(RANK_AT) == rank;
        let shape = SegmentShape {
            size: of(SIZE_AT),
            slots: of(SLOTS_AT),
            chunks: of(CHUNKS_AT),
        };
        if !ours || shape.size != board.size() || !shape.is_sane() || shape.len() > region.len() {
            let why = format!(
                "the descriptor that rank {rank} has open is not its segment: run the same build of the program on all \
                 ranks"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { region, shape })
    }

    pub(super) const fn region(&self) -> &MemoryRegion {
        &self.region
    }

    pub(super) const fn shape(&self) -> SegmentShape {
        self.shape
    }

    /// Returns the descriptor and the length in bytes that the board publishes.
    pub(super) fn published(&self) -> io::Result<(u32, u64)> {
        let fd = u32::try_from(self.region.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        Ok((fd, self.region.len() as u64))
    }

    /// Returns a random value that keys to the owner's plain memory carry, so that keys of an earlier process and random ones are
    /// refused.
    pub(super) fn secret(&self) -> u64 {
        self.region.atomic_u64(SECRET_AT).load(Relaxed)
    }

    /// Returns the counter that grows whenever a rank makes contact.
    #[inline]
    pub(super) fn contacts(&self) -> &AtomicU32 {
        self.region.atomic_u32(CONTACTS_AT)
    }

    /// Returns the same counter, to be looked at in each turn.
    pub(super) fn contacts_word(&self) -> RegionWord {
        self.region.word(CONTACTS_AT)
    }

    /// Notifies the owner that `rank` writes to its ring from now on.
    pub(super) fn contact(&self, rank: u32) {
        // The bit is set first, because the owner scans the bits only when the counter has changed.
        self.contact_word(rank / 32)
            .fetch_or(1 << (rank % 32), AcqRel);
        self.contacts().fetch_add(1, Release);
    }

    /// Bits of the ranks that made contact, 32 ranks to a word.
    pub(super) fn contact_word(&self, word: u32) -> &AtomicU32 {
        self.region.atomic_u32(CONTACT_BITS_AT + index(word) * 4)
    }

    /// Records that the owner has given up `rank`, which must not access the owner's memory any more.
    pub(super) fn close_to(&self, rank: u32) {
        self.closed_word(rank).fetch_or(1 << (rank % 32), AcqRel);
    }

    #[inline]
    pub(super) fn is_closed_to(&self, rank: u32) -> bool {
        self.closed_word(rank).load(Acquire) >> (rank % 32) & 1 == 1
    }

    fn closed_word(&self, rank: u32) -> &AtomicU32 {
        self.region
            .atomic_u32(CLOSED_BITS_AT + index(rank / 32) * 4)
    }

    /// Returns the offset of an entry in the owner's table of regions, or `None` if there is no such slot.
    pub(super) const fn table_entry(slot: u32) -> Option<usize> {
        if slot < TABLE_SLOTS {
            Some(HEAD_LEN + index(slot) * TABLE_ENTRY_LEN)
        } else {
            None
        }
    }

    /// Makes the pages that `rank` needs to send to the owner, so that no later access to them can fail.
    pub(super) fn reserve_ring(&self, rank: u32) -> io::Result<()> {
        self.region.reserve(self.shape.control(rank), CONTROL_LEN)?;
        self.region
            .reserve(self.shape.ring(rank), self.shape.inbound_len())
    }

    /// Makes the pages of some chunks.
    pub(super) fn reserve_chunks(&self, from: u32, count: u32) -> io::Result<()> {
        self.region
            .reserve(self.shape.chunk(from), index(count) * CHUNK_LEN)
    }
}

impl SegmentShape {
    /// Returns the offset of the control line of `rank`.
    pub(super) const fn control(self, rank: u32) -> usize {
        HEAD_LEN + TABLE_LEN + index(rank) * CONTROL_LEN
    }

    /// Returns the offset of the ring of `rank`.
    pub(super) const fn ring(self, rank: u32) -> usize {
        self.control(self.size).next_multiple_of(PAGE) + index(rank) * self.inbound_len()
    }

    /// Returns the offset of the named slots for messages from `rank`.
    pub(super) const fn named_slots(self, rank: u32) -> usize {
        self.ring(rank) + self.ring_len()
    }

    /// Returns the offset of a chunk.
    pub(super) const fn chunk(self, chunk: u32) -> usize {
        self.ring(self.size).next_multiple_of(PAGE) + index(chunk) * CHUNK_LEN
    }

    /// Returns true if all counts are within bounds and `slots` is a power of two, so that no layout overflows.
    pub(super) const fn is_sane(self) -> bool {
        self.slots.is_power_of_two()
            && self.slots <= SLOTS_MAX
            && self.chunks <= CHUNKS_MAX
            && self.chunks > 0
    }

    pub(super) const fn ring_len(self) -> usize {
        index(self.slots) * SLOT_LEN
    }

    /// Returns the length in bytes of a ring plus the named slots after it.
    pub(super) const fn inbound_len(self) -> usize {
        self.ring_len() + NAMED_SLOTS_LEN
    }

    const fn len(self) -> usize {
        self.chunk(self.chunks)
    }
}

/// Length of a chunk in bytes, which is also the longest body.
pub(super) const CHUNK_LEN: usize = 8192;

/// Most regions that a rank can have at a time.
pub(super) const TABLE_SLOTS: u32 = 1024;
const TABLE_ENTRY_LEN: usize = 16;
pub(super) const TABLE_LEN: usize = index(TABLE_SLOTS) * TABLE_ENTRY_LEN;

const SLOTS_MAX: u32 = 1 << 16;
const CHUNKS_MAX: u32 = 1 << 16;
pub(super) const PAGE: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"ripsegmt");
const MAGIC_AT: usize = 0;
const COOKIE_AT: usize = 8;
const RANK_AT: usize = 16;
const SIZE_AT: usize = 20;
const SLOTS_AT: usize = 24;
const CHUNKS_AT: usize = 28;
const SECRET_AT: usize = 32;
const CONTACTS_AT: usize = 64;
const CONTACT_BITS_AT: usize = 128;
const CLOSED_BITS_AT: usize = PAGE;
pub(super) const HEAD_LEN: usize = 2 * PAGE;

const _: () = assert!(
    CONTACT_BITS_AT + 30_000 / 8 + 4 <= CLOSED_BITS_AT
        && CLOSED_BITS_AT + 30_000 / 8 + 4 <= HEAD_LEN,
    "a bit for each rank fits into each page"
);
