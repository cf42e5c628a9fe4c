//! A rank's segment: the memory it owns and its peers map.
//!
//! One memfd for each rank, sparse, so that what is not used does not exist:
//! head and contact bits · bits of who is given up · table of regions · for each source rank a control line · for each source
//! rank a ring and cells · chunks.
//! The rings and cells are written by the peers they belong to, the chunks by the owner.

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
    board::{Board, Entry, index},
    cells::CELLS_LEN,
    handover::lend_memory,
    mapped::CONTROL_LEN,
    reach,
    ring::SLOT_LEN,
};
use crate::memory::Region;

/// A mapped segment, own or a peer's. Its shape was checked against its length.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    region: Region,
    shape: Shape,
}

/// The counts that a segment's layout follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Ranks of the node.
    pub(super) size: u32,
    /// Slots of each ring; a power of two.
    pub(super) slots: u32,
    /// Chunks of the pool.
    pub(super) chunks: u32,
}

impl Segment {
    /// The segment of `rank`, which is us.
    pub(super) fn create(board: &Board, rank: u32, shape: Shape) -> io::Result<Self> {
        let region = Region::create("ripstop-segment", shape.len(), false)?;
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
        lend_memory(&region);
        Ok(Self { region, shape })
    }

    /// Maps the segment of a peer.
    pub(super) fn open(board: &Board, rank: u32, entry: &Entry) -> io::Result<Self> {
        let fd = reach::memory(board, rank, entry.segment_fd)?;
        let len = usize::try_from(entry.segment_len).unwrap_or(usize::MAX);
        let region = Region::open(fd, len, true)?;
        let of = |at| region.atomic_u32(at).load(Relaxed);
        let ours = region.atomic_u64(MAGIC_AT).load(Acquire) == MAGIC
            && region.atomic_u64(COOKIE_AT).load(Relaxed) == board.cookie()
            && of(RANK_AT) == rank;
        let shape = Shape {
            size: of(SIZE_AT),
            slots: of(SLOTS_AT),
            chunks: of(CHUNKS_AT),
        };
        if !ours || shape.size != board.size() || !shape.is_sane() || shape.len() > region.len() {
            let why = format!(
                "what rank {rank} has open is not its segment: run the same build of the program on all ranks"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { region, shape })
    }

    pub(super) const fn region(&self) -> &Region {
        &self.region
    }

    pub(super) const fn shape(&self) -> Shape {
        self.shape
    }

    /// The descriptor and the length that the board publishes.
    pub(super) fn published(&self) -> io::Result<(u32, u64)> {
        let fd = u32::try_from(self.region.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        Ok((fd, self.region.len() as u64))
    }

    /// What keys to the owner's plain memory carry, so that a key of another life or of chance is not taken for one.
    pub(super) fn secret(&self) -> u64 {
        self.region.atomic_u64(SECRET_AT).load(Relaxed)
    }

    /// Moves on whenever a rank makes contact.
    #[inline]
    pub(super) fn contacts(&self) -> &AtomicU32 {
        self.region.atomic_u32(CONTACTS_AT)
    }

    /// Tells the owner that `rank` writes to its ring from now on.
    pub(super) fn contact(&self, rank: u32) {
        self.contact_word(rank / 32)
            .fetch_or(1 << (rank % 32), AcqRel);
        self.contacts().fetch_add(1, Release);
    }

    /// Who made contact, 32 ranks to a word.
    pub(super) fn contact_word(&self, word: u32) -> &AtomicU32 {
        self.region.atomic_u32(CONTACT_BITS_AT + index(word) * 4)
    }

    /// The owner has given `rank` up: it is not to reach into the owner's memory any more.
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

    /// The owner's table of regions.
    pub(super) const fn table_entry(slot: u32) -> Option<usize> {
        if slot < TABLE_SLOTS {
            Some(HEAD_LEN + index(slot) * TABLE_ENTRY_LEN)
        } else {
            None
        }
    }

    /// Makes the pages that `rank` needs to send to the owner, so that no access to them can fail later.
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

impl Shape {
    /// Where `rank`'s control line is.
    pub(super) const fn control(self, rank: u32) -> usize {
        HEAD_LEN + TABLE_LEN + index(rank) * CONTROL_LEN
    }

    /// Where `rank`'s ring is.
    pub(super) const fn ring(self, rank: u32) -> usize {
        self.control(self.size).next_multiple_of(PAGE) + index(rank) * self.inbound_len()
    }

    /// Where the cells for `rank`'s messages are.
    pub(super) const fn cells(self, rank: u32) -> usize {
        self.ring(rank) + self.ring_len()
    }

    /// Where a chunk is.
    pub(super) const fn chunk(self, chunk: u32) -> usize {
        self.ring(self.size).next_multiple_of(PAGE) + index(chunk) * CHUNK_LEN
    }

    /// Powers of two and bounds, so that no layout overflows.
    pub(super) const fn is_sane(self) -> bool {
        self.slots.is_power_of_two()
            && self.slots <= SLOTS_MAX
            && self.chunks <= CHUNKS_MAX
            && self.chunks > 0
    }

    pub(super) const fn ring_len(self) -> usize {
        index(self.slots) * SLOT_LEN
    }

    /// Bytes of a ring and of the cells behind it.
    pub(super) const fn inbound_len(self) -> usize {
        self.ring_len() + CELLS_LEN
    }

    const fn len(self) -> usize {
        self.chunk(self.chunks)
    }
}

/// Bytes of a chunk: the longest body.
pub(super) const CHUNK_LEN: usize = 8192;

/// Regions that a rank can have at a time.
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
