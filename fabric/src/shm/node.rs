//! How the ranks of this node ended, for drivers of networks.

use super::{Board, PeerState};
use crate::driver::{Down, Ends};

/// The ranks of this node, and their board. It is not known how ranks of other nodes ended: they count as failed.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by who opens a driver"
)]
pub struct Node {
    /// Board on which the ranks record how they ended.
    pub board: Board,
    /// Ranks of the job, in the order of their places on the board.
    pub ranks: Vec<u32>,
}

impl Node {
    pub(super) fn place_of(&self, rank: u32) -> Option<u32> {
        let place = self.ranks.iter().position(|one| *one == rank)?;
        u32::try_from(place)
            .ok()
            .filter(|place| *place < self.board.size())
    }
}

impl Ends for Node {
    fn leave(&self, rank: u32, how: Down) {
        if let Some(place) = self.place_of(rank) {
            self.board.say_end(place, how == Down::Failed);
        }
    }

    fn how_ended(&self, rank: u32) -> Down {
        let state = self.place_of(rank).map(|place| self.board.state_of(place));
        match state {
            Some(PeerState::Finished) => Down::Finished,
            _ => Down::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Board, Down, Ends, Node};

    #[test]
    fn ranks_of_the_node_say_how_they_ended_and_others_have_failed() {
        let node = Node {
            board: Board::create(3).expect("memory"),
            ranks: vec![4, 6, 8],
        };
        node.leave(6, Down::Finished);
        node.leave(8, Down::Failed);
        node.leave(5, Down::Finished);
        let ends = [4, 5, 6, 8].map(|rank| node.how_ended(rank));
        assert_eq!(
            ends,
            [Down::Failed, Down::Failed, Down::Finished, Down::Failed]
        );
    }
}
