//! Who is in a communicator.

use std::sync::Arc;

/// The members of a communicator, in the order of their ranks. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    /// World ranks `0..n`: no list, so that a world of thousands costs its ranks nothing.
    First(u32),
    /// World ranks in any order.
    Listed(Arc<Listed>),
}

/// A group that is written out.
#[derive(Debug)]
pub(crate) struct Listed {
    world: Box<[u32]>,
    /// World rank and rank of each member, by world rank.
    by_world: Box<[(u32, usize)]>,
}

impl Group {
    pub(crate) fn new(world: Vec<u32>) -> Self {
        if world.iter().zip(0..).all(|(&rank, index)| rank == index) {
            let size = u32::try_from(world.len()).expect("as many as there are world ranks");
            return Self::First(size);
        }
        let mut by_world: Vec<_> = world.iter().copied().zip(0..).collect();
        by_world.sort_unstable();
        Self::Listed(Arc::new(Listed {
            world: world.into(),
            by_world: by_world.into(),
        }))
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::First(size) => *size as usize,
            Self::Listed(listed) => listed.world.len(),
        }
    }

    #[inline]
    pub(crate) fn world_of(&self, rank: usize) -> Option<u32> {
        match self {
            Self::First(size) => u32::try_from(rank).ok().filter(|rank| rank < size),
            Self::Listed(listed) => listed.world.get(rank).copied(),
        }
    }

    /// The rank in this group of a world rank. O(1) where both are the same, else O(log size).
    #[inline]
    pub(crate) fn local_of(&self, world: u32) -> Option<usize> {
        match self {
            Self::First(size) => (world < *size).then_some(world as usize),
            Self::Listed(listed) => {
                let by_world = &listed.by_world;
                let at = by_world.binary_search_by_key(&world, |&(world, _)| world);
                at.ok().map(|at| by_world[at].1)
            }
        }
    }

    pub(crate) fn contains(&self, world: u32) -> bool {
        self.local_of(world).is_some()
    }

    /// World ranks, in the order of the members' ranks.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter_map(|rank| self.world_of(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::Group;

    #[test]
    fn a_group_knows_its_members_both_ways() {
        for world in [vec![0, 1, 2, 3], vec![5, 2, 9], vec![0, 2], vec![]] {
            let group = Group::new(world.clone());
            assert_eq!(group.members().collect::<Vec<_>>(), world);
            for (rank, &member) in world.iter().enumerate() {
                assert_eq!(group.local_of(member), Some(rank));
                assert_eq!(group.world_of(rank), Some(member));
            }
            assert_eq!(group.world_of(world.len()), None);
            assert!(!group.contains(77));
        }
    }
}
