//! A slab of entries, and the ordered lists that are threaded through them.

use std::ops::{Index, IndexMut};

/// Index that means "no entry".
pub(super) const NIL: u32 = u32::MAX;

/// Handle of an entry for as long as it lives. A stale handle is recognized by its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryHandle {
    pub(super) at: u32,
    generation: u32,
}

/// First and last entry of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListEnds {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl ListEnds {
    pub(super) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
    };

    pub(super) const fn is_empty(self) -> bool {
        self.head == NIL
    }
}

/// Neighbors of an entry in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListLink {
    prev: u32,
    next: u32,
}

impl ListLink {
    pub(super) const LOOSE: Self = Self {
        prev: NIL,
        next: NIL,
    };
}

/// An entry that can be in lists: one [`ListLink`] for each list, and a number that orders all of them.
pub(super) trait ListEntry {
    fn order(&self) -> u64;
    fn link(&self, list: usize) -> ListLink;
    fn link_mut(&mut self, list: usize) -> &mut ListLink;
}

/// Slab of entries with stable indices. The memory of a removed entry is reused for the next one.
#[derive(Debug)]
pub(super) struct MatchingSlab<T> {
    places: Vec<SlabPlace<T>>,
    free: u32,
    len: u32,
    /// Generation of new places, chosen such that a handle of a released place never becomes valid again.
    first_generation: u32,
}

#[derive(Debug)]
struct SlabPlace<T> {
    generation: u32,
    next_free: u32,
    entry: Option<T>,
}

impl<T> MatchingSlab<T> {
    /// Size of an entry, in bytes.
    pub(super) const PLACE_BYTES: usize = size_of::<SlabPlace<T>>();

    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: NIL,
            len: 0,
            first_generation: 0,
        }
    }

    /// Returns the number of places, and how many of them are in use.
    pub(super) const fn room(&self) -> (usize, usize) {
        (self.places.len(), self.len as usize)
    }

    /// Releases the places behind the last entry. O(places).
    #[cold]
    pub(super) fn shrink(&mut self) {
        let used = self.places.iter().rposition(|place| place.entry.is_some());
        let kept = used.map_or(0, |last| last + 1);
        if kept == self.places.len() {
            return;
        }
        let generations = self.places[kept..].iter().map(|place| place.generation);
        self.first_generation = generations.fold(self.first_generation, u32::max);
        self.places.truncate(kept);
        self.places.shrink_to_fit();
        self.free = NIL;
        let len = u32::try_from(kept).expect("fewer than 2^32 - 1 entries wait");
        // Lower places are reused first, so that the last ones can be released again.
        for (at, place) in (0..len).zip(&mut self.places).rev() {
            if place.entry.is_none() {
                place.next_free = std::mem::replace(&mut self.free, at);
            }
        }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, entry: T) -> EntryHandle {
        if self.free == NIL {
            self.add_place();
        }
        let at = self.free;
        let place = &mut self.places[at as usize];
        self.free = place.next_free;
        place.entry = Some(entry);
        self.len += 1;
        EntryHandle {
            at,
            generation: place.generation,
        }
    }

    /// Removes a live entry, which the caller has unlinked.
    #[inline(always)]
    pub(super) fn remove(&mut self, at: u32) -> T {
        let place = &mut self.places[at as usize];
        let entry = place.entry.take().expect(LIVE);
        place.generation = place.generation.wrapping_add(1);
        place.next_free = self.free;
        self.free = at;
        self.len -= 1;
        entry
    }

    #[inline]
    pub(super) fn handle(&self, at: u32) -> EntryHandle {
        EntryHandle {
            at,
            generation: self.places[at as usize].generation,
        }
    }

    /// Returns the index of the entry if it still lives.
    pub(super) fn find(&self, handle: EntryHandle) -> Option<u32> {
        let place = self.places.get(handle.at as usize)?;
        (place.generation == handle.generation && place.entry.is_some()).then_some(handle.at)
    }

    /// Iterates over the live entries, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.places)
            .filter_map(|(at, place)| Some((at, place.entry.as_ref()?)))
    }

    #[cfg(test)]
    pub(super) const fn places(&self) -> usize {
        self.places.len()
    }

    #[cold]
    fn add_place(&mut self) {
        let at = u32::try_from(self.places.len()).expect("fewer than 2^32 - 1 entries wait");
        assert!(at != NIL, "fewer than 2^32 - 1 entries wait");
        self.places.push(SlabPlace {
            generation: self.first_generation,
            next_free: NIL,
            entry: None,
        });
        self.free = at;
    }
}

impl<T: ListEntry> MatchingSlab<T> {
    /// Puts an entry into a list at the position of its order number, which is nearly always the end.
    pub(super) fn link(&mut self, ends: &mut ListEnds, list: usize, at: u32) {
        let before = self.last_before(*ends, list, self[at].order());
        let after = if before == NIL {
            ends.head
        } else {
            self[before].link(list).next
        };
        *self[at].link_mut(list) = ListLink {
            prev: before,
            next: after,
        };
        *self.next_of(ends, list, before) = at;
        *self.prev_of(ends, list, after) = at;
    }

    /// Inserts an entry at the end of a list. Its order number must be the highest.
    #[inline(always)]
    pub(super) fn insert_last(
        &mut self,
        ends: &mut ListEnds,
        list: usize,
        mut entry: T,
    ) -> EntryHandle {
        let before = ends.tail;
        debug_assert!(before == NIL || self[before].order() < entry.order());
        *entry.link_mut(list) = ListLink {
            prev: before,
            next: NIL,
        };
        let inserted = self.insert(entry);
        *self.next_of(ends, list, before) = inserted.at;
        ends.tail = inserted.at;
        inserted
    }

    /// Puts an entry at the end of a list. Its order number must be the highest.
    #[inline]
    pub(super) fn append(&mut self, ends: &mut ListEnds, list: usize, at: u32) {
        let before = ends.tail;
        debug_assert!(before == NIL || self[before].order() < self[at].order());
        *self[at].link_mut(list) = ListLink {
            prev: before,
            next: NIL,
        };
        *self.next_of(ends, list, before) = at;
        ends.tail = at;
    }

    /// Removes the first entry of a list that is not empty.
    #[inline]
    pub(super) fn pop_first(&mut self, ends: &mut ListEnds, list: usize) -> u32 {
        let at = ends.head;
        let next = self[at].link(list).next;
        ends.head = next;
        *self.prev_of(ends, list, next) = NIL;
        at
    }

    /// Removes an entry from a list.
    pub(super) fn unlink(&mut self, ends: &mut ListEnds, list: usize, at: u32) {
        let ListLink { prev, next } = self[at].link(list);
        *self.next_of(ends, list, prev) = next;
        *self.prev_of(ends, list, next) = prev;
    }

    /// Returns the entry after this one.
    pub(super) fn next(&self, list: usize, at: u32) -> u32 {
        self[at].link(list).next
    }

    /// Returns the last entry with a lower number. Searches from the nearer end, assuming that the numbers are spread
    /// evenly.
    fn last_before(&self, ends: ListEnds, list: usize, order: u64) -> u32 {
        if ends.is_empty() || self[ends.tail].order() < order {
            return ends.tail;
        }
        let (first, last) = (self[ends.head].order(), self[ends.tail].order());
        if order.saturating_sub(first) < last - order {
            self.last_before_from_head(ends, list, order)
        } else {
            self.last_before_from_tail(ends, list, order)
        }
    }

    fn last_before_from_head(&self, ends: ListEnds, list: usize, order: u64) -> u32 {
        let (mut before, mut at) = (NIL, ends.head);
        while at != NIL && self[at].order() < order {
            (before, at) = (at, self.next(list, at));
        }
        before
    }

    fn last_before_from_tail(&self, ends: ListEnds, list: usize, order: u64) -> u32 {
        let mut at = ends.tail;
        while at != NIL && self[at].order() >= order {
            at = self[at].link(list).prev;
        }
        at
    }

    #[inline(always)]
    fn next_of<'a>(&'a mut self, ends: &'a mut ListEnds, list: usize, at: u32) -> &'a mut u32 {
        if at == NIL {
            &mut ends.head
        } else {
            &mut self[at].link_mut(list).next
        }
    }

    #[inline(always)]
    fn prev_of<'a>(&'a mut self, ends: &'a mut ListEnds, list: usize, at: u32) -> &'a mut u32 {
        if at == NIL {
            &mut ends.tail
        } else {
            &mut self[at].link_mut(list).prev
        }
    }
}

impl<T> Index<u32> for MatchingSlab<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, at: u32) -> &T {
        self.places[at as usize].entry.as_ref().expect(LIVE)
    }
}

impl<T> IndexMut<u32> for MatchingSlab<T> {
    #[inline(always)]
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.places[at as usize].entry.as_mut().expect(LIVE)
    }
}

const LIVE: &str = "lists name live entries only";

#[cfg(test)]
mod shrinking {
    use super::MatchingSlab;

    #[test]
    fn what_named_a_place_that_was_given_back_names_nothing_that_comes_after() {
        let mut slab = MatchingSlab::new();
        let mut stale = Vec::new();
        for round in 0..3 {
            let entries: Vec<u32> = (0..100).map(|entry| slab.insert(entry).at).collect();
            stale.extend(entries.iter().map(|&at| slab.handle(at)));
            for &at in entries.iter().filter(|&&at| at > 9) {
                slab.remove(at);
            }
            slab.shrink();
            assert_eq!(slab.room(), (10, 10), "round {round}");
            for at in 0..10 {
                assert_eq!(slab.find(slab.handle(at)), Some(at));
                slab.remove(at);
            }
            slab.shrink();
            assert_eq!(slab.room(), (0, 0), "round {round}");
        }
        for _ in 0..200 {
            slab.insert(0);
        }
        assert!(stale.iter().all(|&handle| slab.find(handle).is_none()));
    }

    #[test]
    fn free_places_between_entries_are_used_before_new_ones() {
        let mut slab = MatchingSlab::new();
        for entry in 0..10 {
            slab.insert(entry);
        }
        for at in [1, 5, 9] {
            slab.remove(at);
        }
        slab.shrink();
        assert_eq!(slab.room(), (9, 7));
        assert_eq!([(); 3].map(|()| slab.insert(0).at), [1, 5, 9]);
    }
}
