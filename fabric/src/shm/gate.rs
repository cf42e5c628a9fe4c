//! Copies by the system into and out of a peer's memory, and how they end when the peer gives us up while we live.
//!
//! Who copies says so on the board, and then looks whether the peer has given it up; who gives a rank up says that in its own
//! segment, and then looks whether that rank copies. One of the two sees what the other has said: so no system call writes to
//! memory that its owner has back.

use std::sync::atomic::{
    Ordering::{Relaxed, Release, SeqCst},
    fence,
};

use super::{
    Shm, Standing,
    bell::PeerBell,
    board::{Board, PeerState, index},
    segment::Segment,
};
use crate::{counters::Counters, driver::Failure};

/// The way of one rank to the memory of another.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) board: Board,
    /// The owner's.
    pub(super) segment: Segment,
    pub(super) me: u32,
    pub(super) owner: u32,
}

impl Gate {
    /// Makes a system call, unless the owner has given us up. It may do so meanwhile; then what was read may be anything.
    pub(super) fn pass<T>(&self, copy: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let copies = self.board.copies_with(self.me);
        copies.store(self.owner + 1, Relaxed);
        fence(SeqCst);
        let copied = if self.segment.is_closed_to(self.me) {
            Err(Failure::PeerDown)
        } else {
            copy()
        };
        copies.store(0, Release);
        fence(SeqCst);
        if self.segment.is_closed_to(self.me) {
            // It may sleep until we have come out.
            PeerBell::new(&self.board, self.owner, false).ring(&self.board, &Counters::default());
            return Err(Failure::PeerDown);
        }
        copied
    }
}

impl Shm {
    /// Gives up a rank that may live, for another reason than shared memory has. It is gone as soon as it does not copy.
    pub(crate) fn part_from(&mut self, rank: u32) {
        if self.standing[index(rank)] == Standing::Gone || self.parting.contains(&rank) {
            return;
        }
        self.parting.push(rank);
        self.close_to(rank);
    }

    /// Tells a rank that may live that we give it up: it is to give us up, too.
    pub(super) fn close_to(&self, rank: u32) {
        if self.segment.is_closed_to(rank) {
            return;
        }
        self.segment.close_to(rank);
        self.board.changes().fetch_add(1, Release);
        if self.board.state_of(rank) == PeerState::Ready {
            PeerBell::new(&self.board, rank, false).ring(&self.board, &self.counters);
        }
        fence(SeqCst);
    }

    /// Gives up those who have given us up.
    pub(super) fn part_from_the_closed(&mut self, ranks: &[u32]) {
        for rank in ranks {
            let link = self.links[index(*rank)].as_deref();
            if link.is_some_and(|link| link.segment.is_closed_to(self.rank)) {
                self.part_from(*rank);
            }
        }
    }

    /// Whether a rank that we part from does not copy any more. Once that is so it stays so.
    pub(super) fn has_come_out(&self, rank: u32) -> bool {
        let copies = self.board.copies_with(rank).load(SeqCst);
        copies != self.rank + 1 || self.board.state_of(rank) != PeerState::Ready
    }

    #[cold]
    pub(super) fn part_from_those_outside(&mut self) {
        for rank in std::mem::take(&mut self.parting) {
            if self.standing[index(rank)] == Standing::Gone {
                continue; // its process has ended meanwhile
            }
            if self.has_come_out(rank) {
                let why = "a driver beside shared memory has lost this rank, or it has given us up";
                self.give_up(rank, std::io::Error::other(why));
            } else {
                self.parting.push(rank);
            }
        }
    }
}
