//! What a rank that was given up may still read.
//!
//! It may live, and read what it was sent until it has heard that it was given up, or be in the midst of that. So its chunks are
//! not used again before it has read them, has said that it reads no more, or is gone.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{
    Shm,
    board::{Board, PeerState},
    cells::{self, Outbox},
    link::REFUSED,
    mapped::Mapped,
    pool::Pool,
    ring::Producer,
};

/// The chunks of one rank, and where it says how far it has read.
#[derive(Debug)]
pub(super) struct Parted {
    rank: u32,
    ring: Option<Producer<Mapped>>,
    cells: Option<Outbox<cells::Mapped>>,
}

impl Parted {
    pub(super) const fn new(
        rank: u32,
        ring: Option<Producer<Mapped>>,
        cells: Option<Outbox<cells::Mapped>>,
    ) -> Self {
        Self { rank, ring, cells }
    }

    /// Asks to be rung for when something was read.
    pub(super) fn ask(&self) {
        if let Some(ring) = &self.ring {
            ring.memory().wants().store(1, Relaxed);
        }
    }

    /// Gives back what is not read any more. Whether that was all.
    fn reclaim(&mut self, board: &Board, pool: &mut Pool) -> bool {
        let is_gone = board.state_of(self.rank) != PeerState::Ready;
        let mut is_over = true;
        if let Some(ring) = &mut self.ring {
            // Who refuses has left the ring, but what lies in cells may be taken even then.
            if is_gone || ring.memory().accepts().load(Acquire) == REFUSED {
                ring.reclaim_all(|chunk| pool.give(chunk));
            } else {
                ring.reclaim(|chunk| pool.give(chunk));
            }
            is_over &= !ring.has_lent();
        }
        if let Some(cells) = &mut self.cells {
            if is_gone {
                cells.reclaim_all(|chunk| pool.give_from_cell(chunk));
            } else {
                cells.reclaim(|chunk| pool.give_from_cell(chunk));
            }
            is_over &= !cells.has_lent();
        }
        is_over
    }
}

impl Shm {
    /// Gives back the chunks that those who were given up do not read any more.
    pub(super) fn reclaim_parted(&mut self) {
        let Self {
            parted,
            board,
            pool,
            ..
        } = self;
        parted.retain_mut(|parted| !parted.reclaim(board, pool));
    }
}
