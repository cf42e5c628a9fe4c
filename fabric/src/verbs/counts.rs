//! What a rank counts on its own counters: its processor adds, in a word of its own, because the device's atomics and the
//! processor's know nothing of each other.
//!
//! Such counts are its own, and those that peers tell it of: where tasks wait for a counter, a peer with one lane to here adds
//! nothing itself, but says which counter it is in the word that comes with the completion of a put, or of one of no bytes. So
//! data and count are one request, and no look at the counter is needed to know whether its owner is to be woken: that counts
//! when it has the completion, and while it watches such a counter every count ends its sleep. The device's word of the same
//! counter stays for peers with several lanes, and for the counters that are read without a turn (`Counters::new`).

use std::{collections::BTreeMap, io};

use super::{
    core::Core,
    link::Link,
    posting::Stall,
    rail::Wakes,
    regions::{SLOTS, check},
    wire::Word,
};
use crate::{
    connect::Event,
    driver::Token,
    memory::{Region, RemoteRegion, WeakRegion},
    offload::{CELL_LEN, Counter, RemoteCounter},
};

/// The own regions by slot, each with its generation: those of later ones take the places of those that are gone.
#[derive(Debug, Default)]
pub(super) struct Own {
    all: BTreeMap<u32, (u32, WeakRegion)>,
    /// Where those begin with whose counters peers have this rank count.
    told: BTreeMap<u32, usize>,
}

/// A counter of the receiver of a word: the slot of its region, the last bits of the region's generation, and which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally(pub(super) u32);

impl Tally {
    /// `None` where its numbers are too large for it, or it does not begin where counters do.
    pub(super) fn new(slot: u32, generation: u32, offset: u64) -> Option<Self> {
        let nth = offset / CELL_LEN as u64;
        let fits = slot < SLOTS && nth < CELLS && offset.is_multiple_of(CELL_LEN as u64);
        let nth = u32::try_from(nth).ok().filter(|_| fits)?;
        let slot = slot << 21;
        Some(Self(slot | (generation % GENERATIONS) << 16 | nth))
    }

    const fn slot(self) -> u32 {
        self.0 >> 21
    }

    const fn is_of(self, generation: u32) -> bool {
        self.0 >> 16 & (GENERATIONS - 1) == generation % GENERATIONS
    }

    const fn offset(self) -> usize {
        (self.0 & 0xffff) as usize * CELL_LEN
    }
}

impl Own {
    /// A region was made, and this is the key to all of it.
    fn add(&mut self, key: RemoteRegion, region: &Region, told: bool) {
        self.all
            .insert(key.id, (key.generation, region.downgrade()));
        self.told.remove(&key.id);
        if told {
            self.told.insert(key.id, region.start().addr().get());
        }
    }

    fn find(&self, key: RemoteRegion) -> Option<Region> {
        let (generation, region) = self.all.get(&key.id)?;
        (*generation == key.generation).then(|| region.upgrade())?
    }

    /// The counter that a peer means, if there still is one.
    fn find_told(&self, tally: Tally) -> Option<Counter> {
        self.told.get(&tally.slot())?;
        let (generation, region) = self.all.get(&tally.slot())?;
        let region = region.upgrade().filter(|_| tally.is_of(*generation))?;
        counter_at(region, tally.offset())
    }

    fn is_told(&self, counter: &Counter) -> bool {
        let (start, _) = counter.place();
        self.told.values().any(|told| *told == start)
    }
}

impl Core {
    /// `told`: peers have this rank count with the counters in it.
    pub(super) fn allocate(&mut self, len: usize, told: bool) -> io::Result<Region> {
        let region = self.exports.allocate(len, told)?;
        if let Some(key) = self.exports.key_to(region.range()) {
            self.tasks.own.add(key, &region, told);
        }
        Ok(region)
    }

    /// Adds to a counter of this rank. Whether its key leads to one; by a name that is not given yet it does not.
    pub(super) fn count_by_key(&mut self, counter: RemoteCounter, by: u64) -> bool {
        let found = self.own_counter(counter);
        if let Some(counter) = &found {
            self.count_own(counter, by);
        }
        found.is_some()
    }

    /// A peer has this rank count. It may mean a counter that is gone, which counts nothing.
    pub(super) fn handle_count(&self, tally: Tally, by: u64) {
        if let Some(counter) = self.tasks.own.find_told(tally) {
            counter.add_own(by);
            self.watches.counted(&counter);
        }
    }

    /// Adds to a counter of this rank.
    pub(super) fn count_own(&mut self, counter: &Counter, by: u64) {
        counter.add_own(by);
        self.watches.counted(counter);
        if self.sleep.slept {
            // Somebody sleeps, and no device has anything to wake it with.
            self.ring();
        }
    }

    /// Watches a counter, also while somebody sleeps who did not have to be woken by counts.
    pub(super) fn watch(&mut self, counter: &Counter, threshold: u64, token: Token) {
        self.watches.add(counter, threshold, token);
        self.listen();
    }

    /// Has counts end the sleep of who sleeps since before they were waited for.
    pub(super) fn listen(&mut self) {
        if !self.sleep.slept || self.wakes() != Wakes::All {
            return;
        }
        let mut rails = self.rails.iter_mut();
        let deaf = rails.any(|rail| rail.notify(Wakes::All, None).is_err());
        let counted = self.take_counts() > 0;
        if counted {
            self.begin_tasks();
        }
        if deaf || self.watches.is_reached() || counted && self.has_news() {
            self.ring();
        }
    }

    /// Takes the counts that have come. How many.
    pub(super) fn take_counts(&mut self) -> u32 {
        let mut taken = 0;
        for lane in 0..self.rails.len() {
            while let Some(came) = self.rails[lane].inbox.next_told() {
                taken += 1;
                self.counters.events.add(1);
                let peer = self.sender(lane, &came);
                if let Some(peer) = peer {
                    self.touch(peer);
                    self.hear_data(peer, Event::Data);
                    self.handle_count(Tally(u32::from_be(came.imm_data)), 1);
                }
                self.give_back(lane, &came, peer);
            }
        }
        taken
    }

    /// Which arrivals have to wake this rank.
    pub(super) fn wakes(&self) -> Wakes {
        let counts = self.watches.any(|counter| self.tasks.own.is_told(counter));
        if counts { Wakes::All } else { Wakes::Wanted }
    }

    /// Has a peer add to a counter of its own, by more than a put can say.
    pub(super) fn say_count(&mut self, peer: u32, tally: Tally, by: u64) -> Result<(), Stall> {
        if !self.link_or_new(peer).keep_count(tally, by) {
            return Err(Stall::Room);
        }
        self.stir(peer);
        Ok(())
    }

    /// Ends the sleep.
    pub(super) fn ring(&mut self) {
        let now = self.sleep.timer.now();
        let set = self.sleep.timer.set(Some(now));
        debug_assert!(set.is_ok(), "an alarm that exists can be set");
    }

    fn own_counter(&self, counter: RemoteCounter) -> Option<Counter> {
        let cell = counter.cell()?;
        check(cell, self.me, CELL_LEN).ok()?;
        let region = match cell.name() {
            Some(name) => self.named(name),
            None => self.tasks.own.find(cell),
        };
        counter_at(region?, usize::try_from(cell.base).ok()?)
    }
}

impl Link {
    /// Keeps a count to be said, with another one for the same counter if there is one. Whether there was room.
    fn keep_count(&mut self, which: Tally, more: u64) -> bool {
        let room = self.words.len() < WORDS_MAX;
        let same = self.words.iter_mut().find_map(|word| match word {
            Word::Count { tally, by } if *tally == which => Some(by),
            _ => None,
        });
        match same {
            Some(by) => *by = by.wrapping_add(more),
            None if room => self.words.push_back(Word::Count {
                tally: which,
                by: more,
            }),
            None => return false,
        }
        true
    }
}

/// The counter at an offset, if it is inside of the region.
fn counter_at(region: Region, offset: usize) -> Option<Counter> {
    let inside = offset
        .checked_add(CELL_LEN)
        .is_some_and(|end| end <= region.len());
    inside.then(|| Counter::in_region(region, offset))
}

/// Counters of a region that a word can name, and generations of it that can be told apart.
const CELLS: u64 = 1 << 16;
const GENERATIONS: u32 = 1 << 5;
const _: () = assert!(
    SLOTS == 1 << 11,
    "a slot, a generation and a cell fill a word"
);

/// Words that wait for credits before counts wait for them.
const WORDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::{CELL_LEN, CELLS, Own, SLOTS, Tally};
    use crate::{
        memory::{Region, RemoteRegion},
        random::Random,
    };

    fn key(id: u32, generation: u32, region: &Region) -> RemoteRegion {
        RemoteRegion {
            kind: 0,
            owner: 0,
            id,
            generation,
            whole: region.len() as u64,
            base: 0,
            len: region.len() as u64,
        }
    }

    #[test]
    fn a_word_leads_to_the_counter_that_was_meant() {
        let region = Region::anonymous(4096).unwrap();
        let mut own = Own::default();
        own.add(key(7, 33, &region), &region, true);
        let tally = Tally::new(7, 33, 3 * CELL_LEN as u64).unwrap();
        own.find_told(tally).unwrap().add_own(5);
        assert_eq!(own.find_told(tally).unwrap().value(), 5);
        let next = Tally::new(7, 33, 4 * CELL_LEN as u64).unwrap();
        assert_eq!(own.find_told(next).unwrap().value(), 0);
        for (slot, generation) in [(6, 33), (7, 34)] {
            let other = Tally::new(slot, generation, 0).unwrap();
            assert!(own.find_told(other).is_none(), "{slot}, {generation}");
        }
        drop(region);
        assert!(own.find_told(tally).is_none(), "it is gone");
    }

    #[test]
    fn what_does_not_fit_into_a_word_is_no_word() {
        let last = (CELLS - 1) * CELL_LEN as u64;
        assert!(Tally::new(SLOTS - 1, u32::MAX, last).is_some());
        assert!(Tally::new(SLOTS, 1, 0).is_none());
        assert!(Tally::new(0, 1, last + CELL_LEN as u64).is_none());
        assert!(Tally::new(0, 1, 8).is_none(), "inside of a counter");
    }

    #[test]
    fn noise_counts_only_where_peers_may_count() {
        let [told, other] = [4096, 4096].map(|len| Region::anonymous(len).unwrap());
        let mut own = Own::default();
        own.add(key(3, 1, &told), &told, true);
        own.add(key(4, 1, &other), &other, false);
        let mut random = Random::new(5);
        let mut found = 0;
        for _ in 0..100_000 {
            let word = u32::try_from(random.within(0..1 << 32)).unwrap();
            // Slots 0 to 7, and offsets to the double of what there is.
            let tally = Tally(word & 0x00ff_00ff);
            if let Some(counter) = own.find_told(tally) {
                assert_eq!(tally.slot(), 3);
                counter.add_own(1);
                found += 1;
            }
        }
        assert!(found > 0);
        let mut bytes = [0; 4096];
        other.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
