//! Counters that this rank's processor adds to. It uses a word of its own in each counter, because the device's atomics and the
//! processor's are not atomic with respect to each other.
//!
//! The processor adds this rank's own counts, and counts that peers ask for. Where tasks wait for a counter, a peer that is
//! connected by one lane does not add to the counter. Its put, or a put of no bytes, carries the number of the counter in the
//! completion (immediate data), so data and count are one request. The owner adds when it polls that completion. While the owner
//! watches such a counter, every count ends its sleep, so the peer need not look at the counter to see whether to wake the owner.
//!
//! The device's word of the same counter is used by peers with several lanes, and for counters that are read without a turn
//! (`LocalCounters::new`).

use std::{collections::BTreeMap, io};

use super::{
    core::VerbsCore,
    link::VerbsLink,
    named_regions::NamedRegions,
    rail::WakeFilter,
    regions::{SLOTS, check},
    wire::VerbsControlWord,
};
use crate::{
    connect::ConnectEvent,
    driver::{CommandToken, WorldRank},
    memory::{MemoryRegion, RemoteRegion, WeakRegion},
    offload::{COUNTER_LEN, LocalCounter, RemoteCounter, ThresholdWatches},
};

/// The regions of this rank by slot, each with its generation. A new region replaces a released one.
#[derive(Debug, Default)]
pub(super) struct CounterRegions {
    all: BTreeMap<u32, (u32, WeakRegion)>,
    /// Start addresses of the regions with counters that this rank adds to for peers.
    host_counted: BTreeMap<u32, usize>,
}

/// Number of a counter of the receiver: the slot of its region, the low bits of the region's generation, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CounterId(pub(super) u32);

impl CounterId {
    /// Returns `None` if a part does not fit, or if `offset` is not the start of a counter.
    pub(super) fn new(slot: u32, generation: u32, offset: u64) -> Option<Self> {
        let nth = offset / COUNTER_LEN as u64;
        let fits = slot < SLOTS && nth < CELLS && offset.is_multiple_of(COUNTER_LEN as u64);
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
        (self.0 & 0xffff) as usize * COUNTER_LEN
    }
}

impl CounterRegions {
    /// Adds a new region, of which `key` covers all. If `told` is true, this rank adds to the region's counters for peers.
    fn add(&mut self, key: RemoteRegion, region: &MemoryRegion, told: bool) {
        self.all
            .insert(key.id, (key.generation, region.downgrade()));
        self.host_counted.remove(&key.id);
        if told {
            self.host_counted
                .insert(key.id, region.start().addr().get());
        }
    }

    fn find(&self, key: RemoteRegion) -> Option<MemoryRegion> {
        let (generation, region) = self.all.get(&key.id)?;
        (*generation == key.generation).then(|| region.upgrade())?
    }

    /// Returns the counter that a peer names, if it still exists.
    fn find_told(&self, tally: CounterId) -> Option<LocalCounter> {
        self.host_counted.get(&tally.slot())?;
        let (generation, region) = self.all.get(&tally.slot())?;
        let region = region.upgrade().filter(|_| tally.is_of(*generation))?;
        counter_at(region, tally.offset())
    }

    fn is_told(&self, counter: &LocalCounter) -> bool {
        let (start, _) = counter.place();
        self.host_counted.values().any(|told| *told == start)
    }

    /// Returns which arrivals must wake this rank.
    pub(super) fn wakes(&self, watches: &ThresholdWatches) -> WakeFilter {
        if watches.watches_any(|counter| self.is_told(counter)) {
            WakeFilter::All
        } else {
            WakeFilter::Wanted
        }
    }

    /// Adds to a counter for a peer. Nothing happens if the counter no longer exists.
    pub(super) fn handle_count(&self, tally: CounterId, by: u64, watches: &ThresholdWatches) {
        if let Some(counter) = self.find_told(tally) {
            counter.add_own(by);
            watches.owner_counted(&counter);
        }
    }

    /// Returns a counter of this rank, if a key or a name leads to it.
    fn find_own(
        &self,
        counter: RemoteCounter,
        me: WorldRank,
        names: &NamedRegions,
    ) -> Option<LocalCounter> {
        let cell = counter.words_key()?;
        check(cell, me, COUNTER_LEN).ok()?;
        let region = match cell.name() {
            Some(name) => names.named(name),
            None => self.find(cell),
        };
        counter_at(region?, usize::try_from(cell.base).ok()?)
    }
}

impl VerbsCore {
    /// Allocates a region. If `told` is true, this rank adds to the region's counters on behalf of peers.
    pub(super) fn allocate(&mut self, len: usize, told: bool) -> io::Result<MemoryRegion> {
        let region = self.exports.allocate(len, told)?;
        if let Some(key) = self.exports.key_to(region.range()) {
            self.tasks.own.add(key, &region, told);
        }
        Ok(region)
    }

    /// Adds to a counter of this rank. Returns false if the key leads to none, as with a name that is not given yet.
    pub(super) fn count_by_key(&mut self, counter: RemoteCounter, by: u64) -> bool {
        let found = self.tasks.own.find_own(counter, self.me, &self.names);
        if let Some(counter) = &found {
            self.count_own(counter, by);
        }
        found.is_some()
    }

    /// Adds to a counter of this rank, and ends the sleep of a thread.
    pub(super) fn count_own(&mut self, counter: &LocalCounter, by: u64) {
        counter.add_own(by);
        self.watches.owner_counted(counter);
        if self.sleep.slept {
            // A thread sleeps, and no device has an event to wake it.
            self.sleep.wake();
        }
    }

    /// Watches a counter. A thread that already sleeps will be woken by counts from now on.
    pub(super) fn watch(&mut self, counter: &LocalCounter, threshold: u64, token: CommandToken) {
        self.watches.add(counter, threshold, token);
        self.arm_for_counts();
    }

    /// Arms the queues for counts, if a thread sleeps since before counts were watched.
    pub(super) fn arm_for_counts(&mut self) {
        if !self.sleep.slept || self.tasks.own.wakes(&self.watches) != WakeFilter::All {
            return;
        }
        let mut rails = self.rails.iter_mut();
        let failed = rails.any(|rail| rail.notify(WakeFilter::All, None).is_err());
        let counted = self.take_counts() > 0;
        if counted {
            self.begin_tasks();
        }
        if failed || self.watches.is_reached() || counted && self.has_pending_work() {
            self.sleep.wake();
        }
    }

    /// Takes the counts that have arrived. Returns how many.
    pub(super) fn take_counts(&mut self) -> u32 {
        let mut taken = 0;
        for lane in 0..self.rails.len() {
            while let Some(completion) = self.rails[lane].inbox.next_count() {
                taken += 1;
                self.counters.events.add(1);
                let peer = self.sender(lane, &completion);
                if let Some(peer) = peer {
                    let tally = CounterId(u32::from_be(completion.imm_data));
                    self.touch(peer);
                    self.note_peer_data(peer, ConnectEvent::Data);
                    self.tasks.own.handle_count(tally, 1, &self.watches);
                }
                self.give_back(lane, &completion, peer);
            }
        }
        taken
    }
}

impl VerbsLink {
    /// Queues a count, or adds it to a queued one of the same counter. Returns false if there is no room.
    pub(super) fn keep_count(&mut self, which: CounterId, more: u64) -> bool {
        let room = self.control_queue.len() < WORDS_MAX;
        let same = self.control_queue.iter_mut().find_map(|word| match word {
            VerbsControlWord::Count { tally, by } if *tally == which => Some(by),
            _ => None,
        });
        match same {
            Some(by) => *by = by.wrapping_add(more),
            None if room => self.control_queue.push_back(VerbsControlWord::Count {
                tally: which,
                by: more,
            }),
            None => return false,
        }
        true
    }
}

/// Returns the counter at an offset, if it lies inside the region.
fn counter_at(region: MemoryRegion, offset: usize) -> Option<LocalCounter> {
    let inside = offset
        .checked_add(COUNTER_LEN)
        .is_some_and(|end| end <= region.len());
    inside.then(|| LocalCounter::in_region(region, offset))
}

/// Counters of a region that a word can name, and generations of it that a word can tell apart.
const CELLS: u64 = 1 << 16;
const GENERATIONS: u32 = 1 << 5;
const _: () = assert!(
    SLOTS == 1 << 11,
    "a slot, a generation and a cell fill a word"
);

/// Length of the queue of control words from which on counts wait for room.
const WORDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::{CELLS, COUNTER_LEN, CounterId, CounterRegions, SLOTS};
    use crate::{
        memory::{MemoryRegion, RemoteRegion},
        random::SeededRandom,
    };

    fn key(id: u32, generation: u32, region: &MemoryRegion) -> RemoteRegion {
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
        let region = MemoryRegion::anonymous(4096).unwrap();
        let mut own = CounterRegions::default();
        own.add(key(7, 33, &region), &region, true);
        let tally = CounterId::new(7, 33, 3 * COUNTER_LEN as u64).unwrap();
        own.find_told(tally).unwrap().add_own(5);
        assert_eq!(own.find_told(tally).unwrap().value(), 5);
        let next = CounterId::new(7, 33, 4 * COUNTER_LEN as u64).unwrap();
        assert_eq!(own.find_told(next).unwrap().value(), 0);
        for (slot, generation) in [(6, 33), (7, 34)] {
            let other = CounterId::new(slot, generation, 0).unwrap();
            assert!(own.find_told(other).is_none(), "{slot}, {generation}");
        }
        drop(region);
        assert!(own.find_told(tally).is_none(), "it is gone");
    }

    #[test]
    fn what_does_not_fit_into_a_word_is_no_word() {
        let last = (CELLS - 1) * COUNTER_LEN as u64;
        assert!(CounterId::new(SLOTS - 1, u32::MAX, last).is_some());
        assert!(CounterId::new(SLOTS, 1, 0).is_none());
        assert!(CounterId::new(0, 1, last + COUNTER_LEN as u64).is_none());
        assert!(CounterId::new(0, 1, 8).is_none(), "inside of a counter");
    }

    #[test]
    fn noise_counts_only_where_peers_may_count() {
        let [told, other] = [4096, 4096].map(|len| MemoryRegion::anonymous(len).unwrap());
        let mut own = CounterRegions::default();
        own.add(key(3, 1, &told), &told, true);
        own.add(key(4, 1, &other), &other, false);
        let mut random = SeededRandom::new(5);
        let mut found = 0;
        for _ in 0..100_000 {
            let word = u32::try_from(random.within(0..1 << 32)).unwrap();
            // Slots 0 to 7, and offsets up to twice the length of the region.
            let tally = CounterId(word & 0x00ff_00ff);
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
