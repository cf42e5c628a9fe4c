//! An entry of the table of regions: where memory is, and its keys. A reader can tell that it read an entry while it was written.

use std::sync::atomic::Ordering;

use crate::{
    lanes::{LANES_MAX, LaneSet, RAILS_MAX},
    memory::MemoryRegion,
    verbs::{
        lane::FIRST,
        objects::{RemoteAddress, VerbsMr},
        onesided::RailSges,
    },
};

/// A region, as its owner shows it to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RegionEntry {
    /// Generation of the region; 0 while the slot is free.
    pub(in super::super) generation: u32,
    pub(in super::super) place: MemoryTarget,
    pub(in super::super) len: u64,
    /// True if the owner's processor adds to its counters for peers.
    pub(in super::super) host_counts: bool,
}

/// Address of memory, and its key for each device; 0 if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct MemoryTarget {
    pub(in super::super) address: u64,
    pub(in super::super) keys: [u32; RAILS_MAX],
}

impl MemoryTarget {
    pub(super) fn of(mrs: &[VerbsMr]) -> Self {
        let key = |lane: usize| mrs.get(lane).map_or(0, |mr| mr.remote().key);
        Self {
            address: mrs[FIRST].remote().address,
            keys: std::array::from_fn(key),
        }
    }

    /// Makes a place that only the first device reaches.
    pub(in super::super) const fn by_first(place: RemoteAddress) -> Self {
        let mut keys = [0; RAILS_MAX];
        keys[FIRST] = place.key;
        Self {
            address: place.address,
            keys,
        }
    }

    /// Returns the place for one lane.
    pub(in super::super) const fn on(self, lane: usize) -> RemoteAddress {
        RemoteAddress {
            address: self.address,
            key: self.keys[lane],
        }
    }

    /// Returns the lanes that reach it.
    pub(in super::super) fn lanes(self) -> LaneSet {
        let has = |lane: &u32| self.keys.get(*lane as usize).is_some_and(|key| *key != 0);
        let all = (0..LANES_MAX).filter(has);
        all.fold(LaneSet::EMPTY, LaneSet::with)
    }

    /// Returns the place `offset` bytes further on.
    pub(super) const fn at(self, offset: u64) -> Self {
        let address = self.address.wrapping_add(offset);
        Self { address, ..self }
    }
}

/// Returns a piece of memory as each device knows it.
pub(in super::super) fn here(mrs: &[VerbsMr], offset: usize, len: usize) -> RailSges {
    std::array::from_fn(|lane| mrs[lane.min(mrs.len() - 1)].piece(offset, len))
}

impl RegionEntry {
    pub(super) fn encode(self) -> [u64; ENTRY_LEN / 8] {
        let two = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let [first, second, third, fourth] = self.place.keys;
        let head = two(self.generation, first);
        let (more, last) = (two(second, third), two(u32::from(self.host_counts), fourth));
        let words = [head, self.place.address, self.len, more, last];
        [head, self.place.address, self.len, more, last, sum(words)]
    }

    /// Returns the entry, or `None` if it was read while it was written.
    pub(in super::super) fn parse(words: [u64; ENTRY_LEN / 8]) -> Option<Self> {
        let [head, address, len, more, last, check] = words;
        if words != [0; ENTRY_LEN / 8] && check != sum([head, address, len, more, last]) {
            return None;
        }
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        let keys = [low(head), low(more >> 32), low(more), low(last)];
        Some(Self {
            generation: low(head >> 32),
            place: MemoryTarget { address, keys },
            len,
            host_counts: last >> 32 != 0,
        })
    }
}

/// Writes an entry. A peer that reads it meanwhile sees a wrong checksum.
pub(super) fn write_entry(table: &MemoryRegion, slot: u32, entry: [u64; ENTRY_LEN / 8]) {
    for (nth, word) in entry.into_iter().enumerate() {
        let at = slot as usize * ENTRY_LEN + 8 * nth;
        table.atomic_u64(at).store(word, Ordering::SeqCst);
    }
}

/// Returns a checksum that differs when any word does, and is not 0 for zeroes.
fn sum(words: [u64; ENTRY_LEN / 8 - 1]) -> u64 {
    words.into_iter().fold(!0, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

/// Returns where the entry of a slot is in a peer's table.
pub(in super::super) fn entry_of(table: RemoteAddress, slot: u32) -> RemoteAddress {
    table.at(u64::from(slot) * ENTRY_LEN as u64)
}

/// Bytes of an entry of the table.
pub(in super::super) const ENTRY_LEN: usize = 48;

#[cfg(test)]
mod tests {
    use super::{MemoryTarget, RegionEntry};

    const ENTRY: RegionEntry = RegionEntry {
        generation: 2,
        place: MemoryTarget {
            address: 0x1_0000,
            keys: [0xffff_fff9, 2, 3, 4],
        },
        len: 4096,
        host_counts: true,
    };

    #[test]
    fn an_entry_that_is_being_written_is_seen_to_be_so() {
        let good = ENTRY.encode();
        assert_eq!(RegionEntry::parse(good), Some(ENTRY));
        assert_eq!(
            RegionEntry::parse([0; 6]).map(|entry| entry.generation),
            Some(0)
        );
        for written in 1..6 {
            let mut words = [0; 6];
            words[..written].copy_from_slice(&good[..written]);
            assert_eq!(
                RegionEntry::parse(words),
                None,
                "{written} words over zeroes"
            );
            let mut words = good;
            words[..written].fill(0);
            assert_eq!(
                RegionEntry::parse(words),
                None,
                "{written} zeroes over words"
            );
        }
    }
}
