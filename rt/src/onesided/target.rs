//! The other ends of a window, as far as this rank knows them.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use crate::{
    engine::{EpochCounters, MappedEnd, PeerEndMemory},
    group::WorldRank,
};

/// The end of another rank. An epoch with access to it lends it while the epoch is open.
pub struct WindowTarget {
    /// Rank in the communicator.
    pub rank: usize,
    pub(super) world: WorldRank,
    pub(super) counters: Arc<EpochCounters>,
    /// Length in bytes, known once that rank has introduced itself.
    len: OnceLock<u64>,
    /// Memory where this process loads and stores.
    mapped: OnceLock<MappedEnd>,
    /// Same end without mapped memory, for operations that must wait for a requested lock.
    unmapped: OnceLock<Box<Self>>,
}

/// The known ends, by their rank in the communicator. A digital search tree (after Coffman and Eve 1970) that only
/// grows, so it can be read and lent without a lock.
#[derive(Debug, Default)]
pub(super) struct TargetTree {
    root: TargetTreeLink,
}

type TargetTreeLink = OnceLock<Box<TargetTreeNode>>;

#[derive(Debug)]
struct TargetTreeNode {
    target: WindowTarget,
    children: [TargetTreeLink; 2],
}

impl WindowTarget {
    pub(super) fn new(rank: usize, world: WorldRank, counters: Arc<EpochCounters>) -> Self {
        Self {
            rank,
            world,
            counters,
            len: OnceLock::new(),
            mapped: OnceLock::new(),
            unmapped: OnceLock::new(),
        }
    }

    /// Records the introduction of this end.
    pub(super) fn learn(&self, peer_memory: PeerEndMemory) {
        let _known = self.len.set(peer_memory.len);
        if let Some(mapped) = peer_memory.mapped {
            let _known = self.mapped.set(mapped);
        }
    }

    /// Returns the memory where this process loads and stores.
    #[inline]
    pub(super) fn mapped(&self) -> Option<&MappedEnd> {
        self.mapped.get()
    }

    /// Returns the number of elements of `size` bytes. If it is unknown, returns the maximum, and the target checks the
    /// range.
    #[inline]
    #[must_use]
    pub fn elements(&self, size: usize) -> usize {
        let bytes = self.len.get().map(|&len| usize::try_from(len));
        bytes.map_or(usize::MAX, |len| len.unwrap_or(usize::MAX)) / size
    }

    /// Returns the same end, for operations that must wait for a lock.
    pub(super) fn unmapped(&self) -> &Self {
        let outside = || {
            let target = Self::new(self.rank, self.world, Arc::clone(&self.counters));
            if let Some(&len) = self.len.get() {
                let _unknown = target.len.set(len);
            }
            Box::new(target)
        };
        self.unmapped.get_or_init(outside)
    }
}

impl TargetTree {
    /// Returns the end of this rank, if it is known.
    #[inline]
    pub(super) fn find(&self, rank: usize) -> Option<&WindowTarget> {
        self.place(rank).get().map(|node| &node.target)
    }

    /// Adds an end.
    pub(super) fn insert(&self, target: WindowTarget) -> &WindowTarget {
        let rank = target.rank;
        let mut node = Box::new(TargetTreeNode {
            target,
            children: Default::default(),
        });
        // If another thread has just added another rank here, continue further down.
        while let Err(again) = self.place(rank).set(node) {
            node = again;
            if let Some(met) = self.find(rank) {
                return met;
            }
        }
        let met = self.find(rank);
        met.expect("what was just met")
    }

    /// Returns the place of a rank, or the place where it would be added.
    #[inline]
    fn place(&self, rank: usize) -> &TargetTreeLink {
        let (mut place, mut bits) = (&self.root, rank);
        while let Some(node) = place.get().filter(|node| node.target.rank != rank) {
            place = &node.children[bits & 1];
            bits >>= 1;
        }
        place
    }
}

impl fmt::Debug for WindowTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowTarget(rank {})", self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::{TargetTree, WindowTarget, WorldRank};

    #[test]
    fn every_rank_that_was_met_is_found_and_no_other() {
        let targets = TargetTree::default();
        let ranks = [5, 0, 7, 4, 1 << 40, 12, 3, usize::MAX];
        for rank in ranks {
            assert!(targets.find(rank).is_none());
            targets.insert(WindowTarget::new(rank, WorldRank(0), Default::default()));
        }
        for rank in ranks {
            assert_eq!(targets.find(rank).map(|target| target.rank), Some(rank));
        }
        assert!(targets.find(6).is_none());
    }
}
