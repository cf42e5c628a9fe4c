//! Groups: the members of a communicator.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, OnceLock},
};

/// A rank of the job, as drivers number it. [`CommRank`] is a rank of a communicator.
pub(crate) use ripstop_fabric::driver::WorldRank;

/// A rank of a communicator, in `0..size`. `RankGroup` translates it to a [`WorldRank`] and back.
///
/// The public interface has plain `usize` ranks, which are always ranks of a communicator. So have the plans of `collectives`
/// and the agreements of `proto::agree`, which know no other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommRank(pub usize);

/// The members of a communicator, in rank order. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum RankGroup {
    /// World ranks `0..n`. Needs no list, so a world of thousands of ranks takes no memory.
    First(u32),
    /// World ranks in any order.
    Listed(Arc<GroupMembers>),
}

/// A group with an explicit list of members.
#[derive(Debug)]
pub(crate) struct GroupMembers {
    world: Box<[WorldRank]>,
    /// World rank and rank in the group of each member, sorted by world rank.
    by_world: Box<[(WorldRank, CommRank)]>,
    /// Cached result of `consecutive_per_node`, for the nodes of this job.
    in_a_row: OnceLock<usize>,
}

impl fmt::Display for CommRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl RankGroup {
    pub(crate) fn new(world: Vec<WorldRank>) -> Self {
        if world.iter().zip(0..).all(|(rank, index)| rank.0 == index) {
            let size = u32::try_from(world.len()).expect("as many as there are world ranks");
            return Self::First(size);
        }
        let ranks = (0..).map(CommRank);
        let mut by_world: Vec<_> = world.iter().copied().zip(ranks).collect();
        by_world.sort_unstable();
        Self::Listed(Arc::new(GroupMembers {
            world: world.into(),
            by_world: by_world.into(),
            in_a_row: OnceLock::new(),
        }))
    }

    /// Returns true if both share one list, or are the same first ranks.
    #[inline]
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::First(size), Self::First(other)) => size == other,
            (Self::Listed(list), Self::Listed(other)) => Arc::ptr_eq(list, other),
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::First(size) => *size as usize,
            Self::Listed(listed) => listed.world.len(),
        }
    }

    #[inline]
    pub(crate) fn world_of(&self, rank: CommRank) -> Option<WorldRank> {
        match self {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a rank below a size that is a `u32` fits into a `u32`"
            )]
            Self::First(size) if rank.0 < *size as usize => Some(WorldRank(rank.0 as u32)),
            Self::First(_) => None,
            Self::Listed(listed) => listed.world.get(rank.0).copied(),
        }
    }

    /// Returns the rank in this group of a world rank. O(1) if members are world ranks in order, otherwise O(log size).
    #[inline]
    pub(crate) fn local_of(&self, world: WorldRank) -> Option<CommRank> {
        match self {
            Self::First(size) => (world.0 < *size).then_some(CommRank(world.0 as usize)),
            Self::Listed(listed) => {
                let by_world = &listed.by_world;
                let at = by_world.binary_search_by_key(&world, |&(world, _)| world);
                at.ok().map(|at| by_world[at].1)
            }
        }
    }

    pub(crate) fn contains(&self, world: WorldRank) -> bool {
        self.local_of(world).is_some()
    }

    /// Returns the world ranks of the members, in rank order.
    pub(crate) fn members(&self) -> impl Iterator<Item = WorldRank> + '_ {
        self.ranks().filter_map(|rank| self.world_of(rank))
    }

    /// Returns the ranks of the members in this group, in order.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = CommRank> + use<> {
        (0..self.len()).map(CommRank)
    }

    /// Returns the member that is `distance` ranks after this one, where the first rank follows the last.
    pub(crate) fn world_after(&self, rank: CommRank, distance: usize) -> Option<WorldRank> {
        self.world_of(CommRank((rank.0 + distance) % self.len()))
    }

    /// Returns the member that is `distance` ranks before this one, at most `len()`, where the last rank precedes the first.
    pub(crate) fn world_before(&self, rank: CommRank, distance: usize) -> Option<WorldRank> {
        self.world_after(rank, self.len() - distance)
    }

    /// Returns how many consecutive members share a node, if `per_node` world ranks share one.
    ///
    /// Each node must have the same number of members; the last may have fewer. Otherwise returns 1. O(1) if members
    /// are world ranks in order, otherwise O(size log size) once. The result is cached, because the nodes never change.
    pub(crate) fn consecutive_per_node(&self, per_node: u32) -> usize {
        match self {
            Self::First(size) => per_node.min(*size) as usize,
            Self::Listed(listed) => *listed
                .in_a_row
                .get_or_init(|| even_rows(self.members().map(|rank| rank.0 / per_node))),
        }
    }
}

/// Returns the length of runs of equal kinds, if all runs have the same length; the last may be shorter. Otherwise
/// returns 1.
fn even_rows(kinds: impl Iterator<Item = u32>) -> usize {
    let (mut rows, mut seen): (Vec<(u32, usize)>, _) = (Vec::new(), BTreeSet::new());
    for kind in kinds {
        match rows.last_mut() {
            Some((last, count)) if *last == kind => *count += 1,
            _ if !seen.insert(kind) => return 1,
            _ => rows.push((kind, 1)),
        }
    }
    let Some((&(_, last), others)) = rows.split_last() else {
        return 1;
    };
    let count = rows[0].1;
    let alike = others.iter().all(|(_, row)| *row == count) && last <= count;
    if alike { count } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::{CommRank, RankGroup, WorldRank};

    #[test]
    fn a_group_knows_its_members_both_ways() {
        for world in [vec![0, 1, 2, 3], vec![5, 2, 9], vec![0, 2], vec![]] {
            let world: Vec<_> = world.into_iter().map(WorldRank).collect();
            let group = RankGroup::new(world.clone());
            assert_eq!(group.members().collect::<Vec<_>>(), world);
            for (rank, &member) in group.ranks().zip(&world) {
                assert_eq!(group.local_of(member), Some(rank));
                assert_eq!(group.world_of(rank), Some(member));
            }
            assert_eq!(group.ranks().count(), world.len());
            assert_eq!(group.world_of(CommRank(world.len())), None);
            assert!(!group.contains(WorldRank(77)));
        }
    }

    #[test]
    fn rows_are_those_of_members_on_one_node_if_all_nodes_have_as_many() {
        let rows = |members: &[u32]| {
            let members = members.iter().copied().map(WorldRank);
            RankGroup::new(members.collect()).consecutive_per_node(4)
        };
        assert_eq!([rows(&[0, 1, 2]), rows(&[0, 1, 2, 3, 4, 5])], [3, 4]);
        assert_eq!(
            [rows(&[5]), rows(&[7, 4, 5]), rows(&[2, 3, 6, 7, 9])],
            [1, 3, 2]
        );
        assert_eq!(
            [
                rows(&[1, 5, 9]),
                rows(&[1, 4, 5]),
                rows(&[0, 1, 2, 4, 5, 8])
            ],
            [1, 1, 1]
        );
        assert_eq!([rows(&[0, 1, 4, 5, 2, 3]), rows(&[9, 8, 1, 0, 5])], [1, 2]);
    }
}
