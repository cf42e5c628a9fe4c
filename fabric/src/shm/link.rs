//! What a rank keeps for each peer that it sends to or whose memory it accesses.

use std::{
    io,
    sync::atomic::Ordering::{Acquire, Relaxed},
};

use super::{
    doorbell::PeerBell,
    board::Board,
    collective_slots::{self, LINE_MAX, Outbox},
    process_handle::{LifeName, own_life},
    mapped_ring::{CELLS_TAKEN, Mapped},
    retired_links::Parted,
    pool::Pool,
    regions::{Imports, Owner},
    ring::{CELLS_MOD, Producer, ROOM},
    segment::Segment,
};
use crate::{
    counters::Counters,
    driver::{CELL_MAX, CellName, Failure},
    memory::{Region, RemoteRegion},
};

/// A peer whose segment is mapped.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: u32,
    /// Process ID of the peer, if that number means the same in our PID namespace.
    pub(super) pid: Option<u32>,
    pub(super) process: LifeName,
    pub(super) segment: Segment,
    bell: PeerBell,
    /// Our ring in the peer's segment, once we have something to send.
    out: Option<Producer<Mapped>>,
    /// Our cells in the peer's segment. They exist as long as the ring does.
    cells: Option<Outbox<collective_slots::Mapped>>,
    imports: Imports,
    /// Turn after which a message was last sent.
    sent_after: u32,
    /// True if the peer has mapped our chunks.
    pub(super) lends: bool,
    pub(super) stall: Option<Stall>,
}

/// Reason why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// The ring is full.
    Room,
    /// The body does not fit into a slot, and the peer has not mapped our chunks yet.
    Acceptance,
    /// All chunks are in flight.
    Chunk,
}

impl Link {
    pub(super) fn new(board: &Board, rank: u32, segment: Segment, barrier: bool) -> Self {
        let entry = board.entry(rank);
        let alike = board.own_spaces().number_alike(entry.spaces);
        let is_ours = entry.life == own_life();
        let bell = PeerBell::new(board, rank, barrier);
        Self {
            rank,
            pid: (alike || is_ours).then_some(entry.pid),
            process: entry.life,
            segment,
            bell,
            out: None,
            cells: None,
            sent_after: 0,
            imports: Imports::default(),
            lends: false,
            stall: None,
        }
    }

    /// Returns true if there is a ring to send through.
    pub(super) const fn is_open(&self) -> bool {
        self.out.is_some()
    }

    /// Makes the first contact. From then on the peer polls our ring.
    pub(super) fn open(&mut self, me: u32, board: &Board, counters: &Counters) -> io::Result<()> {
        self.segment.reserve_ring(me)?;
        let shape = self.segment.shape();
        let ring = Mapped::new(
            self.segment.region(),
            shape.control(me),
            shape.ring(me),
            shape.slots,
        );
        self.out = Some(Producer::new(ring, 0));
        let taken_at = shape.control(me) + CELLS_TAKEN;
        let lines = collective_slots::Mapped::new(self.segment.region(), shape.cells(me), taken_at);
        self.cells = Some(Outbox::new(lines));
        // Only now that the ring has its pages, because the owner polls it from now on.
        self.segment.contact(me);
        self.bell.ring(board, counters);
        Ok(())
    }

    /// Sends a message, or returns what it must wait for.
    #[inline]
    pub(super) fn send(
        &mut self,
        pool: &mut Pool,
        header: &[u8],
        body: &[u8],
    ) -> Result<(), Stall> {
        let out = self.out.as_mut().ok_or(Stall::Room)?;
        if !out.has_room() {
            return Err(Stall::Room);
        }
        if header.len() + body.len() <= ROOM {
            out.push(header, body);
            return Ok(());
        }
        self.lends = self.lends || out.memory().accepts().load(Acquire) == ACCEPTED;
        if !self.lends {
            return Err(Stall::Acceptance);
        }
        let chunk = pool
            .take(|pool| out.reclaim(|chunk| pool.give(chunk)))
            .ok_or(Stall::Chunk)?;
        pool.fill(chunk, body);
        out.push_chunk(header, chunk, body.len());
        Ok(())
    }

    /// Writes a message to a cell if that is free. `again` is true if it is the last message written to a cell, for any peer.
    /// Returns how many bytes were copied.
    #[inline]
    pub(super) fn put_cell(
        &mut self,
        pool: &mut Pool,
        name: CellName,
        sig: u64,
        bytes: &[u8],
        again: bool,
    ) -> Option<usize> {
        let (Some(cells), Some(out)) = (&mut self.cells, &mut self.out) else {
            return None;
        };
        // A message that waits for room in the ring was sent earlier, so this one must not overtake it in a cell.
        if self.stall.is_some() || !cells.has_room(name) {
            return None;
        }
        let copied = if bytes.len() <= LINE_MAX {
            cells.put(name, sig, bytes, out.position());
            bytes.len()
        } else {
            self.lends = self.lends || out.memory().accepts().load(Acquire) == ACCEPTED;
            let fits = self.lends && bytes.len() <= CELL_MAX;
            let copied = fits.then(|| pool.fill_for_cells(bytes, again))??;
            cells.put_in_chunks(name, sig, bytes.len(), out.position(), pool);
            copied
        };
        out.note_cells((cells.count() % u32::from(CELLS_MOD)).to_le_bytes()[0]);
        Some(copied)
    }

    /// Prefetches a later slot after a message was sent, if another one was sent since the last turn: more are likely.
    #[inline]
    pub(super) fn look_ahead(&mut self, turns: u32) {
        if self.sent_after != turns {
            self.sent_after = turns;
        } else if let Some(out) = &self.out {
            out.look_ahead();
        }
    }

    /// Prefetches the next slot after messages of this peer arrived, because they are often answered.
    #[inline]
    pub(super) fn expect_answer(&self) {
        if let Some(out) = &self.out {
            out.expect();
        }
    }

    #[inline]
    pub(super) fn ring(&mut self, board: &Board, counters: &Counters) {
        self.bell.ring(board, counters);
    }

    /// Returns true if code that publishes something to this peer must fence before it checks whether the peer sleeps.
    pub(super) const fn fences(&self) -> bool {
        self.bell.fences()
    }

    /// Returns true if the peer could not map our chunks, and never will.
    pub(super) fn is_refused(&self) -> bool {
        self.out
            .as_ref()
            .is_some_and(|out| out.memory().accepts().load(Relaxed) == REFUSED)
    }

    /// Returns true if the reason of the stall has ended.
    pub(super) fn could_send(&mut self, pool: &Pool) -> bool {
        match (self.stall, &mut self.out) {
            (Some(Stall::Room), Some(out)) => out.has_room(),
            (Some(Stall::Acceptance), Some(out)) => out.memory().accepts().load(Acquire) != 0,
            (Some(Stall::Chunk), _) => !pool.is_dry(),
            _ => false,
        }
    }

    /// Asks the peer to ring when it has consumed something, if we wait for that.
    pub(super) fn ask_for_room(&self, is_dry: bool) {
        let waits =
            self.stall.is_some() || is_dry && self.out.as_ref().is_some_and(Producer::has_lent);
        if let Some(out) = self.out.as_ref().filter(|_| waits) {
            out.memory().wants().store(1, Relaxed);
        }
    }

    pub(super) fn reclaim(&mut self, pool: &mut Pool) {
        if let Some(out) = &mut self.out {
            out.reclaim(|chunk| pool.give(chunk));
        }
        if let Some(cells) = &mut self.cells {
            cells.reclaim(|chunk| pool.give_from_cell(chunk));
        }
    }

    /// Takes the link apart, because the peer is down or was given up. Keeps the memory that it may still read.
    pub(super) fn part(self) -> Parted {
        Parted::new(self.rank, self.out, self.cells)
    }

    /// Unmaps regions that the peer has released.
    pub(super) fn let_go_of_freed(&mut self) {
        self.imports.let_go_of_freed(&self.segment);
    }

    /// Returns the peer's region that `key` names, and the offset where the `len` granted bytes start.
    pub(super) fn resolve(
        &mut self,
        board: &Board,
        key: RemoteRegion,
        len: usize,
    ) -> Result<(Region, usize), Failure> {
        let owner = Owner {
            board,
            rank: self.rank,
            segment: &self.segment,
        };
        self.imports.resolve(&owner, key, len)
    }
}

/// Values of [`Mapped::accepts`].
pub(super) const ACCEPTED: u32 = 1;
pub(super) const REFUSED: u32 = 2;
