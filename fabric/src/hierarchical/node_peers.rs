//! The ranks that share memory with a rank, and their places on the node's board.

use crate::{
    driver::WorldRank,
    shm::{BoardRanks, PeerState},
};

/// The ranks that share memory with this one.
#[derive(Debug)]
pub(super) struct NodePeers {
    node: BoardRanks,
    /// This rank's place on the board.
    me: usize,
    /// Place of the first rank that shares memory.
    first: usize,
    /// Ranks that share memory, in the order of their places.
    ranks: Vec<WorldRank>,
}

impl NodePeers {
    pub(super) fn new(node: BoardRanks, place: usize, together: Option<u32>) -> Self {
        let all = node.ranks.len();
        let together = together.map_or(all, |some| some.max(1) as usize);
        let first = place - place % together;
        let ranks = node.ranks[first..all.min(first + together)].to_vec();
        Self {
            node,
            me: place,
            first,
            ranks,
        }
    }

    /// Returns a rank's place on the board. Tries the obvious place first, because a node's ranks are mostly consecutive.
    #[inline]
    pub(super) fn place(&self, rank: WorldRank) -> Option<WorldRank> {
        let guess = rank.0.wrapping_sub(self.ranks[0].0) as usize;
        let at = match self.ranks.get(guess) {
            Some(found) if *found == rank => guess,
            _ => self.ranks.binary_search(&rank).ok()?,
        };
        Some(at_place(self.first + at))
    }

    /// Returns the rank at a place.
    #[inline]
    pub(super) fn rank(&self, WorldRank(place): WorldRank) -> Option<WorldRank> {
        let at = (place as usize).checked_sub(self.first)?;
        self.ranks.get(at).copied()
    }

    pub(super) fn is_me(&self, WorldRank(place): WorldRank) -> bool {
        place as usize == self.me
    }

    /// Returns true if a rank that the network has lost is still there: it has not ended, and is not about to.
    pub(super) fn is_running(&self, WorldRank(place): WorldRank) -> bool {
        let board = &self.node.board;
        let left = matches!(
            board.state_of(place),
            PeerState::Finished | PeerState::Failed
        );
        !left && !board.is_closing(place)
    }

    /// Records that this rank is about to close both its drivers.
    pub(super) fn announce_closing(&self) {
        let WorldRank(me) = at_place(self.me);
        self.node.board.mark_closing(me);
    }

    /// Returns how many ranks share memory, including this one.
    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }
}

/// Converts a place. A board has fewer places than a `u32` has values.
fn at_place(place: usize) -> WorldRank {
    WorldRank(u32::try_from(place).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::{BoardRanks, NodePeers, WorldRank};
    use crate::{
        driver::{DownCause, ExitRecord},
        shm::Board,
    };

    fn neighbors(place: usize, together: Option<u32>) -> NodePeers {
        let board = Board::create(6).expect("memory");
        let ranks = [3, 4, 5, 9, 11, 12].map(WorldRank).to_vec();
        NodePeers::new(BoardRanks { board, ranks }, place, together)
    }

    #[test]
    fn ranks_and_places_are_found_wherever_they_are() {
        let all = neighbors(4, None);
        let places = |of: &NodePeers, ranks: &[u32]| -> Vec<_> {
            let place = |rank: &u32| of.place(WorldRank(*rank)).map(|place| place.0);
            ranks.iter().map(place).collect()
        };
        let found = places(&all, &[2, 3, 5, 6, 9, 11, 12, 13]);
        assert_eq!(
            found,
            [
                None,
                Some(0),
                Some(2),
                None,
                Some(3),
                Some(4),
                Some(5),
                None
            ]
        );
        let some = neighbors(4, Some(4));
        assert_eq!(
            places(&some, &[9, 11, 12, 5]),
            [None, Some(4), Some(5), None]
        );
        assert_eq!(some.rank(WorldRank(5)), Some(WorldRank(12)));
        assert_eq!(
            [some.rank(WorldRank(3)), some.rank(WorldRank(6))],
            [None; 2]
        );
    }

    #[test]
    fn a_rank_that_closes_or_has_exited_is_not_running() {
        let all = neighbors(0, None);
        assert!(all.is_running(WorldRank(1)));
        all.node.board.mark_closing(1);
        all.node.record_exit(WorldRank(5), DownCause::Finished);
        all.node.record_exit(WorldRank(9), DownCause::Failed);
        let there = [1, 2, 3, 4].map(|place| all.is_running(WorldRank(place)));
        assert_eq!(there, [false, false, false, true]);
    }
}
