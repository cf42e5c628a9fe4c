//! Sets of ranks.

/// A set of ranks of one communicator. Has one bit for each rank up to the greatest, so the empty set allocates
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankSet(Vec<u64>);

impl RankSet {
    /// Adds a rank. Returns true if the rank was not in the set.
    pub(crate) fn insert(&mut self, rank: usize) -> bool {
        let (at, bit) = (rank / 64, 1_u64 << (rank % 64));
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        let new = self.0[at] & bit == 0;
        self.0[at] |= bit;
        new
    }

    pub(crate) fn contains(&self, rank: usize) -> bool {
        let word = self.0.get(rank / 64).copied().unwrap_or_default();
        word >> (rank % 64) & 1 == 1
    }

    pub(crate) fn join(&mut self, other: &Self) {
        self.join_words(0, &other.0);
    }

    /// Adds ranks from a bit map, whose first bit stands for rank `64 * at`.
    pub(crate) fn join_words(&mut self, at: usize, words: &[u64]) {
        let len = words.iter().rposition(|&word| word != 0);
        let words = &words[..len.map_or(0, |last| last + 1)];
        if self.0.len() < at + words.len() && !words.is_empty() {
            self.0.resize(at + words.len(), 0);
        }
        for (mine, its) in self.0.iter_mut().skip(at).zip(words) {
            *mine |= its;
        }
    }

    /// Returns the set as a bit map with one bit for each rank, up to the greatest rank.
    pub(crate) fn words(&self) -> &[u64] {
        &self.0
    }

    /// Returns the least rank that is not in the set.
    pub(crate) fn first_missing(&self) -> usize {
        let full = self.0.iter().take_while(|word| **word == u64::MAX).count();
        let next = self.0.get(full).copied().unwrap_or_default();
        full * 64 + next.trailing_ones() as usize
    }

    /// Returns true if each of the ranks `0..size` is in this set or in `other`.
    pub(crate) fn covers_with(&self, other: &Self, size: usize) -> bool {
        let mut both = self.clone();
        both.join(other);
        both.first_missing() >= size
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{prop, proptest};

    use super::RankSet;

    proptest! {
        #[test]
        fn a_set_is_what_was_put_in(
            ranks in prop::collection::vec(0_usize..200, 0..200),
            others in prop::collection::vec(0_usize..200, 0..20),
        ) {
            let (mut set, mut reference) = (RankSet::default(), BTreeSet::new());
            for rank in ranks {
                assert_eq!(set.insert(rank), reference.insert(rank));
            }
            let mut other = RankSet::default();
            for rank in &others {
                other.insert(*rank);
            }
            let missing = (0..).find(|rank| !reference.contains(rank));
            assert_eq!(Some(set.first_missing()), missing);
            let covers = (0..150).all(|rank| reference.contains(&rank) || others.contains(&rank));
            assert_eq!(set.covers_with(&other, 150), covers);
            set.join(&other);
            reference.extend(others);
            assert!((0..300).all(|rank| set.contains(rank) == reference.contains(&rank)));
            let mut again = RankSet::default();
            again.join_words(0, &[0; 9]);
            assert_eq!(again, RankSet::default(), "nothing is kept for zeros");
            for (at, word) in set.words().iter().enumerate() {
                again.join_words(at, &[*word, 0, 0]);
            }
            assert_eq!(again, set);
        }
    }
}
