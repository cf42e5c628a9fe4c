//! A rank's arrival on its node's board, before the rank has a driver.

use std::time::Duration;

use ripstop_fabric::shm::Board;

use super::{Boot, BootError, FailureReporter, meet};

/// Meets the other ranks of the node, as [`meet`] does. Reports a rank that fails while this rank waits for it.
pub(crate) fn arrive(
    boot: &mut Boot,
    limit: Duration,
    reporter: Option<&FailureReporter>,
) -> Result<(Board, ArrivalGuard), BootError> {
    let met = meet(boot, limit).inspect_err(|error| {
        if let Some(reporter) = reporter {
            reporter.blame_lost(error);
        }
    });
    let board = met?;
    let arrival = ArrivalGuard::of_arrived(&board, boot.on_node(), true);
    Ok((board, arrival))
}

/// Guard of a rank's arrival on its node's board. If it is dropped before [`release`](Self::release), the rank counts as
/// failed and the other ranks are notified, because nothing else notifies them while the process lives.
#[derive(Debug)]
#[must_use = "dropped, the rank has failed"]
pub(crate) struct ArrivalGuard {
    board: Board,
    place: u32,
    /// True if this rank has the place, and no other object reports how the rank ends.
    ours: bool,
}

impl ArrivalGuard {
    /// Arrives at the board, in a place that no other rank has.
    pub(crate) fn new(board: &Board, place: u32) -> Self {
        let ours = board.arrive(place);
        Self::of_arrived(board, place, ours)
    }

    /// Creates a guard for a known arrival. `ours` is true if this rank has arrived, and no other rank in its place.
    pub(crate) fn of_arrived(board: &Board, place: u32, ours: bool) -> Self {
        let board = board.clone();
        Self { board, place, ours }
    }

    /// Returns a second guard. The rank counts as failed if either is dropped before it stays.
    pub(crate) fn second_guard(&self) -> Self {
        Self::of_arrived(&self.board, self.place, self.ours)
    }

    /// Releases the guard. From here on, the rank's driver, or another guard, reports how the rank ends.
    pub(crate) fn release(mut self) {
        self.ours = false;
    }
}

impl Drop for ArrivalGuard {
    fn drop(&mut self) {
        if self.ours {
            self.board.fail(self.place);
        }
    }
}
