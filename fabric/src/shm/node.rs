//! How the ranks of this node ended, for drivers of networks.

use super::{Board, PeerState};
use crate::driver::{DownCause, ExitRecord, WorldRank};

/// The ranks of this node, and their board. It is not known how ranks of other nodes ended: they count as failed.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by the code that opens a driver"
)]
pub struct BoardRanks {
    /// Board on which the ranks record how they ended.
    pub board: Board,
    /// Ranks of the job, in the order of their places on the board.
    pub ranks: Vec<WorldRank>,
}

impl BoardRanks {
    /// Returns the place of a rank on the board.
    pub(crate) fn place_of(&self, rank: WorldRank) -> Option<u32> {
        let place = self.ranks.iter().position(|one| *one == rank)?;
        u32::try_from(place)
            .ok()
            .filter(|place| *place < self.board.size())
    }
}

impl ExitRecord for BoardRanks {
    fn record_exit(&self, rank: WorldRank, how: DownCause) {
        if let Some(place) = self.place_of(rank) {
            self.board.record_end(place, how == DownCause::Failed);
        }
    }

    fn covers(&self, rank: WorldRank) -> bool {
        self.place_of(rank).is_some()
    }

    fn how_ended(&self, rank: WorldRank) -> DownCause {
        let state = self.place_of(rank).map(|place| self.board.state_of(place));
        match state {
            Some(PeerState::Finished) => DownCause::Finished,
            _ => DownCause::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Board, BoardRanks, DownCause, ExitRecord, WorldRank};

    #[test]
    fn ranks_of_the_node_say_how_they_ended_and_others_have_failed() {
        let node = BoardRanks {
            board: Board::create(3).expect("memory"),
            ranks: [4, 6, 8].map(WorldRank).to_vec(),
        };
        node.record_exit(WorldRank(6), DownCause::Finished);
        node.record_exit(WorldRank(8), DownCause::Failed);
        node.record_exit(WorldRank(5), DownCause::Finished);
        let ends = [4, 5, 6, 8].map(|rank| node.how_ended(WorldRank(rank)));
        assert_eq!(
            ends,
            [
                DownCause::Failed,
                DownCause::Failed,
                DownCause::Finished,
                DownCause::Failed
            ]
        );
    }
}
