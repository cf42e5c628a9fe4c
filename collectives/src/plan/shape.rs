//! The common shapes: trees and powers of two, as the neighbors of one rank in them. O(log size) each.

use std::ops::Range;

/// A rank's neighbors in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeLinks {
    pub(crate) parent: Option<usize>,
    pub(crate) children: Vec<usize>,
}

impl TreeLinks {
    /// Makes a tree of at most `arity` children per rank, filled level by level from `root`; an `arity` of 1 gives a chain.
    pub(crate) fn kary(me: usize, size: usize, root: usize, arity: usize) -> Self {
        // A user may ask for any arity.
        let arity = arity.min(size);
        let place = (me + size - root) % size;
        let at = |place: usize| (place + root) % size;
        let children = (1..=arity).map(|i| place * arity + i);
        Self {
            parent: place.checked_sub(1).map(|before| at(before / arity)),
            children: children.take_while(|child| *child < size).map(at).collect(),
        }
    }
}

/// A rank's place in a binomial tree whose every subtree is a range of ranks, for any root.
///
/// The range is halved: the root keeps its own half and hands the other to that half's first rank, and so on. So a subtree's
/// blocks lie in a row, and combining along the tree keeps the order of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeTreeLinks {
    pub(crate) parent: Option<usize>,
    /// Children, those with the largest subtrees first.
    pub(crate) children: Vec<SubtreeChild>,
    /// This rank's own subtree.
    pub(crate) range: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubtreeChild {
    pub(crate) rank: usize,
    pub(crate) range: Range<usize>,
}

impl RangeTreeLinks {
    pub(crate) fn new(me: usize, size: usize, root: usize) -> Self {
        let mut place = Self {
            parent: None,
            children: Vec::new(),
            range: 0..size,
        };
        let (mut range, mut owner) = (0..size, root);
        while range.len() > 1 {
            let (own, other) = halves(&range, owner);
            if other.contains(&me) {
                if other.start == me {
                    (place.parent, place.range) = (Some(owner), other.clone());
                }
                (owner, range) = (other.start, other);
            } else {
                if me == owner {
                    let rank = other.start;
                    place.children.push(SubtreeChild { rank, range: other });
                }
                range = own;
            }
        }
        place
    }

    pub(crate) fn tree(&self) -> TreeLinks {
        TreeLinks {
            parent: self.parent,
            children: self.children.iter().map(|child| child.rank).collect(),
        }
    }
}

/// Returns the half of `range` that contains `owner`, and the other half.
fn halves(range: &Range<usize>, owner: usize) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len().div_ceil(2);
    let (low, high) = (range.start..middle, middle..range.end);
    if low.contains(&owner) {
        (low, high)
    } else {
        (high, low)
    }
}

/// The largest power of two that fits into a group. Neighbors merge until no more ranks than that remain: one rank of each of
/// the first pairs remains, in the place of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerOfTwoFold {
    pub(crate) power: usize,
    /// Number of pairs that merge.
    pairs: usize,
    /// The rank that must remain.
    keep: usize,
}

/// The role of a rank after folding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldRole {
    /// The rank's partner takes its place.
    Out { partner: usize },
    /// The rank remains, with this index below the power of two, and may stand for a partner too.
    In {
        index: usize,
        partner: Option<usize>,
    },
}

impl PowerOfTwoFold {
    /// Folds a group. The even rank of each pair remains, unless `keep` is the odd one.
    pub(crate) const fn new(size: usize, keep: usize) -> Self {
        let power = 1 << size.ilog2();
        Self {
            power,
            pairs: size - power,
            keep,
        }
    }

    pub(crate) fn role(&self, rank: usize) -> FoldRole {
        if rank >= 2 * self.pairs {
            return FoldRole::In {
                index: rank - self.pairs,
                partner: None,
            };
        }
        let (index, partner) = (rank / 2, rank ^ 1);
        if self.rank(index) == rank {
            let partner = Some(partner);
            FoldRole::In { index, partner }
        } else {
            FoldRole::Out { partner }
        }
    }

    /// Returns the rank that remains as `index`.
    pub(crate) fn rank(&self, index: usize) -> usize {
        if index < self.pairs {
            2 * index + usize::from(self.keep == 2 * index + 1)
        } else {
            index + self.pairs
        }
    }

    /// Returns the ranks, including merged ones, that these indices stand for.
    pub(crate) fn ranks(&self, indices: Range<usize>) -> Range<usize> {
        let first = |index: usize| index + index.min(self.pairs);
        first(indices.start)..first(indices.end)
    }
}

/// Returns 1, 2, 4, … below `end`.
pub(crate) fn powers(end: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..end.next_power_of_two().ilog2()).map(|bit| 1 << bit)
}

#[cfg(test)]
mod tests {
    use super::{FoldRole, PowerOfTwoFold, RangeTreeLinks, TreeLinks, powers};

    #[test]
    fn parents_and_children_agree_in_every_tree() {
        for size in 1..40 {
            for root in 0..size {
                let halving = |me| RangeTreeLinks::new(me, size, root).tree();
                agree(size, root, halving);
                for arity in [1, 2, 3, usize::MAX] {
                    agree(size, root, |me| TreeLinks::kary(me, size, root, arity));
                }
            }
        }
    }

    fn agree(size: usize, root: usize, tree: impl Fn(usize) -> TreeLinks) {
        for me in 0..size {
            assert_eq!(tree(me).parent.is_none(), me == root);
            for child in tree(me).children {
                assert_eq!(tree(child).parent, Some(me));
            }
        }
        let edges: usize = (0..size).map(|me| tree(me).children.len()).sum();
        assert_eq!(edges, size - 1);
    }

    #[test]
    fn subtrees_are_ranges_and_the_tree_is_logarithmic() {
        for size in 1_usize..70 {
            for root in [0, size / 2, size - 1] {
                for me in 0..size {
                    let place = RangeTreeLinks::new(me, size, root);
                    let depth = size.next_power_of_two().ilog2() as usize;
                    assert!(place.children.len() <= depth);
                    let covered: usize = place.children.iter().map(|child| child.range.len()).sum();
                    assert_eq!(covered + 1, place.range.len(), "{me} of {size}, {root}");
                    for child in &place.children {
                        let theirs = RangeTreeLinks::new(child.rank, size, root).range;
                        assert_eq!(child.range, theirs, "{me} of {size}, root {root}");
                    }
                }
            }
        }
    }

    #[test]
    fn folding_leaves_a_power_of_two_and_covers_all() {
        for size in 1..70 {
            for keep in 0..size {
                let fold = PowerOfTwoFold::new(size, keep);
                assert_eq!(fold.ranks(0..fold.power), 0..size);
                assert!(matches!(fold.role(keep), FoldRole::In { .. }));
                for index in 0..fold.power {
                    let rank = fold.rank(index);
                    assert!(fold.ranks(index..index + 1).contains(&rank));
                    assert!(matches!(fold.role(rank), FoldRole::In { index: i, .. } if i == index));
                }
            }
        }
    }

    #[test]
    fn powers_stay_below_the_end() {
        assert_eq!(powers(1).count(), 0);
        assert_eq!(powers(9).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(powers(8).rev().collect::<Vec<_>>(), [4, 2, 1]);
    }
}
