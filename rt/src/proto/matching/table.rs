//! An open-addressing hash table from keys to lists: linear probing, at most half full, no tombstones.
//!
//! The hash is fixed, so that a run can be replayed. The order of `std`'s map is random.

use std::ops::{Index, IndexMut};

use super::list::ListEnds;

/// Key of a list. Fields that its class leaves open are zero. Packed into two words, which compare quickly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchingKey {
    ctx_and_tag: u64,
    source_and_class: u64,
}

impl MatchingKey {
    #[inline]
    pub(super) fn new(class: ReceiveClass, ctx: u32, source: u32, tag: u32) -> Self {
        Self {
            ctx_and_tag: u64::from(ctx) << 32 | u64::from(tag),
            source_and_class: u64::from(source) << 2 | class as u64,
        }
    }

    /// Returns the number of the key's class.
    #[inline]
    pub(super) const fn class(self) -> usize {
        (self.source_and_class & 3) as usize
    }
}

/// Class of a receive: the fields of an envelope that it specifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ReceiveClass {
    Exact,
    AnySource,
    AnyTag,
    Any,
}

impl ReceiveClass {
    pub(super) const ALL: [Self; 4] = [Self::Exact, Self::AnySource, Self::AnyTag, Self::Any];
    pub(super) const WILD: [Self; 3] = [Self::AnySource, Self::AnyTag, Self::Any];
}

/// Content of a list. Never both kinds, because a message and a receive in the same list would have matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListContent {
    Nothing,
    Receives,
    Messages,
}

/// One place of the table. A place that holds anything belongs to the list of `key`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchingList {
    pub(super) key: MatchingKey,
    pub(super) ends: ListEnds,
    pub(super) holds: ListContent,
}

const FREE: MatchingList = MatchingList {
    key: MatchingKey {
        ctx_and_tag: 0,
        source_and_class: 0,
    },
    ends: ListEnds::EMPTY,
    holds: ListContent::Nothing,
};

#[derive(Debug)]
pub(super) struct MatchingTable {
    lists: Box<[MatchingList]>,
    /// Number of lists that can be opened before the table grows.
    room: usize,
    shift: u32,
}

impl MatchingTable {
    pub(super) fn new() -> Self {
        Self::with_bits(BITS_MIN)
    }

    /// Reserves memory for `more` lists, so that places found after this call do not move.
    #[inline]
    pub(super) fn reserve(&mut self, more: usize) {
        if self.room < more {
            self.grow();
        }
    }

    /// Returns the place of the list of `key`, or the free place where the list belongs.
    #[inline(always)]
    pub(super) fn probe(&self, key: MatchingKey) -> usize {
        let mut place = self.home(key);
        loop {
            let list = &self[place];
            if list.holds == ListContent::Nothing || list.key == key {
                return place;
            }
            place = self.after(place);
        }
    }

    /// Returns true if the list of `key` is at this place.
    #[inline(always)]
    pub(super) fn is_at(&self, place: usize, key: MatchingKey) -> bool {
        let list = self.lists.get(place);
        list.is_some_and(|list| list.key == key && list.holds != ListContent::Nothing)
    }

    /// Opens a list in a free place found by [`probe`](Self::probe) after a [`reserve`](Self::reserve).
    pub(super) fn open(&mut self, place: usize, key: MatchingKey, holds: ListContent) {
        self[place] = MatchingList {
            key,
            ends: ListEnds::EMPTY,
            holds,
        };
        self.room -= 1;
    }

    /// Frees the place of a list that has become empty. Other lists may move into it, so places found before are
    /// invalid.
    pub(super) fn close(&mut self, place: usize) {
        let mut hole = place;
        let mut next = self.after(place);
        while self[next].holds != ListContent::Nothing {
            if self.may_move(next, hole) {
                self[hole] = self[next];
                hole = next;
            }
            next = self.after(next);
        }
        self[hole] = FREE;
        self.room += 1;
    }

    /// Returns true if a probe for the list at `place` passes `hole` on its way.
    fn may_move(&self, place: usize, hole: usize) -> bool {
        let mask = self.lists.len() - 1;
        let home = self.home(self[place].key);
        place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask
    }

    fn grow(&mut self) {
        self.resize(u64::BITS - self.shift + 1);
    }

    /// Returns the number of places, and how many are in use.
    pub(super) const fn room(&self) -> (usize, usize) {
        let places = self.lists.len();
        (places, places / 2 - self.room)
    }

    /// Shrinks the table to the smallest size that fits its lists.
    #[cold]
    pub(super) fn shrink(&mut self) {
        let (_, used) = self.room();
        let bits = (2 * used).next_power_of_two().trailing_zeros();
        self.resize(bits.max(BITS_MIN));
    }

    fn resize(&mut self, bits: u32) {
        let mut wider = Self::with_bits(bits);
        for list in self
            .lists
            .iter()
            .filter(|list| list.holds != ListContent::Nothing)
        {
            let place = wider.probe(list.key);
            wider[place] = *list;
            wider.room -= 1;
        }
        *self = wider;
    }

    fn with_bits(bits: u32) -> Self {
        Self {
            lists: vec![FREE; 1 << bits].into(),
            room: 1 << (bits - 1),
            shift: u64::BITS - bits,
        }
    }

    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.room * 2 == self.lists.len()
    }

    #[cfg(test)]
    pub(super) const fn places(&self) -> usize {
        self.lists.len()
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.lists.len() - 1)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the shift leaves an index of the table"
    )]
    fn home(&self, key: MatchingKey) -> usize {
        let low = key.ctx_and_tag.wrapping_mul(MIX_LOW);
        let mixed = (low ^ low >> 32).wrapping_add(key.source_and_class);
        (mixed.wrapping_mul(MIX_HIGH) >> self.shift) as usize
    }
}

impl Index<usize> for MatchingTable {
    type Output = MatchingList;

    #[inline]
    fn index(&self, place: usize) -> &MatchingList {
        &self.lists[place]
    }
}

impl IndexMut<usize> for MatchingTable {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut MatchingList {
        &mut self.lists[place]
    }
}

/// Minimum size. Small, because a large simulation has many idle ranks.
const BITS_MIN: u32 = 1;

// Odd numbers with about half of their bits set: 2^64 divided by the golden ratio, and by the square root of three.
const MIX_LOW: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_HIGH: u64 = 0x93cd_3a2c_8198_e269;
