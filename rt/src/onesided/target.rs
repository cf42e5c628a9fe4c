//! The other ends of a window, as this rank has come to know them.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use ripstop_fabric::memory::Region;

use crate::engine::{Far, Ledger};

/// A rank's end, as another rank reaches it. Lent by an epoch that has access to it, for as long as that is open.
pub struct Target {
    /// In the communicator.
    pub rank: usize,
    pub(super) world: u32,
    pub(super) ledger: Arc<Ledger>,
    /// Bytes, from when it has introduced itself.
    len: OnceLock<u64>,
    /// Where this process loads and stores.
    mapped: OnceLock<(Region, usize)>,
    /// The same end without mapped memory: what is done there waits for a lock that was asked for.
    behind: OnceLock<Box<Self>>,
}

/// The ends that were met, by their rank in the communicator: a digital search tree (after Coffman and Eve 1970) that only grows,
/// so that it is read without a lock and lends what it holds.
#[derive(Debug, Default)]
pub(super) struct Targets {
    root: Child,
}

type Child = OnceLock<Box<Node>>;

#[derive(Debug)]
struct Node {
    target: Target,
    children: [Child; 2],
}

impl Target {
    pub(super) fn new(rank: usize, world: u32, ledger: Arc<Ledger>) -> Self {
        Self {
            rank,
            world,
            ledger,
            len: OnceLock::new(),
            mapped: OnceLock::new(),
            behind: OnceLock::new(),
        }
    }

    /// It has introduced itself.
    pub(super) fn learn(&self, far: Far) {
        let _known = self.len.set(far.len);
        if let Some(mapped) = far.mapped {
            let _known = self.mapped.set(mapped);
        }
    }

    /// Where this process loads and stores.
    #[inline]
    pub(super) fn mapped(&self) -> Option<&(Region, usize)> {
        self.mapped.get()
    }

    /// Elements of so many bytes; unknown ones are looked for where they are.
    #[inline]
    pub(super) fn elements(&self, size: usize) -> usize {
        let bytes = self.len.get().map(|&len| usize::try_from(len));
        bytes.map_or(usize::MAX, |len| len.unwrap_or(usize::MAX)) / size
    }

    /// The same end, for operations that have to wait at its door.
    pub(super) fn behind_the_door(&self) -> &Self {
        let outside = || {
            let target = Self::new(self.rank, self.world, Arc::clone(&self.ledger));
            if let Some(&len) = self.len.get() {
                let _unknown = target.len.set(len);
            }
            Box::new(target)
        };
        self.behind.get_or_init(outside)
    }
}

impl Targets {
    /// The end of this rank, if it was met.
    #[inline]
    pub(super) fn find(&self, rank: usize) -> Option<&Target> {
        self.place(rank).get().map(|node| &node.target)
    }

    /// Meets it.
    pub(super) fn meet(&self, target: Target) -> &Target {
        let rank = target.rank;
        let mut node = Box::new(Node {
            target,
            children: Default::default(),
        });
        // Where another thread has just met another rank, one has to look further down.
        while let Err(again) = self.place(rank).set(node) {
            node = again;
            if let Some(met) = self.find(rank) {
                return met;
            }
        }
        let met = self.find(rank);
        met.expect("what was just met")
    }

    /// Where a rank is, or would be.
    #[inline]
    fn place(&self, rank: usize) -> &Child {
        let (mut place, mut bits) = (&self.root, rank);
        while let Some(node) = place.get().filter(|node| node.target.rank != rank) {
            place = &node.children[bits & 1];
            bits >>= 1;
        }
        place
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target(rank {})", self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::{Target, Targets};

    #[test]
    fn every_rank_that_was_met_is_found_and_no_other() {
        let targets = Targets::default();
        let ranks = [5, 0, 7, 4, 1 << 40, 12, 3, usize::MAX];
        for rank in ranks {
            assert!(targets.find(rank).is_none());
            targets.meet(Target::new(rank, 0, Default::default()));
        }
        for rank in ranks {
            assert_eq!(targets.find(rank).map(|target| target.rank), Some(rank));
        }
        assert!(targets.find(6).is_none());
    }
}
