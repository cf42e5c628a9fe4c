//! Where neighbours count for each other: a post or a completion is one addition to a word of the other's, with no message and
//! nothing for its processor to do. Where a driver has no counters, and until a neighbour has said where its are, notes say it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ripstop_fabric::{
    driver::{Command, Driver, Peer as Rank, Post, Token},
    offload::{Counter, Counters, RemoteCounter},
};

use super::{All, Core, Engine, Wanted, WindowId, ledger::Mapped};
use crate::proto::wire::{COUNT_COMPLETED, COUNT_POSTED, Kind, Tally};

/// What a neighbour counts at our end.
pub(super) struct Ours {
    pub(super) posted: Counter,
    pub(super) completed: Counter,
}

/// What we count at a neighbour's end.
pub(super) struct Theirs {
    posted: RemoteCounter,
    completed: RemoteCounter,
}

/// What a neighbour is to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Posted,
    Completed,
}

/// A counter of a neighbour.
pub(super) struct Remote {
    key: RemoteCounter,
    /// Where this process can add to it.
    mapped: Option<Counter>,
}

/// Counters that nobody has used yet; a used one is never used again, because somebody may still have its key. The memory goes
/// with the last window that has counters in it.
#[derive(Default)]
pub(super) struct Pool {
    block: Option<Counters>,
    used: usize,
    /// Of which one is used.
    stride: usize,
}

/// The counters that the driver watches for futures which wait.
#[derive(Default)]
pub(super) struct Watching {
    windows: BTreeMap<u64, Watch>,
    /// The same, to be found by what is watched.
    known: BTreeSet<Watch>,
    serial: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Watch {
    id: WindowId,
    what: What,
    threshold: u64,
}

/// Which counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Posted(u32),
    Completed(u32),
    /// By round.
    Gate(usize),
}

impl Ours {
    /// Two counters for a neighbour, and the keys for it.
    pub(super) fn new(
        pool: &mut Pool,
        driver: &mut dyn Driver,
    ) -> Option<(Self, [RemoteCounter; 2])> {
        let (posted, first) = pool.take(driver)?;
        let (completed, second) = pool.take(driver)?;
        Some((Self { posted, completed }, [first, second]))
    }
}

impl Pool {
    pub(super) const EMPTY: Self = Self {
        block: None,
        used: 0,
        stride: 1,
    };

    pub(super) fn take(&mut self, driver: &mut dyn Driver) -> Option<(Counter, RemoteCounter)> {
        if self
            .block
            .as_ref()
            .is_none_or(|block| block.len() <= self.used)
        {
            if !driver.caps().counters {
                return None;
            }
            // Without memory for counters there are notes, and no fences.
            let block = Counters::new(driver, BLOCK).ok()?;
            self.stride = if driver.maps() { APART } else { 1 };
            self.block = Some(block);
            self.used = 0;
        }
        let block = self.block.as_ref()?;
        let nth = self.used;
        self.used += self.stride;
        Some((block.at(nth), block.remote().at(nth)?))
    }
}

impl Remote {
    pub(super) fn new(key: RemoteCounter) -> Self {
        Self { key, mapped: None }
    }
}

impl Engine {
    /// Maps the counters of a neighbour where that can be.
    pub(crate) fn reach_counters(&mut self, id: WindowId, rank: u32) {
        let Some(near) = self.core.windows.near(id, rank) else {
            return;
        };
        if let Some(gate) = near.gate.as_mut().filter(|gate| gate.mapped.is_none()) {
            gate.mapped = self.driver.reach_counter(Rank(rank), gate.key);
        }
        let Some(theirs) = &near.theirs else { return };
        let (posted, completed) = (theirs.posted, theirs.completed);
        let ledger = Arc::clone(&near.ledger);
        if ledger.theirs().is_some() || self.core.has_to_count(rank) {
            return;
        }
        let mut reach = |key| self.driver.reach_counter(Rank(rank), key);
        if let (Some(posted), Some(completed)) = (reach(posted), reach(completed)) {
            ledger.map(Mapped { posted, completed });
        }
    }

    /// Wakes a neighbour that may sleep: it was counted there.
    pub(crate) fn wake_neighbour(&mut self, id: WindowId, rank: u32, heard: Heard) {
        let near = self.core.windows.near(id, rank);
        let Some(theirs) = near.and_then(|near| near.theirs.as_ref()) else {
            return;
        };
        let counter = match heard {
            Heard::Posted => theirs.posted,
            Heard::Completed => theirs.completed,
        };
        self.core.wanted.push(Wanted::Count {
            rank,
            counter,
            by: 0,
        });
        self.flush();
        self.let_kept_go();
    }

    /// Whether it is posted.
    pub(in crate::engine) fn count(&mut self, rank: u32, counter: RemoteCounter, by: u64) -> bool {
        let command = Command::Count {
            to: Rank(rank),
            counter,
            by,
        };
        matches!(self.driver.post(command), Post::Posted)
    }

    /// Has the driver say when a counter has come that far.
    pub(super) fn watch(&mut self, id: WindowId, what: What, threshold: u64) {
        let All { ends, watching, .. } = &mut *self.core.windows;
        let Some(end) = ends.get(&id) else {
            return;
        };
        let counter = match what {
            What::Gate(round) => end.fences.as_ref().and_then(|fences| fences.counter(round)),
            What::Posted(rank) | What::Completed(rank) => {
                let ours = end.near.get(&rank).and_then(|near| near.ledger.ours());
                ours.map(|ours| match what {
                    What::Posted(_) => &ours.posted,
                    _ => &ours.completed,
                })
            }
        };
        let (Some(counter), Some(token)) = (
            counter,
            watching.add(Watch {
                id,
                what,
                threshold,
            }),
        ) else {
            return;
        };
        let command = Command::Watch {
            counter,
            threshold,
            token,
        };
        let posted = self.driver.post(command);
        debug_assert!(matches!(posted, Post::Posted), "a watch needs no room");
    }
}

impl Engine {
    /// Nobody waits at this end any more.
    pub(super) fn unwatch(&mut self, id: WindowId) {
        let watching = &mut self.core.windows.watching;
        watching.known.retain(|watch| watch.id != id);
        let watched = &mut watching.windows;
        for (serial, _) in watched.extract_if(.., |_, watch| watch.id == id) {
            let token = Token(serial);
            let posted = self.driver.post(Command::Unwatch { token });
            debug_assert!(
                matches!(posted, Post::Posted),
                "taking a watch back needs no room"
            );
        }
    }
}

impl Watching {
    pub(super) const EMPTY: Self = Self {
        windows: BTreeMap::new(),
        known: BTreeSet::new(),
        serial: 0,
    };

    /// A token, unless it is watched already. O(log watches).
    fn add(&mut self, watch: Watch) -> Option<Token> {
        if !self.known.insert(watch) {
            return None;
        }
        self.serial += 1;
        self.windows.insert(self.serial, watch);
        Some(Token(self.serial))
    }
}

impl Core {
    /// A counter that some window watches has come far enough.
    pub(in crate::engine) fn window_reached(&mut self, token: Token) {
        let watching = &mut self.windows.watching;
        if let Some(watch) = watching.windows.remove(&token.0) {
            watching.known.remove(&watch);
            self.stir_window(watch.id);
        }
    }

    /// We have opened our end to this origin once more.
    pub(super) fn tell_posted(&mut self, id: WindowId, origin: u32) {
        let Some(near) = self.windows.near(id, origin) else {
            return;
        };
        let counter = near.theirs.as_ref().map(|theirs| theirs.posted);
        let mapped = near.ledger.theirs().map(|theirs| &theirs.posted);
        match counter {
            Some(counter) => add_one(counter, mapped, origin, &mut self.wanted),
            None => {
                let note = id.note(Kind::Note, COUNT_POSTED, near.ledger.posts());
                self.peers.control(origin, &note);
            }
        }
    }

    /// We have completed our access to this target.
    pub(super) fn tell_completed(&mut self, id: WindowId, target: u32) {
        let Some(near) = self.windows.near(id, target) else {
            return;
        };
        let counter = near.theirs.as_ref().map(|theirs| theirs.completed);
        let mapped = near.ledger.theirs().map(|theirs| &theirs.completed);
        match counter {
            Some(counter) => add_one(counter, mapped, target, &mut self.wanted),
            None => {
                let note = id.note(Kind::Note, COUNT_COMPLETED, near.ledger.starts());
                self.peers.control(target, &note);
            }
        }
    }

    pub(in crate::engine) fn handle_tally(&mut self, rank: u32, header: &Tally) {
        let id = WindowId {
            ctx: header.ctx,
            tag: header.tag,
        };
        if let Some(near) = self.near_of(id, rank) {
            near.theirs.get_or_insert(Theirs {
                posted: header.first,
                completed: header.second,
            });
        }
    }
}

/// One more at a neighbour's counter that only this rank adds to.
fn add_one(counter: RemoteCounter, mapped: Option<&Counter>, rank: u32, wanted: &mut Vec<Wanted>) {
    let by = match mapped.map(Counter::step) {
        Some(false) => return,
        Some(true) => 0, // it is added; the owner is to be woken
        None => 1,
    };
    wanted.push(Wanted::Count { rank, counter, by });
}

impl Core {
    /// Whether additions to counters of this rank wait for the driver: they must not meet those of another thread.
    fn has_to_count(&self, rank: u32) -> bool {
        let counts = |wanted: &Wanted| matches!(wanted, Wanted::Count { rank: to, by, .. } if *to == rank && *by > 0);
        self.wanted.iter().any(counts)
    }
}

impl Remote {
    /// Adds.
    pub(super) fn add(&self, by: u64, rank: u32, wanted: &mut Vec<Wanted>) {
        let by = match &self.mapped {
            Some(counter) if !counter.add(by) => return,
            Some(_) => 0, // it is added; the owner is to be woken
            None => by,
        };
        wanted.push(Wanted::Count {
            rank,
            counter: self.key,
            by,
        });
    }
}

/// Counters that are made at a time: a page of them.
const BLOCK: usize = 128;

/// Where neighbours map them, each has a cache line for itself: who asks for one ahead of its addition would take the next, which
/// somebody else is about to add to. Adapters ask for nothing ahead, and what they add to lies side by side.
const APART: usize = LINE_LEN / CELL_LEN;
/// Bytes of a cache line.
const LINE_LEN: usize = 64;
/// Bytes of a counter.
const CELL_LEN: usize = 32;
