//! Set of ranks that are down.

use std::collections::BTreeMap;

use crate::group::WorldRank;
use ripstop_fabric::driver::DownCause;

/// Ranks that are down, and how: two bits for each rank, in blocks of 64 ranks of which at least one is down.
#[derive(Debug, Default)]
pub(in crate::engine) struct DownRanks {
    /// Bit masks of the finished and the failed ranks, by rank / 64.
    blocks: BTreeMap<u32, [u64; 2]>,
    len: usize,
}

impl DownRanks {
    /// Records that a rank is down. Returns false if that was known.
    pub(in crate::engine) fn insert(&mut self, rank: WorldRank, why: DownCause) -> bool {
        let block = self.blocks.entry(rank.0 / 64).or_default();
        let bit = 1_u64 << (rank.0 % 64);
        let new = (block[0] | block[1]) & bit == 0;
        if new {
            block[usize::from(why == DownCause::Failed)] |= bit;
            self.len += 1;
        }
        new
    }

    /// Returns how a rank went down. O(1) while no rank is down.
    #[inline]
    pub(in crate::engine) fn get(&self, rank: WorldRank) -> Option<DownCause> {
        if self.len == 0 {
            return None;
        }
        let block = self.blocks.get(&(rank.0 / 64))?;
        match block.map(|ranks| ranks >> (rank.0 % 64) & 1) {
            [1, _] => Some(DownCause::Finished),
            [_, 1] => Some(DownCause::Failed),
            _ => None,
        }
    }

    /// Returns the number of ranks that are down.
    pub(in crate::engine) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{any, prop, proptest};
    use ripstop_fabric::driver::DownCause;

    use super::{DownRanks, WorldRank};

    proptest! {
        #[test]
        fn a_rank_falls_once_and_stays_down_as_it_fell(falls in prop::collection::vec((0_u32..300, any::<bool>()), 0..200)) {
            let (mut fallen, mut reference) = (DownRanks::default(), BTreeMap::new());
            for (rank, failed) in falls {
                let why = if failed { DownCause::Failed } else { DownCause::Finished };
                assert_eq!(fallen.insert(WorldRank(rank), why), !reference.contains_key(&rank));
                reference.entry(rank).or_insert(why);
            }
            assert_eq!(fallen.len(), reference.len());
            assert!((0..300).all(|rank| fallen.get(WorldRank(rank)) == reference.get(&rank).copied()));
        }
    }
}
