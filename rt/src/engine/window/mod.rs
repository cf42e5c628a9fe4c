//! This rank's ends of windows: its memory, and the neighbours that it has met there.
//!
//! Two ranks that use a window together count, each for itself, how often the one has opened its memory to the other
//! (*posted*) and how often the other has completed an access (*completed*). The counts only grow and are never reset, so
//! telling one twice or late does no harm, and who comes first does not matter:
//!
//! | | goes on when | then tells |
//! |---|---|---|
//! | T.post(O) | at once | O: `posts` |
//! | O.start(T) | T's `posts` > own `starts` | nobody |
//! | O.complete(T) | no operation of O on T is under way | T: `starts` |
//! | T.wait(O) | O's `starts` ≥ own `posts` | nobody |
//!
//! Before its first word to a neighbour an end says [`Hello`]: how long its memory is, and the key to it. Whoever is greeted
//! greets back, without help from its application, so one message each way is all that a pair of neighbours ever needs.
//! Nothing is kept for ranks that are no neighbours.

mod entrance;
mod fence;
mod ledger;
mod lines;
mod locks;
mod look;
mod news;
mod number;
mod ops;
mod pieces;
mod tally;
mod word;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::Arc,
    task::Waker,
};

use bytemuck::Zeroable;
use ripstop_fabric::{
    driver::Peer as Rank,
    memory::{Region, RemoteRegion},
    offload::RemoteCounter,
};

pub use self::number::Combine;
use self::{
    entrance::Entrance,
    fence::Fences,
    lines::Line,
    locks::Standing,
    ops::Stashed,
    pieces::Pieces,
    tally::{Ours, Pool, Remote, Theirs, Watching},
};
pub(crate) use self::{
    fence::{Gates, Looked, Passed},
    ledger::{Ledger, Said},
    locks::Want,
    number::Number,
    ops::{Deed, Ranges},
    pieces::{Extent, Memory},
    tally::Heard,
};
use super::{Core, Engine, Wanted};
use crate::{
    buffer::TypeSig,
    error::ErrorKind,
    group::Group,
    proto::wire::{Base, Hello, Kind, Note, Tally},
};

/// A window of a job: its communicator, and the number of the collective that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WindowId {
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
}

/// All windows of a runtime. Nothing until the first one: most simulated ranks have none.
pub(super) struct Windows {
    /// This rank of the world.
    me: u32,
    all: Option<Box<All>>,
}

/// What there is from the first window on.
#[derive(Default)]
pub(super) struct All {
    ends: BTreeMap<WindowId, End>,
    pool: Pool,
    watching: Watching,
    /// By world rank: what waits for room, or for an answer.
    lines: BTreeMap<u32, Line>,
    /// Places of futures that there ever were.
    listened: u64,
}

/// A future's place among those that wait for news of a window, from when it waits first.
#[derive(Debug, Default)]
pub(crate) struct Listening(Option<u64>);

struct End {
    /// Those that may use it: the window may outlive what else there is of its communicator.
    group: Group,
    sig: TypeSig,
    pieces: Pieces,
    /// To the only piece, unless others come and go.
    key: RemoteRegion,
    /// By world rank.
    near: BTreeMap<u32, Near>,
    /// Futures that wait for any news.
    listeners: BTreeMap<u64, Waker>,
    fences: Option<Fences>,
    /// An epoch of fences may be open, in which this rank may store to all others' memory.
    gathered: bool,
    entrance: Entrance,
    /// Nobody holds it any more.
    closed: bool,
}

impl Listening {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) const fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}

/// What is known of one neighbour.
#[derive(Default)]
struct Near {
    greeted: bool,
    far: Option<Far>,
    /// It has freed its end.
    gone: bool,
    /// What it had counted by then: counts and messages are in no order.
    last_posted: u64,
    last_completed: u64,
    /// What was counted, also by threads that do not ask the engine.
    ledger: Arc<Ledger>,
    /// Where we count.
    theirs: Option<Theirs>,
    /// Where we count the fences that we have come to.
    gate: Option<Remote>,
    /// It waits for us in fences, and is to hear of the end of ours.
    fenced: bool,
    /// It heard that we wait for it in one.
    asked_to_fence: bool,
    /// It has freed its end after so many fences.
    last_fence: Option<u64>,
    /// Our last access ends when nothing is under way.
    ending: bool,
    /// It ended when the neighbour was gone, which has not heard of it.
    untold: bool,
    /// Somebody waits to access it.
    wanted: u32,
    /// Operations that wait for its greeting, or for the lock.
    stash: Vec<Stashed>,
    /// Our lock of its memory.
    lock: Standing,
    /// Locks that we have asked it for. An answer to an earlier one, which was taken back, is none to the last.
    asked: u64,
    /// The number of the lock that it has asked us for last.
    knocked: u64,
}

/// A neighbour's memory.
#[derive(Clone, Debug)]
pub(crate) struct Far {
    pub(crate) sig: u64,
    /// Bytes.
    pub(crate) len: u64,
    key: RemoteRegion,
    /// Where this process can load and store it.
    pub(crate) mapped: Option<(Region, usize)>,
}

impl Windows {
    pub(super) fn new(me: u32) -> Self {
        Self { me, all: None }
    }

    /// Returns true if futures wait for news of a window.
    pub(super) fn are_listened_to(&self) -> bool {
        let ends = self.all.iter().flat_map(|all| all.ends.values());
        ends.into_iter().any(|end| !end.listeners.is_empty())
    }

    /// Whether there was never a window.
    #[inline]
    fn is_unused(&self) -> bool {
        self.all.is_none()
    }

    /// Whether a future waits for news of any.
    pub(super) fn are_waited_for(&self) -> bool {
        let mut all = self.all.iter().flat_map(|all| all.ends.values());
        all.any(|end| !end.listeners.is_empty())
    }

    /// Whether somebody holds an epoch or a lock under which memory of a rank that is there can be stored to.
    pub(super) fn may_store(&self, is_up: impl Fn(u32) -> bool) -> bool {
        let mut held = self.ends.values().filter(|end| !end.closed);
        held.any(|end| {
            end.near.iter().any(|(rank, near)| {
                let is_mapped = near.far.as_ref().is_some_and(|far| far.mapped.is_some());
                let is_inside = near.ledger.is_accessing() || near.ledger.is_inside();
                is_mapped
                    && (end.gathered || is_inside)
                    && *rank != self.me
                    && !near.gone
                    && is_up(*rank)
            })
        })
    }

    /// No access begins from here on, also where nobody asks the engine.
    pub(super) fn end_ledgers(&self) {
        let near = self.ends.values().flat_map(|end| end.near.values());
        near.for_each(|near| near.ledger.set_ended());
    }

    /// Ranks whose silence would leave something waiting for ever.
    pub(super) fn waited_for(&self) -> BTreeSet<u32> {
        let ends = self.all.iter().flat_map(|all| all.ends.values());
        let in_fences = ends
            .clone()
            .filter_map(|end| end.fences.as_ref()?.awaited());
        let near = ends.flat_map(|end| &end.near);
        let waited = near
            .filter(|(_, near)| {
                !near.ledger.is_completed()
                    || near.wanted > 0
                    || !near.stash.is_empty()
                    || near.lock == Standing::Waiting
                    || near.is_unanswered()
            })
            .map(|(&rank, _)| rank);
        waited.chain(in_fences).collect()
    }

    fn near(&mut self, id: WindowId, rank: u32) -> Option<&mut Near> {
        let end = self.all.as_mut()?.ends.get_mut(&id)?;
        Some(end.near(rank))
    }
}

impl Deref for Windows {
    type Target = All;

    fn deref(&self) -> &All {
        static NONE: All = All {
            listened: 0,
            ends: BTreeMap::new(),
            pool: Pool::EMPTY,
            watching: Watching::EMPTY,
            lines: BTreeMap::new(),
        };
        self.all.as_deref().unwrap_or(&NONE)
    }
}

/// Makes them, when it is the first time.
impl DerefMut for Windows {
    fn deref_mut(&mut self) -> &mut All {
        self.all.get_or_insert_default()
    }
}

/// What the application asks for.
impl Engine {
    pub(crate) fn open_window(&mut self, id: WindowId, extent: Extent) {
        let key = match &extent {
            Extent::Fixed(memory) => {
                let range = crate::buffer::range_of(&memory.region, memory.start, memory.len);
                self.driver.expose(range)
            }
            Extent::Growing(_) => None,
        };
        let entrance = Entrance::default();
        if let Some(key) = key {
            self.driver.guard(key, entrance.keeper());
        }
        let (sig, pieces) = Pieces::new(extent);
        let group = self.core.members(id.ctx).cloned();
        let end = End {
            group: group.unwrap_or(Group::First(0)),
            sig,
            pieces,
            key: key.unwrap_or_else(RemoteRegion::zeroed),
            near: BTreeMap::new(),
            listeners: BTreeMap::new(),
            fences: None,
            gathered: false,
            entrance,
            closed: false,
        };
        self.core.windows.ends.insert(id, end);
    }

    /// Nobody holds this end any more. Accesses that were not completed are now; then it is gone, and neighbours that still
    /// come are told so.
    pub(crate) fn close_window(&mut self, id: WindowId) {
        let Some(end) = self.core.windows.ends.get_mut(&id) else {
            return;
        };
        end.closed = true;
        for near in end.near.values_mut() {
            near.ending |= near.ledger.is_accessing();
        }
        let near: Vec<u32> = end.near.keys().copied().collect();
        for rank in near {
            self.core.end_access(id, rank);
        }
        self.core.bury_window(id);
        self.unwatch(id);
        self.flush();
        self.let_kept_go();
    }

    /// Opens this end to an origin, once more. Waits for nobody.
    pub(crate) fn post_window(&mut self, id: WindowId, origin: u32) {
        self.greet(id, origin);
        self.reach_counters(id, origin);
        if let Some(near) = self.core.windows.near(id, origin) {
            near.ledger.add_post();
            self.core.tell_posted(id, origin);
        }
    }

    /// Begins an access to all of these, as soon as all have posted.
    pub(crate) fn start_window(
        &mut self,
        id: WindowId,
        targets: &[u32],
    ) -> Option<Result<(), (u32, ErrorKind)>> {
        loop {
            for &target in targets {
                match self.core.may_start(id, target) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(why) => return Some(Err((target, why))),
                }
            }
            let ledgers: Vec<_> = targets
                .iter()
                .map(|&target| self.ledger(id, target))
                .collect();
            if begin_all(ledgers.iter().map(AsRef::as_ref)) {
                return Some(Ok(()));
            }
            // Another thread was faster: look again what that means.
        }
    }

    /// What was counted with a neighbour.
    pub(crate) fn ledger(&mut self, id: WindowId, rank: u32) -> Arc<Ledger> {
        let near = self.core.windows.near(id, rank);
        near.map(|near| Arc::clone(&near.ledger))
            .unwrap_or_default()
    }

    /// Introduces this end to a neighbour, once.
    pub(crate) fn greet(&mut self, id: WindowId, rank: u32) {
        let Self { core, driver, .. } = self;
        let All { ends, pool, .. } = &mut *core.windows;
        let Some(end) = ends.get_mut(&id) else {
            return;
        };
        let hello = Hello {
            base: Base::new(Kind::Hello),
            ctx: id.ctx,
            tag: id.tag,
            sig: end.sig.0,
            len: end.pieces.extent(),
            key: end.key,
        };
        let near = end.near(rank);
        if std::mem::replace(&mut near.greeted, true) || core.peers.down(rank).is_some() {
            return;
        }
        if let Some((ours, keys)) = Ours::new(pool, &mut **driver) {
            near.ledger.set_ours(ours);
            // Before the greeting, so that who was greeted can count.
            core.peers.control(rank, &id.tally(Kind::Tally, keys));
        }
        core.peers.control(rank, &hello);
    }

    /// A neighbour's memory, if it has introduced itself, and what to count in. What can be mapped is mapped at the first use.
    pub(crate) fn far(&mut self, id: WindowId, rank: u32) -> Option<Far> {
        self.reach_counters(id, rank);
        let far = self.core.windows.near(id, rank)?.far.as_mut()?;
        if far.mapped.is_none() && far.key.len > 0 && far.key.len >= far.len {
            far.mapped = self.driver.reach(Rank(rank), far.key);
        }
        Some(far.clone())
    }

    /// Ends an access as soon as none of its operations is under way; the target is told then.
    pub(crate) fn complete_window(&mut self, id: WindowId, target: u32) {
        if let Some(near) = self
            .core
            .windows
            .near(id, target)
            .filter(|near| near.ledger.is_accessing())
        {
            near.ending = true;
        }
        self.reach_counters(id, target);
        self.core.end_access(id, target);
        self.flush();
        self.let_kept_go();
    }
}

impl End {
    /// A neighbour, as far as it is known.
    fn near(&mut self, rank: u32) -> &mut Near {
        let Self { near, entrance, .. } = self;
        near.entry(rank).or_insert_with(|| {
            let near = Near::default();
            entrance.meet(rank, &near.ledger);
            near
        })
    }
}

impl Near {
    /// Whether it was greeted and has not greeted back.
    fn is_unanswered(&self) -> bool {
        self.greeted && self.far.is_none() && !self.gone
    }

    /// Whether it has freed its end, and what it posted before has been counted.
    fn posts_no_more(&self) -> bool {
        self.gone && self.ledger.posted() >= self.last_posted
    }

    /// Whether it has freed its end, and what it completed before has been counted.
    fn completes_no_more(&self) -> bool {
        self.gone && self.ledger.completed() >= self.last_completed
    }

    /// Whether operations on its memory need not wait for a word of its.
    fn may_launch(&self) -> bool {
        let may_enter = !matches!(self.lock, Standing::Waiting | Standing::Passing);
        self.far.is_some() && may_enter
    }
}

/// Begins accesses to all of these, or to none.
pub(crate) fn begin_all<'a>(ledgers: impl Iterator<Item = &'a Ledger> + Clone) -> bool {
    let begun = ledgers.clone().take_while(|ledger| ledger.begin()).count();
    let all = ledgers.clone().nth(begun).is_none();
    if !all {
        ledgers.take(begun).for_each(Ledger::unbegin);
    }
    all
}

impl WindowId {
    fn tally(self, kind: Kind, [first, second]: [RemoteCounter; 2]) -> Tally {
        let base = Base::new(kind);
        Tally {
            base,
            ctx: self.ctx,
            tag: self.tag,
            first,
            second,
        }
    }

    fn note(self, kind: Kind, what: u32, count: u64) -> Note {
        let base = Base::new(kind);
        Note {
            base,
            ctx: self.ctx,
            tag: self.tag,
            what,
            zero: 0,
            count,
        }
    }
}
