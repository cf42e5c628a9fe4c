//! Counters through which neighbors notify each other of posts and completions.
//!
//! A post or a completion is one addition to a word in the neighbor's memory, without a message and without work for its
//! processor. Messages (`WindowCount`) are used if the driver has no counters, and until the neighbor has said where its counters
//! are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ripstop_fabric::{
    driver::{CommandToken, Driver, DriverCommand, PostResult},
    offload::{LocalCounter, LocalCounters, RemoteCounter},
};

use super::{
    OneSidedCommand, WindowId, WindowPart, WindowProgress, WindowTable,
    epoch_counters::MappedCounterPair,
};
use crate::{
    group::WorldRank,
    proto::wire::{COUNT_COMPLETED, COUNT_POSTED, CounterKeysHeader, WireKind},
};

/// Counters of this rank to which one neighbor adds.
pub(super) struct LocalCounterPair {
    pub(super) posted: LocalCounter,
    pub(super) completed: LocalCounter,
}

/// Counters of a neighbor to which this rank adds.
pub(super) struct RemoteCounterPair {
    posted: RemoteCounter,
    completed: RemoteCounter,
}

/// Reason to wake a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    Posted,
    Completed,
}

/// A counter of a neighbor.
pub(super) struct PeerCounter {
    key: RemoteCounter,
    /// The counter in memory that this process has mapped, if the driver can map it.
    mapped: Option<LocalCounter>,
}

/// Counters not used yet. A used counter is never used again, because a peer may still have its key. The memory is freed with the
/// last window that has counters in it.
#[derive(Default)]
pub(super) struct WindowCounterPool {
    block: Option<LocalCounters>,
    used: usize,
    /// Distance from one used counter to the next.
    stride: usize,
}

/// Counters that the driver watches on behalf of waiting futures.
#[derive(Default)]
pub(super) struct CounterWatches {
    windows: BTreeMap<u64, CounterWatch>,
    /// The same watches, sorted by what is watched.
    known: BTreeSet<CounterWatch>,
    serial: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CounterWatch {
    id: WindowId,
    what: WatchedCounter,
    threshold: u64,
}

/// Name of a counter to watch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchedCounter {
    Posted(WorldRank),
    Completed(WorldRank),
    /// The fence counter of this round, for fences of even or of odd numbers.
    Gate(usize, usize),
}

impl LocalCounterPair {
    /// Takes two counters for a neighbor, and returns them with their keys.
    pub(super) fn new(
        pool: &mut WindowCounterPool,
        driver: &mut dyn Driver,
    ) -> Option<(Self, [RemoteCounter; 2])> {
        let (posted, first) = pool.take(driver)?;
        let (completed, second) = pool.take(driver)?;
        Some((Self { posted, completed }, [first, second]))
    }
}

impl WindowCounterPool {
    pub(super) const EMPTY: Self = Self {
        block: None,
        used: 0,
        stride: 1,
    };

    fn take(&mut self, driver: &mut dyn Driver) -> Option<(LocalCounter, RemoteCounter)> {
        if self
            .block
            .as_ref()
            .is_none_or(|block| block.len() <= self.used)
        {
            driver.event_counters()?;
            // Without memory for counters, windows use messages and have no fences.
            let block = LocalCounters::new(driver, BLOCK).ok()?;
            self.stride = if driver.mapped_memory().is_some() {
                APART
            } else {
                1
            };
            self.block = Some(block);
            self.used = 0;
        }
        let nth = self.used;
        self.used += self.stride;
        self.counter(nth)
    }

    /// Takes two counters to which the same neighbor adds. They share a cache line where neighbors map them.
    pub(super) fn take_pair(
        &mut self,
        driver: &mut dyn Driver,
    ) -> Option<([LocalCounter; 2], [RemoteCounter; 2])> {
        let (first, first_key) = self.take(driver)?;
        let (second, second_key) = if self.stride == APART {
            self.counter(self.used - 1)?
        } else {
            self.take(driver)?
        };
        Some(([first, second], [first_key, second_key]))
    }

    fn counter(&self, nth: usize) -> Option<(LocalCounter, RemoteCounter)> {
        let block = self.block.as_ref()?;
        Some((block.at(nth), block.remote().at(nth)?))
    }
}

impl PeerCounter {
    pub(super) fn new(key: RemoteCounter) -> Self {
        Self { key, mapped: None }
    }
}

impl CounterWatches {
    pub(super) const EMPTY: Self = Self {
        windows: BTreeMap::new(),
        known: BTreeSet::new(),
        serial: 0,
    };

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.known.is_empty()
    }

    /// Adds a watch and returns its token, or `None` if the counter is watched already. O(log watches).
    fn add(&mut self, watch: CounterWatch) -> Option<CommandToken> {
        if !self.known.insert(watch) {
            return None;
        }
        self.serial += 1;
        self.windows.insert(self.serial, watch);
        Some(CommandToken(self.serial))
    }
}

impl WindowProgress<'_> {
    /// Cancels all watches of this window, because no future waits at this end any more.
    pub(super) fn unwatch(&mut self, id: WindowId) {
        let watching = &mut self.part.windows.watching;
        watching.known.retain(|watch| watch.id != id);
        let watched = &mut watching.windows;
        for (serial, _) in watched.extract_if(.., |_, watch| watch.id == id) {
            let token = CommandToken(serial);
            let posted = self.driver.post(DriverCommand::Unwatch { token });
            debug_assert!(
                matches!(posted, PostResult::Posted),
                "taking a watch back needs no room"
            );
        }
    }

    /// Asks the driver to report when a counter reaches `threshold`.
    pub(super) fn watch(&mut self, id: WindowId, what: WatchedCounter, threshold: u64) {
        let WindowTable { ends, watching, .. } = &mut **self.part.windows;
        let Some(end) = ends.get(&id) else {
            return;
        };
        let counter = match what {
            WatchedCounter::Gate(round, parity) => {
                let fences = end.fences.as_ref();
                fences.and_then(|fences| fences.counter(round, parity))
            }
            WatchedCounter::Posted(rank) | WatchedCounter::Completed(rank) => {
                let ours = end
                    .peer_ends
                    .get(&rank)
                    .and_then(|peer_end| peer_end.counters.local_pair());
                ours.map(|ours| match what {
                    WatchedCounter::Posted(_) => &ours.posted,
                    _ => &ours.completed,
                })
            }
        };
        let (Some(counter), Some(token)) = (
            counter,
            watching.add(CounterWatch {
                id,
                what,
                threshold,
            }),
        ) else {
            return;
        };
        let command = DriverCommand::Watch {
            counter,
            threshold,
            token,
        };
        let posted = self.driver.post(command);
        debug_assert!(
            matches!(posted, PostResult::Posted),
            "a watch needs no room"
        );
    }

    /// Maps the counters of a neighbor into this process, if the driver can map them.
    pub(super) fn reach_counters(&mut self, id: WindowId, rank: WorldRank) {
        let Some(peer_end) = self.part.windows.peer_end(id, rank) else {
            return;
        };
        for counter in peer_end.fence_counters.iter_mut().flatten() {
            if counter.mapped.is_none() {
                let memory = self.driver.mapped_memory();
                counter.mapped = memory.and_then(|memory| memory.reach_counter(rank, counter.key));
            }
        }
        let Some(theirs) = &peer_end.remote_pair else {
            return;
        };
        let (posted, completed) = (theirs.posted, theirs.completed);
        let counters = Arc::clone(&peer_end.counters);
        if counters.mapped_pair().is_some() || self.part.has_to_count(rank) {
            return;
        }
        let Some(memory) = self.driver.mapped_memory() else {
            return;
        };
        let mut reach = |key| memory.reach_counter(rank, key);
        if let (Some(posted), Some(completed)) = (reach(posted), reach(completed)) {
            counters.map(MappedCounterPair { posted, completed });
        }
    }
}

impl WindowPart<'_> {
    /// Asks the driver to wake a neighbor that may be asleep, after this rank has added to the neighbor's counter.
    pub(in crate::engine) fn wake_neighbor(
        &mut self,
        id: WindowId,
        rank: WorldRank,
        heard: WakeReason,
    ) {
        let peer_end = self.windows.peer_end(id, rank);
        let Some(theirs) = peer_end.and_then(|peer_end| peer_end.remote_pair.as_ref()) else {
            return;
        };
        let counter = match heard {
            WakeReason::Posted => theirs.posted,
            WakeReason::Completed => theirs.completed,
        };
        self.common.commands.push(OneSidedCommand::Count {
            rank,
            counter,
            by: 0,
        });
    }

    /// Handles the driver's report that a watched counter has reached its threshold.
    pub(in crate::engine) fn window_reached(&mut self, token: CommandToken) {
        let watching = &mut self.windows.watching;
        if let Some(watch) = watching.windows.remove(&token.0) {
            watching.known.remove(&watch);
            self.wake_window(watch.id);
        }
    }

    /// Notifies the origin that this rank has opened its end to the origin once more.
    pub(super) fn notify_posted(&mut self, id: WindowId, origin: WorldRank) {
        let Some(peer_end) = self.windows.peer_end(id, origin) else {
            return;
        };
        let counter = peer_end.remote_pair.as_ref().map(|theirs| theirs.posted);
        let mapped = peer_end.counters.mapped_pair().map(|theirs| &theirs.posted);
        match counter {
            Some(counter) => add_one(counter, mapped, origin, &mut self.common.commands),
            None => {
                let note = id.count_header(
                    WireKind::WindowCount,
                    COUNT_POSTED,
                    peer_end.counters.posts(),
                );
                self.common.peers.control(origin, &note);
            }
        }
    }

    /// Notifies the target that this rank has completed its access.
    pub(super) fn notify_completed(&mut self, id: WindowId, target: WorldRank) {
        let Some(peer_end) = self.windows.peer_end(id, target) else {
            return;
        };
        let counter = peer_end.remote_pair.as_ref().map(|theirs| theirs.completed);
        let mapped = peer_end
            .counters
            .mapped_pair()
            .map(|theirs| &theirs.completed);
        match counter {
            Some(counter) => add_one(counter, mapped, target, &mut self.common.commands),
            None => {
                let note = id.count_header(
                    WireKind::WindowCount,
                    COUNT_COMPLETED,
                    peer_end.counters.accesses_begun(),
                );
                self.common.peers.control(target, &note);
            }
        }
    }

    pub(in crate::engine) fn handle_counter_keys(
        &mut self,
        rank: WorldRank,
        header: &CounterKeysHeader,
    ) {
        let id = WindowId::new(header.ctx, header.tag);
        if let Some(peer_end) = self.peer_end_of(id, rank) {
            peer_end.remote_pair.get_or_insert(RemoteCounterPair {
                posted: header.first,
                completed: header.second,
            });
        }
    }
}

/// Adds one to a neighbor's counter to which only this rank adds.
fn add_one(
    counter: RemoteCounter,
    mapped: Option<&LocalCounter>,
    rank: WorldRank,
    wanted: &mut Vec<OneSidedCommand>,
) {
    let by = match mapped.map(LocalCounter::add_one) {
        Some(false) => return,
        Some(true) => 0, // added already; a count of 0 only wakes the owner
        None => 1,
    };
    wanted.push(OneSidedCommand::Count { rank, counter, by });
}

impl WindowPart<'_> {
    /// Returns true if additions to the counters of peer `rank` still wait for the driver. The peer's counters are mapped only
    /// after these additions, because a thread and the driver that add to one counter at the same time could lose an addition.
    fn has_to_count(&self, rank: WorldRank) -> bool {
        self.common.commands.iter().any(|command| match command {
            OneSidedCommand::Count { rank: to, by, .. } => *to == rank && *by > 0,
            _ => false,
        })
    }
}

impl PeerCounter {
    /// Adds to the counter, directly if it is mapped and by a driver command otherwise.
    pub(super) fn add(&self, by: u64, rank: WorldRank, wanted: &mut Vec<OneSidedCommand>) {
        let by = match &self.mapped {
            Some(counter) if !counter.add(by) => return,
            Some(_) => 0, // added already; a count of 0 only wakes the owner
            None => by,
        };
        wanted.push(OneSidedCommand::Count {
            rank,
            counter: self.key,
            by,
        });
    }
}

/// Counters allocated at a time: one page.
const BLOCK: usize = 128;

/// Distance in counters between two used ones where neighbors map them, so that each has a cache line for itself.
///
/// Otherwise a rank that prefetches the line of its counter would take away the line of another rank's counter. Adapters
/// prefetch nothing, so their counters are dense.
const APART: usize = LINE_LEN / CELL_LEN;
/// Length of a cache line in bytes.
const LINE_LEN: usize = 64;
/// Length of a counter in bytes.
const CELL_LEN: usize = 32;
