//! What a rank keeps for each peer that it sends to or whose memory it accesses.

use std::{
    io,
    sync::atomic::Ordering::{Acquire, Relaxed},
};

use super::{
    board::Board,
    doorbell::PeerDoorbell,
    mapped_ring::{MappedRing, NAMED_SLOTS_TAKEN},
    named_slots::{self, LINE_MAX, NamedSlotSender},
    pool::ChunkPool,
    process_handle::{ProcessName, own_process_name},
    regions::{ImportedRegions, RegionOwner},
    retired_links::RetiredLink,
    ring::{HEADER_MAX, NAMED_SLOTS_MOD, ROOM, RingProducer},
    segment::{CHUNK_LEN, ShmSegment},
};
use crate::{
    counters::DriverStats,
    driver::{CommandFailure, SLOT_MESSAGE_MAX, SlotName},
    memory::{MemoryRegion, RemoteRegion},
};

/// A peer whose segment is mapped.
#[derive(Debug)]
pub(super) struct ShmLink {
    pub(super) rank: u32,
    /// Process ID of the peer, if that number means the same in this process's PID namespace.
    pub(super) pid: Option<u32>,
    pub(super) process: ProcessName,
    pub(super) segment: ShmSegment,
    bell: PeerDoorbell,
    /// This rank's ring in the peer's segment, once this rank has something to send.
    out: Option<RingProducer<MappedRing>>,
    /// This rank's named slots in the peer's segment. They exist as long as the ring does.
    slots: Option<NamedSlotSender<named_slots::MappedNamedSlots>>,
    imports: ImportedRegions,
    /// Turn after which a message was last sent.
    sent_after: u32,
    /// True if the peer has mapped this rank's chunks.
    pub(super) has_mapped_chunks: bool,
    pub(super) stall: Option<SendStall>,
}

/// Reason why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStall {
    /// The ring is full.
    Room,
    /// The body does not fit into a slot, and the peer has not mapped this rank's chunks yet.
    Acceptance,
    /// All chunks are in flight.
    Chunk,
}

impl ShmLink {
    pub(super) fn new(board: &Board, rank: u32, segment: ShmSegment, barrier: bool) -> Self {
        let entry = board.entry(rank);
        let alike = board.own_spaces().number_alike(entry.namespaces);
        let is_ours = entry.process_name == own_process_name();
        let bell = PeerDoorbell::new(board, rank, barrier);
        Self {
            rank,
            pid: (alike || is_ours).then_some(entry.pid),
            process: entry.process_name,
            segment,
            bell,
            out: None,
            slots: None,
            sent_after: 0,
            imports: ImportedRegions::default(),
            has_mapped_chunks: false,
            stall: None,
        }
    }

    /// Returns true if there is a ring to send through.
    pub(super) const fn is_open(&self) -> bool {
        self.out.is_some()
    }

    /// Makes the first contact. From then on the peer polls this rank's ring.
    pub(super) fn open(
        &mut self,
        me: u32,
        board: &Board,
        counters: &DriverStats,
    ) -> io::Result<()> {
        self.segment.reserve_ring(me)?;
        let shape = self.segment.shape();
        let ring = MappedRing::new(
            self.segment.region(),
            shape.control(me),
            shape.ring(me),
            shape.slots,
        );
        self.out = Some(RingProducer::new(ring, 0));
        let taken_at = shape.control(me) + NAMED_SLOTS_TAKEN;
        let lines = named_slots::MappedNamedSlots::new(
            self.segment.region(),
            shape.named_slots(me),
            taken_at,
        );
        self.slots = Some(NamedSlotSender::new(lines));
        // The contact comes only now that the ring has its pages, because the owner polls the ring from now on.
        self.segment.contact(me);
        self.bell.ring(board, counters);
        Ok(())
    }

    /// Sends a message, or returns what it must wait for.
    #[inline]
    pub(super) fn send(
        &mut self,
        pool: &mut ChunkPool,
        header: &[u8],
        body: &[u8],
    ) -> Result<(), SendStall> {
        let out = self.out.as_mut().ok_or(SendStall::Room)?;
        if out.push_cell(header, body) {
            return Ok(());
        }
        if !out.has_room() {
            return Err(SendStall::Room);
        }
        if header.len() <= HEADER_MAX && body.len() <= ROOM - header.len() {
            out.push(header, body);
            return Ok(());
        }
        assert!(
            header.len() <= HEADER_MAX,
            "a header of {} bytes; the longest is {HEADER_MAX}",
            header.len()
        );
        assert!(
            body.len() <= CHUNK_LEN,
            "a body of {} bytes; the longest is {CHUNK_LEN}",
            body.len()
        );
        self.has_mapped_chunks =
            self.has_mapped_chunks || out.memory().accepts().load(Acquire) == ACCEPTED;
        if !self.has_mapped_chunks {
            return Err(SendStall::Acceptance);
        }
        let chunk = pool
            .take(|pool| out.reclaim(|chunk| pool.give(chunk)))
            .ok_or(SendStall::Chunk)?;
        pool.fill(chunk, body);
        out.push_chunk(header, chunk, body.len());
        Ok(())
    }

    /// Writes a message to a named slot if that is free. `again` is true if `bytes` equals the message written last to a named
    /// slot, for any peer. Returns how many bytes were copied.
    #[inline]
    pub(super) fn put_slot(
        &mut self,
        pool: &mut ChunkPool,
        name: SlotName,
        sig: u64,
        bytes: &[u8],
        again: bool,
    ) -> Option<usize> {
        let (Some(slots), Some(out)) = (&mut self.slots, &mut self.out) else {
            return None;
        };
        // A message that waits for room in the ring was sent earlier, so this one must not overtake it in a named slot.
        if self.stall.is_some() || !slots.has_room(name) {
            return None;
        }
        let copied = if bytes.len() <= LINE_MAX {
            slots.put(name, sig, bytes, out.sent());
            bytes.len()
        } else {
            self.has_mapped_chunks =
                self.has_mapped_chunks || out.memory().accepts().load(Acquire) == ACCEPTED;
            let fits = self.has_mapped_chunks && bytes.len() <= SLOT_MESSAGE_MAX;
            let copied = fits.then(|| pool.fill_for_slots(bytes, again))??;
            slots.put_in_chunks(name, sig, bytes.len(), out.sent(), pool);
            copied
        };
        out.note_slots((slots.count() % u32::from(NAMED_SLOTS_MOD)).to_le_bytes()[0]);
        Some(copied)
    }

    /// Prefetches a later slot after a message was sent, if another one was sent since the last turn: more are likely.
    #[inline]
    pub(super) fn prefetch_later_slot(&mut self, turns: u32) {
        if self.sent_after != turns {
            self.sent_after = turns;
        } else if let Some(out) = &self.out {
            out.prefetch_later_slot();
        }
    }

    #[inline]
    pub(super) fn ring(&mut self, board: &Board, counters: &DriverStats) {
        self.bell.ring(board, counters);
    }

    /// Returns true if code that publishes something to this peer must fence before it checks whether the peer sleeps.
    pub(super) const fn fences(&self) -> bool {
        self.bell.fences()
    }

    /// Returns true if the peer could not map this rank's chunks, and never will.
    pub(super) fn is_refused(&self) -> bool {
        self.out
            .as_ref()
            .is_some_and(|out| out.memory().accepts().load(Relaxed) == REFUSED)
    }

    /// Returns true if the reason of the stall has ended.
    pub(super) fn could_send(&mut self, pool: &ChunkPool) -> bool {
        match (self.stall, &mut self.out) {
            (Some(SendStall::Room), Some(out)) => out.has_room(),
            (Some(SendStall::Acceptance), Some(out)) => out.memory().accepts().load(Acquire) != 0,
            (Some(SendStall::Chunk), _) => !pool.is_dry(),
            _ => false,
        }
    }

    /// Asks the peer to ring when it has consumed something, if this rank waits for that.
    pub(super) fn ask_for_room(&self, is_dry: bool) {
        let waits =
            self.stall.is_some() || is_dry && self.out.as_ref().is_some_and(RingProducer::has_lent);
        if let Some(out) = self.out.as_ref().filter(|_| waits) {
            out.memory().wants().store(1, Relaxed);
        }
    }

    pub(super) fn reclaim(&mut self, pool: &mut ChunkPool) {
        if let Some(out) = &mut self.out {
            out.reclaim(|chunk| pool.give(chunk));
        }
        if let Some(slots) = &mut self.slots {
            slots.reclaim(|chunk| pool.give_from_slot(chunk));
        }
    }

    /// Takes the link apart, because the peer is down or was given up. Keeps the memory that it may still read.
    pub(super) fn into_retired(self) -> RetiredLink {
        RetiredLink::new(self.rank, self.out, self.slots)
    }

    /// Unmaps regions that the peer has released.
    pub(super) fn unmap_freed_regions(&mut self) {
        self.imports.let_go_of_freed(&self.segment);
    }

    /// Returns the peer's region that `key` names, and the offset where the `len` granted bytes start.
    pub(super) fn resolve(
        &mut self,
        board: &Board,
        key: RemoteRegion,
        len: usize,
    ) -> Result<(MemoryRegion, usize), CommandFailure> {
        let owner = RegionOwner {
            board,
            rank: self.rank,
            segment: &self.segment,
        };
        self.imports.resolve(&owner, key, len)
    }
}

/// Values of [`MappedRing::accepts`].
pub(super) const ACCEPTED: u32 = 1;
pub(super) const REFUSED: u32 = 2;
