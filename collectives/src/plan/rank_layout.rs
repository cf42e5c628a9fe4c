//! A planning rank, its group, and the nodes of the group.

use std::{borrow::Cow, collections::BTreeMap};

use super::UnfitPlan;

/// A rank of a group, and the nodes of the group's ranks if those are known.
#[derive(Clone, Copy, Debug)]
pub struct RankLayout<'a> {
    rank: usize,
    size: usize,
    nodes: Option<&'a NodeLayout>,
}

/// The nodes of the ranks. Made once for a group: it holds O(size) numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLayout {
    node_of: Vec<usize>,
    members: Vec<Vec<usize>>,
}

impl<'a> RankLayout<'a> {
    /// Returns `rank` of a group of `size`.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    pub const fn new(rank: usize, size: usize) -> Self {
        assert!(rank < size, "a rank of the group");
        Self {
            rank,
            size,
            nodes: None,
        }
    }

    /// Returns the same rank, with a map of nodes for the node-aware algorithms.
    ///
    /// # Panics
    /// Panics if the map is of a group of another size.
    #[must_use]
    pub fn on(self, nodes: &'a NodeLayout) -> Self {
        let mapped = nodes.node_of.len();
        assert_eq!(mapped, self.size, "a map of as many ranks as the group has");
        Self {
            nodes: Some(nodes),
            ..self
        }
    }

    /// Returns the rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks in the group.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns true if there is a map, and the ranks of each node are consecutive.
    pub(crate) fn has_consecutive_nodes(&self) -> bool {
        self.nodes.is_some_and(NodeLayout::in_rank_order)
    }

    /// # Panics
    /// Panics if the group has no rank `root`.
    pub(crate) fn assert_rank(&self, root: usize) {
        assert!(root < self.size, "root {root} of {} ranks", self.size);
    }

    /// Returns the map, which `algorithm` needs.
    pub(crate) fn nodes(&self, algorithm: &'static str) -> Result<&'a NodeLayout, UnfitPlan> {
        self.nodes.ok_or(UnfitPlan::NoNodes(algorithm))
    }

    /// Returns the whole group as a team.
    pub(crate) const fn team(&self) -> RankTeam<'static> {
        RankTeam {
            me: self.rank,
            size: self.size,
            members: None,
        }
    }
}

impl NodeLayout {
    /// Makes the map in which rank `i` lives on node `node_of[i]`. Node names are any numbers. Nodes are ordered by their first
    /// rank.
    #[must_use]
    pub fn new(node_of: &[usize]) -> Self {
        let mut names = BTreeMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut index_of = Vec::with_capacity(node_of.len());
        for (rank, name) in node_of.iter().enumerate() {
            let index = *names.entry(name).or_insert(members.len());
            if index == members.len() {
                members.push(Vec::new());
            }
            members[index].push(rank);
            index_of.push(index);
        }
        Self {
            node_of: index_of,
            members,
        }
    }

    /// Makes nodes of `per_node` ranks each, in order; the last node may have fewer.
    ///
    /// # Panics
    /// Panics if `per_node` is 0.
    #[must_use]
    pub fn regular(size: usize, per_node: usize) -> Self {
        let node_of: Vec<usize> = (0..size).map(|rank| rank / per_node).collect();
        Self::new(&node_of)
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Returns the node of a rank.
    #[must_use]
    pub fn node_of(&self, rank: usize) -> usize {
        self.node_of[rank]
    }

    /// Returns the ranks of a node, ascending.
    #[must_use]
    pub fn members(&self, node: usize) -> &[usize] {
        &self.members[node]
    }

    /// Returns true if the ranks of each node are consecutive. Then combining inside nodes first keeps the order of ranks.
    #[must_use]
    pub fn in_rank_order(&self) -> bool {
        self.node_of.is_sorted()
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.node_of.len()
    }

    /// Returns the ranks of `rank`'s node, as a team that contains `rank`.
    pub(crate) fn team(&self, rank: usize) -> RankTeam<'_> {
        let members = self.members(self.node_of(rank));
        RankTeam::of(rank, members).expect("a rank is on its own node")
    }

    /// Returns the leader of each node: its first rank, or `root` on `root`'s node.
    pub(crate) fn leaders(&self, root: usize) -> Vec<usize> {
        let mut leaders: Vec<usize> = self.members.iter().map(|node| node[0]).collect();
        leaders[self.node_of(root)] = root;
        leaders
    }
}

/// Ranks that run a part of a plan among themselves, numbered from 0 without gaps.
#[derive(Clone, Debug)]
pub(crate) struct RankTeam<'a> {
    /// This rank's number in the team.
    pub(crate) me: usize,
    /// The number of ranks in the team.
    pub(crate) size: usize,
    /// Ranks of the group by number; `None` if number and rank are the same.
    members: Option<Cow<'a, [usize]>>,
}

impl<'a> RankTeam<'a> {
    /// Returns the team of these ranks, if `rank` is one of them.
    pub(crate) fn of(rank: usize, members: impl Into<Cow<'a, [usize]>>) -> Option<Self> {
        let members = members.into();
        Some(Self {
            me: members.iter().position(|member| *member == rank)?,
            size: members.len(),
            members: Some(members),
        })
    }

    /// Returns the rank with number `index`.
    pub(crate) fn rank_at(&self, index: usize) -> usize {
        self.members
            .as_ref()
            .map_or(index, |members| members[index])
    }

    /// Returns the number of `rank`.
    pub(crate) fn index(&self, rank: usize) -> usize {
        let found = self.members.as_ref().map_or(Some(rank), |members| {
            members.iter().position(|member| *member == rank)
        });
        found.expect("a member of the team")
    }

    /// Returns the rank `distance` numbers ahead, around the end.
    pub(crate) fn ahead(&self, distance: usize) -> usize {
        self.rank_at((self.me + distance) % self.size)
    }

    /// Returns the rank `distance` numbers behind, around the start.
    pub(crate) fn behind(&self, distance: usize) -> usize {
        self.rank_at((self.me + self.size - distance) % self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeLayout, RankTeam};

    #[test]
    fn nodes_are_ordered_by_their_first_rank() {
        let nodes = NodeLayout::new(&[7, 7, 3, 7, 3]);
        assert_eq!((nodes.count(), nodes.node_of(3)), (2, 0));
        assert_eq!(nodes.members(1), [2, 4]);
        assert!(!nodes.in_rank_order() && NodeLayout::regular(5, 2).in_rank_order());
        assert_eq!(nodes.leaders(4), [0, 4]);
    }

    #[test]
    fn a_team_has_only_its_members() {
        assert!(RankTeam::of(1, vec![0, 2]).is_none());
        let team = RankTeam::of(2, vec![0, 2, 5]).unwrap();
        assert_eq!((team.me, team.ahead(2), team.behind(2)), (1, 0, 5));
    }
}
