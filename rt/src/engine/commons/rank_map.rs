//! A map from ranks to items, for items that most ranks do not have.
//!
//! It is an open hash table of boxes. A rank without an item costs nothing. Compared with a plain vector, an access takes one
//! multiplication and one comparison more. Items never move.

use crate::group::WorldRank;

/// At most one `T` for each rank.
pub(in crate::engine) struct SparseRankMap<T> {
    places: Box<[RankMapSlot<T>]>,
    used: usize,
    shift: u32,
}

type RankMapSlot<T> = Option<Box<RankMapEntry<T>>>;

struct RankMapEntry<T> {
    rank: WorldRank,
    item: T,
}

impl<T> SparseRankMap<T> {
    /// Bytes of a place in the table. At most half of the places are used.
    pub(in crate::engine) const PLACE_BYTES: usize = size_of::<RankMapSlot<T>>();

    pub(in crate::engine) fn new() -> Self {
        Self::with_bits(BITS_MIN)
    }

    /// Returns the number of ranks that have an item.
    pub(in crate::engine) fn len(&self) -> usize {
        self.used
    }

    /// Returns the bytes of the table and of its items.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.places.len() * Self::PLACE_BYTES + self.used * size_of::<RankMapEntry<T>>()
    }

    #[inline]
    pub(in crate::engine) fn get(&self, rank: WorldRank) -> Option<&T> {
        self.places[self.probe(rank)]
            .as_ref()
            .map(|entry| &entry.item)
    }

    #[inline]
    pub(in crate::engine) fn get_mut(&mut self, rank: WorldRank) -> Option<&mut T> {
        let place = self.probe(rank);
        self.places[place].as_mut().map(|entry| &mut entry.item)
    }

    /// Returns the ranks that have an item. Their order has no meaning but is always the same.
    pub(in crate::engine) fn ranks(&self) -> impl Iterator<Item = WorldRank> {
        self.places.iter().flatten().map(|entry| entry.rank)
    }

    /// Returns the place of this rank's item, or `None` if it has none.
    #[inline(always)]
    pub(in crate::engine) fn find(&self, rank: WorldRank) -> Option<usize> {
        let home = self.home(rank);
        // Nearly every rank is at home.
        match self.places.get(home) {
            Some(Some(entry)) if entry.rank == rank => Some(home),
            _ => self.find_further(rank),
        }
    }

    #[inline(never)]
    fn find_further(&self, rank: WorldRank) -> Option<usize> {
        let place = self.probe(rank);
        self.places[place].is_some().then_some(place)
    }

    /// Returns the item at a place that [`find`](Self::find) or [`insert`](Self::insert) has just returned.
    #[inline(always)]
    pub(in crate::engine) fn at(&mut self, place: usize) -> &mut T {
        let entry = self.places[place].as_mut().expect("just found");
        &mut entry.item
    }

    /// Stores the item of a rank that has none, and returns its place.
    #[cold]
    pub(in crate::engine) fn insert(&mut self, rank: WorldRank, item: T) -> usize {
        self.used += 1;
        if self.used * 2 > self.places.len() {
            self.grow();
        }
        let place = self.probe(rank);
        self.places[place] = Some(Box::new(RankMapEntry { rank, item }));
        place
    }

    /// Returns the place of this rank's entry, or the free place where it belongs.
    #[inline]
    fn probe(&self, rank: WorldRank) -> usize {
        let mask = self.places.len() - 1;
        let mut place = self.home(rank);
        while let Some(entry) = &self.places[place]
            && entry.rank != rank
        {
            place = (place + 1) & mask;
        }
        place
    }

    fn grow(&mut self) {
        let mut wider = Self::with_bits(u32::BITS - self.shift + 1);
        wider.used = self.used;
        for entry in std::mem::take(&mut self.places).into_iter().flatten() {
            let place = wider.probe(entry.rank);
            wider.places[place] = Some(entry);
        }
        *self = wider;
    }

    fn with_bits(bits: u32) -> Self {
        Self {
            places: (0..1 << bits).map(|_| None).collect(),
            used: 0,
            shift: u32::BITS - bits,
        }
    }

    #[inline]
    fn home(&self, rank: WorldRank) -> usize {
        (rank.0.wrapping_mul(MIX) >> self.shift) as usize
    }
}

/// Bits of the smallest table. Few, because an idle rank of a large simulation should take little memory.
const BITS_MIN: u32 = 1;

/// 2³² divided by the golden ratio, made odd. Spreads neighboring ranks, and ranks that are a power of two apart.
const MIX: u32 = 0x9e37_79b9;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{any, prop, prop_oneof, proptest};

    use super::{SparseRankMap, WorldRank};

    proptest! {
        #[test]
        fn what_was_put_in_is_found_and_nothing_else(
            ranks in prop::collection::vec(prop_oneof![0_u32..100, any::<u32>()], 0..300),
            others in prop::collection::vec(0_u32..200, 0..50),
        ) {
            let (mut sparse, mut reference) = (SparseRankMap::new(), BTreeMap::new());
            for (rank, item) in ranks.into_iter().zip(0..) {
                let known = *reference.entry(rank).or_insert(item);
                let rank = WorldRank(rank);
                let found = sparse.find(rank);
                let place = found.unwrap_or_else(|| sparse.insert(rank, item));
                assert_eq!(*sparse.at(place), known);
                *sparse.get_mut(rank).expect("just put in") += 1;
                reference.insert(rank.0, known + 1);
            }
            for rank in reference.keys().copied().chain(others) {
                assert_eq!(sparse.get(WorldRank(rank)), reference.get(&rank));
            }
            assert!(sparse.places.len() <= 8.max(4 * sparse.used));
        }
    }

    #[test]
    fn ranks_a_power_of_two_apart_do_not_pile_up() {
        let mut sparse = SparseRankMap::new();
        for rank in 0..1024_u32 {
            sparse.insert(WorldRank(rank << 12), ());
        }
        let passed = |rank: WorldRank| {
            let mask = sparse.places.len() - 1;
            sparse.probe(rank).wrapping_sub(sparse.home(rank)) & mask
        };
        let worst = (0..1024_u32)
            .map(|rank| passed(WorldRank(rank << 12)))
            .max();
        assert!(worst < Some(8), "{worst:?}");
    }
}
