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

mod fence;
mod lines;
mod locks;
mod number;
mod ops;
mod tally;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    task::Waker,
};

use bytemuck::Zeroable;
use ripstop_fabric::{
    driver::{Down, Peer as Rank},
    memory::{Region, RemoteRegion},
    offload::RemoteCounter,
};

pub use self::number::Combine;
use self::{
    fence::Fences,
    lines::Line,
    locks::{Door, Standing},
    ops::Stashed,
    tally::{Ours, Pool, Remote, Theirs, Watching, What},
};
pub(crate) use self::{
    fence::Gates,
    locks::Want,
    number::Number,
    ops::{Deed, Ranges},
};
use super::{Core, Engine, Wanted, send::down_kind};
use crate::{
    buffer::TypeSig,
    error::ErrorKind,
    proto::wire::{Base, COUNT_COMPLETED, COUNT_POSTED, Hello, Kind, Note, Tally},
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
}

/// What this rank has behind a window.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) sig: TypeSig,
    /// Bytes.
    pub(crate) len: usize,
    /// Where peers can reach it.
    pub(crate) region: Option<Region>,
}

struct End {
    memory: Memory,
    key: RemoteRegion,
    /// By world rank.
    near: BTreeMap<u32, Near>,
    /// Futures that wait for any news.
    wakers: Vec<Waker>,
    fences: Option<Fences>,
    door: Door,
    /// Open to everybody: neither posts nor locks at this rank are asked for.
    open: bool,
    /// Nobody holds it any more.
    closed: bool,
}

/// What is known of one neighbour.
#[derive(Default)]
struct Near {
    greeted: bool,
    far: Option<Far>,
    /// It has freed its end.
    gone: bool,
    /// Where it counts.
    ours: Option<Ours>,
    /// Where we count.
    theirs: Option<Theirs>,
    /// Where we count the fences that we have come to.
    gate: Option<Remote>,
    /// Exposures that we opened to it.
    posts: u64,
    /// How many of them it has completed, as far as notes say.
    noted_completed: u64,
    /// Exposures that it opened to us, as far as notes say.
    noted_posted: u64,
    /// How many of them we have accessed.
    starts: u64,
    /// The last of them is under way.
    accessing: bool,
    /// The last of them ends when nothing is under way.
    ending: bool,
    /// Somebody waits to access it.
    wanted: u32,
    /// Our operations under way on its memory.
    under_way: u32,
    /// Those that wait for its greeting.
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
    sig: u64,
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

    /// Whether there was never a window.
    #[inline]
    fn is_unused(&self) -> bool {
        self.all.is_none()
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
                near.posts > near.completed()
                    || near.wanted > 0
                    || !near.stash.is_empty()
                    || near.lock == Standing::Waiting
            })
            .map(|(&rank, _)| rank);
        waited.chain(in_fences).collect()
    }

    fn near(&mut self, id: WindowId, rank: u32) -> Option<&mut Near> {
        let end = self.all.as_mut()?.ends.get_mut(&id)?;
        Some(end.near.entry(rank).or_default())
    }
}

impl Deref for Windows {
    type Target = All;

    fn deref(&self) -> &All {
        static NONE: All = All {
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
    pub(crate) fn open_window(&mut self, id: WindowId, memory: Memory) {
        let key = memory.region.as_ref().and_then(|region| {
            let range = crate::buffer::range_of(region, memory.len);
            self.driver.expose(range)
        });
        let end = End {
            memory,
            key: key.unwrap_or_else(RemoteRegion::zeroed),
            near: BTreeMap::new(),
            wakers: Vec::new(),
            fences: None,
            door: Door::default(),
            open: false,
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
            near.ending |= near.accessing;
        }
        let near: Vec<u32> = end.near.keys().copied().collect();
        for rank in near {
            self.core.end_access(id, rank);
        }
        self.core.bury_window(id);
        self.unwatch(id);
        self.flush();
    }

    /// Opens this end to an origin, once more. Waits for nobody.
    pub(crate) fn post_window(&mut self, id: WindowId, origin: u32) {
        self.greet(id, origin);
        self.reach_counters(id, origin);
        if let Some(near) = self.core.windows.near(id, origin) {
            near.posts += 1;
            self.core.tell_posted(id, origin);
        }
    }

    /// Begins an access to all of these, as soon as all have posted.
    pub(crate) fn start_window(
        &mut self,
        id: WindowId,
        targets: &[u32],
    ) -> Option<Result<Vec<Far>, (u32, ErrorKind)>> {
        for &target in targets {
            match self.core.may_start(id, target) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(why) => return Some(Err((target, why))),
            }
        }
        for &target in targets {
            let Some(near) = self.core.windows.near(id, target) else {
                continue;
            };
            near.starts += 1;
            near.accessing = true;
        }
        Some(Ok(targets
            .iter()
            .filter_map(|&target| self.far(id, target))
            .collect()))
    }

    /// Introduces this end to a neighbour, once.
    pub(crate) fn greet(&mut self, id: WindowId, rank: u32) {
        let Self { core, driver, .. } = self;
        let All { ends, pool, .. } = &mut *core.windows;
        let Some(end) = ends.get_mut(&id) else {
            return;
        };
        let near = end.near.entry(rank).or_default();
        if std::mem::replace(&mut near.greeted, true) || core.peers.down(rank).is_some() {
            return;
        }
        let hello = Hello {
            base: Base::new(Kind::Hello),
            ctx: id.ctx,
            tag: id.tag,
            sig: end.memory.sig.0,
            len: end.memory.len as u64,
            key: end.key,
        };
        core.peers.control(rank, &hello);
        if let Some((ours, keys)) = Ours::new(pool, &mut **driver) {
            near.ours = Some(ours);
            core.peers.control(rank, &id.tally(Kind::Tally, keys));
        }
    }

    /// A neighbour's memory, if it has introduced itself. What can be mapped is mapped at the first use.
    pub(crate) fn far(&mut self, id: WindowId, rank: u32) -> Option<Far> {
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
            .filter(|near| near.accessing)
        {
            near.ending = true;
        }
        self.reach_counters(id, target);
        self.core.end_access(id, target);
        self.flush();
    }
}

/// What the driver is to say to futures that wait.
impl Engine {
    /// These origins have completed.
    pub(crate) fn watch_completed(&mut self, id: WindowId, origins: &[u32]) {
        for &origin in origins {
            let near = self.core.windows.near(id, origin);
            if let Some(near) = near.filter(|near| near.completed() < near.posts) {
                let left = near.posts - near.noted_completed;
                self.watch(id, What::Completed(origin), left);
            }
        }
    }

    /// These targets have posted.
    pub(crate) fn watch_posted(&mut self, id: WindowId, targets: &[u32]) {
        for &target in targets {
            let near = self.core.windows.near(id, target);
            if let Some(near) = near.filter(|near| near.posted() <= near.starts) {
                let next = near.starts + 1 - near.noted_posted;
                self.watch(id, What::Posted(target), next);
            }
        }
    }
}

/// What futures look at.
impl Core {
    /// Whether the last access to this target has ended here.
    pub(crate) fn has_ended(&mut self, id: WindowId, target: u32) -> Option<Result<(), ErrorKind>> {
        let down = self.peers.down(target);
        let near = self.windows.near(id, target)?;
        if near.accessing {
            return None;
        }
        Some(down.map_or(Ok(()), |down| Err(down_kind(target, down))))
    }

    /// Whether this origin has completed all accesses that we have opened our end for.
    pub(crate) fn has_completed(
        &mut self,
        id: WindowId,
        origin: u32,
    ) -> Option<Result<(), ErrorKind>> {
        let (down, ended) = (self.peers.down(origin), self.ended);
        let near = self.windows.near(id, origin)?;
        if near.completed() >= near.posts {
            return Some(Ok(()));
        }
        let why = match down {
            _ if near.gone => ErrorKind::NoWindow { window: id.tag },
            Some(down) => down_kind(origin, down),
            None if ended => ErrorKind::Closed,
            None => return None,
        };
        Some(Err(why))
    }

    /// Whether a target has opened its end to us, and we have not accessed it since.
    pub(crate) fn has_posted(&mut self, id: WindowId, target: u32) -> bool {
        let near = self.windows.near(id, target);
        near.is_some_and(|near| near.posted() > near.starts)
    }

    /// Whether nothing of ours is under way on this rank's memory.
    pub(crate) fn is_quiet(&mut self, id: WindowId, rank: u32) -> bool {
        let near = self.windows.near(id, rank);
        near.is_none_or(|near| near.under_way == 0)
    }

    /// Whether nothing of ours is under way on anybody's memory.
    pub(crate) fn is_all_quiet(&self, id: WindowId) -> bool {
        let end = self.windows.ends.get(&id);
        end.is_none_or(|end| end.near.values().all(|near| near.under_way == 0))
    }

    /// This origin will not come any more, and must not hold up the next epoch.
    pub(crate) fn give_up_origin(&mut self, id: WindowId, origin: u32) {
        if let Some(near) = self.windows.near(id, origin) {
            near.noted_completed += near.posts.saturating_sub(near.completed());
        }
    }

    /// Whom to wake when anything about this window changes.
    pub(crate) fn remember_window(&mut self, id: WindowId, waker: &Waker) {
        self.waits = true;
        if let Some(end) = self.windows.ends.get_mut(&id)
            && !end.wakers.iter().any(|known| known.will_wake(waker))
        {
            end.wakers.push(waker.clone());
        }
    }

    /// Somebody waits for this target to post.
    pub(crate) fn want_target(&mut self, id: WindowId, target: u32) {
        if let Some(near) = self.windows.near(id, target) {
            near.wanted += 1;
        }
    }

    /// As many no longer do.
    pub(crate) fn unwant_target(&mut self, id: WindowId, target: u32) {
        if let Some(near) = self.windows.near(id, target) {
            near.wanted = near.wanted.saturating_sub(1);
        }
    }

    fn may_start(&mut self, id: WindowId, target: u32) -> Result<bool, ErrorKind> {
        let (down, ended) = (self.peers.down(target), self.ended);
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return Err(ErrorKind::Closed);
        };
        let sig = end.memory.sig;
        let near = end.near.entry(target).or_default();
        if near.accessing {
            return Err(ErrorKind::Epoch(format!(
                "an access to rank {target} of window {} is under way: complete it first",
                id.tag
            )));
        }
        let known = near.far.as_ref().filter(|_| near.posted() > near.starts);
        match (known, down) {
            (Some(far), _) if far.sig != sig.0 => Err(ErrorKind::TypeMismatch {
                sent: TypeSig(far.sig),
                expected: sig,
            }),
            (Some(_), _) => Ok(true),
            (None, _) if near.gone => Err(ErrorKind::NoWindow { window: id.tag }),
            (None, Some(down)) => Err(down_kind(target, down)),
            (None, None) if ended => Err(ErrorKind::Closed),
            (None, None) => Ok(false),
        }
    }
}

/// What comes from the world.
impl Core {
    pub(super) fn handle_hello(&mut self, rank: u32, header: &Hello) {
        let id = WindowId {
            ctx: header.ctx,
            tag: header.tag,
        };
        let Some(near) = self.near_of(id, rank) else {
            return self.peers.control(rank, &id.note(Kind::NoWindow, 0, 0));
        };
        if near.far.is_none() {
            near.far = Some(Far {
                sig: header.sig,
                len: header.len,
                key: header.key,
                mapped: None,
            });
        }
        let stash = std::mem::take(&mut near.stash);
        if !near.greeted {
            self.wanted.push(Wanted::Greet { id, rank });
        }
        for stashed in stash {
            self.launch(id, rank, stashed);
        }
        self.stir_window(id);
    }

    pub(super) fn handle_note(&mut self, rank: u32, header: &Note) {
        let id = WindowId {
            ctx: header.ctx,
            tag: header.tag,
        };
        let Some(near) = self.near_of(id, rank) else {
            return; // it was told that this end is no more
        };
        match header.what {
            COUNT_POSTED => near.noted_posted = near.noted_posted.max(header.count),
            COUNT_COMPLETED => near.noted_completed = near.noted_completed.max(header.count),
            _ => self.refused += 1,
        }
        self.stir_window(id);
    }

    pub(super) fn handle_no_window(&mut self, rank: u32, header: &Note) {
        let id = WindowId {
            ctx: header.ctx,
            tag: header.tag,
        };
        if let Some(near) = self.near_of(id, rank) {
            near.gone = true;
            for stashed in std::mem::take(&mut near.stash) {
                self.remote_over(stashed.op, Err(ErrorKind::NoWindow { window: id.tag }));
            }
            self.leave_door(id, rank); // a lock that was leaked
            self.stir_window(id);
        }
    }

    /// A peer is down: who waits for it looks again.
    pub(super) fn lose_windows(&mut self, rank: u32, why: Down) {
        if self.windows.is_unused() {
            return;
        }
        let ids: Vec<WindowId> = self.windows.ends.keys().copied().collect();
        for id in ids {
            let end = self.windows.ends.get_mut(&id);
            if let Some(near) = end.and_then(|end| end.near.get_mut(&rank)) {
                for stashed in std::mem::take(&mut near.stash) {
                    self.remote_over(stashed.op, Err(down_kind(rank, why)));
                }
                self.end_access(id, rank);
                self.leave_door(id, rank);
            }
            // No neighbour either: whom we wait for in a fence may wait for this rank.
            self.stir_window(id);
        }
        self.lose_updates(rank, why);
    }

    /// There is no driver any more.
    pub(super) fn end_windows(&mut self) {
        let ids: Vec<WindowId> = self.windows.ends.keys().copied().collect();
        ids.into_iter().for_each(|id| self.stir_window(id));
    }

    /// Whether this rank may access our memory now. What comes by message is checked: nobody else could.
    fn is_let_in(&self, id: WindowId, rank: u32) -> bool {
        let Some(end) = self.windows.ends.get(&id) else {
            return false;
        };
        let near = end.near.get(&rank);
        let posted = near.is_some_and(|near| near.posts > near.completed());
        !end.door.keeps_out(rank) && (end.open || posted || end.door.is_inside(rank))
    }

    /// Opens this end to everybody, or closes it again.
    pub(crate) fn open_to_all(&mut self, id: WindowId, open: bool) {
        if let Some(end) = self.windows.ends.get_mut(&id) {
            end.open = open;
        }
    }

    /// A neighbour that is in the window's communicator. Nobody else is remembered.
    fn near_of(&mut self, id: WindowId, rank: u32) -> Option<&mut Near> {
        let group = self.members(id.ctx)?;
        if !group.contains(rank) {
            return None;
        }
        self.windows.near(id, rank)
    }

    fn end_access(&mut self, id: WindowId, target: u32) {
        let down = self.peers.down(target).is_some();
        let Some(near) = self.windows.near(id, target) else {
            return;
        };
        if !near.ending || near.under_way > 0 {
            return;
        }
        (near.ending, near.accessing) = (false, false);
        if !down {
            self.tell_completed(id, target);
        }
        self.stir_window(id);
    }

    /// There is news.
    fn stir_window(&mut self, id: WindowId) {
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return;
        };
        self.wakers.append(&mut end.wakers);
        if end.closed {
            self.bury_window(id);
        }
    }

    /// Forgets an end that nobody holds, as soon as nothing of its own is under way.
    fn bury_window(&mut self, id: WindowId) {
        let idle = |near: &Near| near.under_way == 0 && !near.ending;
        let over = |end: &End| end.closed && end.near.values().all(idle);
        let Some(end) = self.windows.ends.remove(&id) else {
            return;
        };
        if !over(&end) && !self.ended {
            self.windows.ends.insert(id, end);
            return;
        }
        for (rank, near) in end.near {
            if near.greeted && self.peers.down(rank).is_none() {
                self.peers.control(rank, &id.note(Kind::NoWindow, 0, 0));
            }
        }
    }
}

impl Near {
    /// How many of our exposures it has completed.
    fn completed(&self) -> u64 {
        let counted = self.ours.as_ref().map_or(0, |ours| ours.completed.value());
        self.noted_completed.saturating_add(counted)
    }

    /// Exposures that it opened to us.
    fn posted(&self) -> u64 {
        let counted = self.ours.as_ref().map_or(0, |ours| ours.posted.value());
        self.noted_posted.saturating_add(counted)
    }
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
