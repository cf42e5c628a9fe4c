//! Copies by the system into and out of a peer's memory, and how they end when a living peer gives this rank up.
//!
//! A rank that copies announces it on the board, then checks whether the peer has given it up. A rank that gives up another one
//! marks that in its own segment, then checks whether that rank is copying. At least one of the two sees the other's store, so no
//! system call writes to memory after its owner has taken it back.

use std::sync::atomic::{
    Ordering::{Relaxed, Release, SeqCst},
    fence,
};

use super::{
    Shm, ShmPeerStatus,
    board::{Board, PeerState, index},
    doorbell::PeerDoorbell,
    segment::ShmSegment,
};
use crate::{counters::DriverStats, driver::CommandFailure};

/// One rank's access to the memory of another.
#[derive(Debug)]
pub(super) struct CmaGuard {
    pub(super) board: Board,
    /// Segment of the owner.
    pub(super) segment: ShmSegment,
    pub(super) me: u32,
    pub(super) owner: u32,
}

impl CmaGuard {
    /// Makes a system call, unless the memory's owner has given this rank up. If the owner does so during the call, the bytes
    /// read may be anything and the result is an error.
    pub(super) fn run_guarded<T>(
        &self,
        copy: impl FnOnce() -> Result<T, CommandFailure>,
    ) -> Result<T, CommandFailure> {
        let copies = self.board.copies_with(self.me);
        copies.store(self.owner + 1, Relaxed);
        fence(SeqCst);
        let copied = if self.segment.is_closed_to(self.me) {
            Err(CommandFailure::PeerDown)
        } else {
            copy()
        };
        copies.store(0, Release);
        fence(SeqCst);
        if self.segment.is_closed_to(self.me) {
            // The owner may sleep until this copy has ended.
            PeerDoorbell::new(&self.board, self.owner, false)
                .ring(&self.board, &DriverStats::default());
            return Err(CommandFailure::PeerDown);
        }
        copied
    }
}

impl Shm {
    /// Gives up a rank that may be alive, for a reason outside of shared memory. It is reported as down as soon as it stops
    /// copying.
    pub(crate) fn begin_giving_up(&mut self, rank: u32) {
        if self.peer_status[index(rank)] == ShmPeerStatus::Down || self.giving_up.contains(&rank) {
            return;
        }
        self.giving_up.push(rank);
        self.rare = true;
        self.close_to(rank);
    }

    /// Notifies a rank that may be alive that this rank gives it up, so that it gives this rank up too.
    pub(super) fn close_to(&self, rank: u32) {
        if self.segment.is_closed_to(rank) {
            return;
        }
        self.segment.close_to(rank);
        self.board.changes().fetch_add(1, Release);
        if self.board.state_of(rank) == PeerState::Ready {
            PeerDoorbell::new(&self.board, rank, false).ring(&self.board, &self.counters);
        }
        fence(SeqCst);
    }

    /// Gives up those of `ranks` that have given this rank up.
    pub(super) fn give_up_closed_peers(&mut self, ranks: &[u32]) {
        for rank in ranks {
            let link = self.links[index(*rank)].as_deref();
            if link.is_some_and(|link| link.segment.is_closed_to(self.rank)) {
                self.begin_giving_up(*rank);
            }
        }
    }

    /// Returns true if a rank that is being given up does not copy any more. Once true, this stays true.
    pub(super) fn has_stopped_copying(&self, rank: u32) -> bool {
        let copies = self.board.copies_with(rank).load(SeqCst);
        copies != self.rank + 1 || self.board.state_of(rank) != PeerState::Ready
    }

    #[cold]
    pub(super) fn finish_giving_up(&mut self) {
        for rank in std::mem::take(&mut self.giving_up) {
            if self.peer_status[index(rank)] == ShmPeerStatus::Down {
                continue; // its process has ended meanwhile
            }
            if self.has_stopped_copying(rank) {
                let why = "the network driver has lost the rank, or the rank considers this process failed";
                self.give_up(rank, std::io::Error::other(why));
            } else {
                self.giving_up.push(rank);
            }
        }
    }
}
