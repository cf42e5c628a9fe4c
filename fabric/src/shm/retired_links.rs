//! Retired links: memory that a rank which was given up may still read.
//!
//! The rank may be alive, and may read this rank's messages until it notices that it was given up. Its chunks are therefore not
//! reused before it has read them, has refused to read more, or has ended.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{
    Shm,
    board::{Board, PeerState},
    link::REFUSED,
    mapped_ring::MappedRing,
    named_slots::{self, NamedSlotSender},
    pool::ChunkPool,
    ring::RingProducer,
};

/// Chunks lent to one rank, and the ring and named slots in which it says how far it has read.
#[derive(Debug)]
pub(super) struct RetiredLink {
    rank: u32,
    ring: Option<RingProducer<MappedRing>>,
    slots: Option<NamedSlotSender<named_slots::MappedNamedSlots>>,
}

impl RetiredLink {
    pub(super) const fn new(
        rank: u32,
        ring: Option<RingProducer<MappedRing>>,
        slots: Option<NamedSlotSender<named_slots::MappedNamedSlots>>,
    ) -> Self {
        Self { rank, ring, slots }
    }

    /// Asks the rank to ring when it has read something.
    pub(super) fn request_wakeup(&self) {
        if let Some(ring) = &self.ring {
            ring.memory().wants().store(1, Relaxed);
        }
    }

    /// Takes back the chunks that are not read any more. Returns true if those were all.
    fn reclaim(&mut self, board: &Board, pool: &mut ChunkPool) -> bool {
        let is_gone = board.state_of(self.rank) != PeerState::Ready;
        let mut is_over = true;
        if let Some(ring) = &mut self.ring {
            // A rank that refuses has left the ring, but may still take messages from its named slots.
            if is_gone || ring.memory().accepts().load(Acquire) == REFUSED {
                ring.reclaim_all(|chunk| pool.give(chunk));
            } else {
                ring.reclaim(|chunk| pool.give(chunk));
            }
            is_over &= !ring.has_lent();
        }
        if let Some(slots) = &mut self.slots {
            if is_gone {
                slots.reclaim_all(|chunk| pool.give_from_slot(chunk));
            } else {
                slots.reclaim(|chunk| pool.give_from_slot(chunk));
            }
            is_over &= !slots.has_lent();
        }
        is_over
    }
}

impl Shm {
    /// Takes back the chunks that ranks which were given up do not read any more.
    pub(super) fn reclaim_retired_links(&mut self) {
        let Self {
            retired_links: parted,
            board,
            pool,
            ..
        } = self;
        parted.retain_mut(|parted| !parted.reclaim(board, pool));
    }
}
