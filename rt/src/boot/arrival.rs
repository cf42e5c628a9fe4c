//! A rank on its node's board that has no driver yet.

use ripstop_fabric::shm::Board;

/// A rank's arrival on its node's board. Dropped before it [stays](Self::stay), the rank has failed, and the others hear of it:
/// while its process lives nothing else tells them.
#[derive(Debug)]
#[must_use = "dropped, the rank has failed"]
pub(crate) struct Arrival {
    board: Board,
    place: u32,
    /// The line is this rank's, and nobody else says how it ends.
    ours: bool,
}

impl Arrival {
    /// Comes to the board, where no other rank has this place.
    pub(crate) fn new(board: &Board, place: u32) -> Self {
        let ours = board.arrive(place);
        Self::known(board, place, ours)
    }

    /// `ours` says whether this rank has come to the board, and nobody else to its place.
    pub(crate) fn known(board: &Board, place: u32, ours: bool) -> Self {
        let board = board.clone();
        Self { board, place, ours }
    }

    /// The same once more: the rank has failed when one of them is dropped before it stays.
    pub(crate) fn again(&self) -> Self {
        Self::known(&self.board, self.place, self.ours)
    }

    /// From here on the rank's driver says how it ends, or another arrival.
    pub(crate) fn stay(mut self) {
        self.ours = false;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if self.ours {
            self.board.fail(self.place);
        }
    }
}
