//! Records of collectives by context and number: those in flight, those complete, and from which number on they are revoked.
//!
//! A collective's number is its tag. Numbers count the collectives of a communicator, and wrap around.

mod early;
mod failure;
mod revocations;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::{Deref, DerefMut},
    panic::Location,
};

pub(in crate::engine) use self::failure::CollectiveFailure;
use self::{early::EarlyMessages, revocations::CollectiveRevocations};
use crate::{group::WorldRank, proto::collective_id::CollectiveId};

/// Completed collectives that are remembered. A message for one of them shows that two ranks called different ones. A power of
/// two.
const OVER_MAX: usize = 256;

/// Number of entries in `displaced` from which on those of dropped communicators are removed. The larger it is, the rarer the
/// table is searched.
const DISPLACED_MAX: usize = 64;

/// A collective whose number has these bits zero removes an old entry of its communicator in `displaced`. This happens often
/// enough before numbers wrap around, and rarely enough to cost nothing.
const DISPLACED_MASK: u32 = (1 << 16) - 1;

/// Questions that are kept. A rank gets them from its neighbors and a few other ranks.
const ASKED_MAX: usize = 64;

/// The records of collectives. It allocates nothing before the first, so that an idle simulated rank takes little memory.
#[derive(Default)]
pub(in crate::engine) struct LazyCollectiveRegistry(Option<Box<CollectiveRegistry>>);

impl Deref for LazyCollectiveRegistry {
    type Target = CollectiveRegistry;

    #[inline]
    fn deref(&self) -> &CollectiveRegistry {
        static NONE: CollectiveRegistry = CollectiveRegistry::new();
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for LazyCollectiveRegistry {
    #[inline]
    fn deref_mut(&mut self) -> &mut CollectiveRegistry {
        self.0.get_or_insert_with(first_registry)
    }
}

#[cold]
fn first_registry() -> Box<CollectiveRegistry> {
    Box::new(CollectiveRegistry::new())
}

pub(in crate::engine) struct CollectiveRegistry {
    /// Collectives in flight, sorted by id. There are few, and new ones are usually last.
    running: Vec<(CollectiveId, RunningCollective)>,
    /// Completed collectives. The id of each gives its place, where it stays until another one replaces it. Empty until the
    /// first.
    over: Vec<Option<CompletedCollective>>,
    /// By context, the last collective whose place was taken by another communicator's, or by one that ended late.
    displaced: BTreeMap<u32, u32>,
    pub(in crate::engine) early: EarlyMessages,
    /// Ranks that have asked for collectives which this rank has not begun, with their signatures.
    asked: VecDeque<(CollectiveId, WorldRank, u64)>,
    /// Collectives in which this rank agrees with others by plain messages.
    pub(in crate::engine) agreeing: Vec<CreationCall>,
    /// By context, the number after that of the last such collective that this rank has begun.
    created: BTreeMap<u32, u32>,
    /// Ranks that were asked whether they will take part in such a collective.
    pub(in crate::engine) makers_asked: Vec<(WorldRank, CollectiveId)>,
    pub(in crate::engine) revocations: CollectiveRevocations,
}

/// A collective in which this rank agrees with others by plain messages: the making of a communicator or a window, a fence, or
/// the end of a window.
#[derive(Debug)]
pub(crate) struct CreationCall {
    pub(crate) id: CollectiveId,
    /// Name of the function.
    pub(crate) name: &'static str,
    /// Number of the window, if it is about one.
    pub(crate) window: Option<u32>,
    /// What all ranks must pass alike, in words; empty if there is nothing.
    pub(crate) arguments: String,
    /// Source line of the call.
    pub(crate) at: &'static Location<'static>,
}

impl fmt::Display for CreationCall {
    /// Writes the call as errors describe it, like that of a program.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if let Some(window) = self.window {
            write!(f, " (window {window})")?;
        }
        if !self.arguments.is_empty() {
            write!(f, " ({})", self.arguments)?;
        }
        write!(f, " at {}", self.at)
    }
}

/// A completed collective, with its signature and its source line.
#[derive(Clone, Copy)]
struct CompletedCollective {
    id: CollectiveId,
    sig: u64,
    at: &'static Location<'static>,
}

#[derive(Clone, Copy)]
pub(in crate::engine) struct RunningCollective {
    pub(in crate::engine) sig: u64,
    pub(in crate::engine) run: u32,
}

impl CollectiveRegistry {
    pub(in crate::engine) const fn new() -> Self {
        Self {
            running: Vec::new(),
            over: Vec::new(),
            displaced: BTreeMap::new(),
            early: EarlyMessages::new(),
            asked: VecDeque::new(),
            agreeing: Vec::new(),
            created: BTreeMap::new(),
            makers_asked: Vec::new(),
            revocations: CollectiveRevocations::new(),
        }
    }

    pub(in crate::engine) fn begin(&mut self, id: CollectiveId, sig: u64, run: u32) {
        let at = self.running.partition_point(|(other, _)| *other <= id);
        self.running
            .insert(at, (id, RunningCollective { sig, run }));
    }

    pub(in crate::engine) fn end(
        &mut self,
        id: CollectiveId,
        sig: u64,
        at: &'static Location<'static>,
    ) {
        if let Ok(at) = self.running.binary_search_by_key(&id, |(id, _)| *id) {
            self.running.remove(at);
        }
        self.note_over(id, sig, at);
    }

    /// Records a completed collective. It need not have been recorded as in flight.
    pub(in crate::engine) fn note_over(
        &mut self,
        id: CollectiveId,
        sig: u64,
        at: &'static Location<'static>,
    ) {
        if self.over.is_empty() {
            self.over.resize(OVER_MAX, None);
        }
        if id.sequence & DISPLACED_MASK == 0 {
            self.forget_displaced(id);
        }
        let before = self.over[place(id)].replace(CompletedCollective { id, sig, at });
        let is_news = |other: CollectiveId| {
            other.context != id.context || is_before(id.sequence, other.sequence)
        };
        if let Some(other) = before.map(|other| other.id).filter(|other| is_news(*other)) {
            let last = self
                .displaced
                .entry(other.context)
                .or_insert(other.sequence);
            if is_before(*last, other.sequence) {
                *last = other.sequence;
            }
        }
    }

    /// Removes a displaced collective that is much older than this one. Its number alone shows that it is complete. If it stayed,
    /// numbers could wrap around to it.
    #[cold]
    fn forget_displaced(&mut self, id: CollectiveId) {
        let is_old = |last: &u32| {
            is_before(*last, id.sequence) && id.sequence.wrapping_sub(*last) as usize > OVER_MAX
        };
        if self.displaced.get(&id.context).is_some_and(is_old) {
            self.displaced.remove(&id.context);
        }
    }

    pub(in crate::engine) fn running(&self, id: CollectiveId) -> Option<RunningCollective> {
        let at = self.running.binary_search_by_key(&id, |(id, _)| *id);
        at.ok().map(|at| self.running[at].1)
    }

    /// Returns the numbers of the collectives in flight in this context.
    pub(in crate::engine) fn running_of(&self, ctx: u32) -> Vec<u32> {
        let running = self.running.iter().map(|(id, _)| *id);
        running
            .filter(|id| id.context == ctx)
            .map(|id| id.sequence)
            .collect()
    }

    /// Returns true if this collective is complete and still remembered.
    pub(in crate::engine) fn is_over(&self, id: CollectiveId) -> bool {
        self.sig_of_over(id).is_some()
    }

    /// Returns the signature of a completed collective if it is still remembered.
    pub(in crate::engine) fn sig_of_over(&self, id: CollectiveId) -> Option<u64> {
        self.over(id).map(|(sig, _)| sig)
    }

    /// Returns the signature and the source line of a completed collective if it is still remembered.
    pub(in crate::engine) fn over(
        &self,
        id: CollectiveId,
    ) -> Option<(u64, &'static Location<'static>)> {
        let over = (*self.over.get(place(id))?)?;
        (over.id == id).then_some((over.sig, over.at))
    }

    /// Returns true if later collectives show that this one is complete or was never called here.
    ///
    /// Call it only for a collective that is neither in flight nor remembered. A collective that only its future knows may be
    /// meant. Such a one has sent all its messages.
    pub(in crate::engine) fn is_long_over(&self, id: CollectiveId) -> bool {
        let displaced = self.displaced.get(&id.context);
        if displaced.is_some_and(|last| !is_before(*last, id.sequence)) {
            return true;
        }
        let next = self.next(id.context);
        is_before(id.sequence, next) && next.wrapping_sub(id.sequence) as usize > OVER_MAX
    }

    /// Returns the number after that of the last known collective of this context.
    pub(in crate::engine) fn next(&self, ctx: u32) -> u32 {
        let over = self.over.iter().flatten().map(|over| over.id);
        let running = self.running.iter().map(|(id, _)| *id);
        let displaced = self
            .displaced
            .get(&ctx)
            .map(|tag| CollectiveId::new(ctx, *tag));
        let ids = over.chain(running).chain(displaced);
        let tags = ids.filter(|id| id.context == ctx).map(|id| id.sequence);
        let last = tags.reduce(|last, tag| if is_before(last, tag) { tag } else { last });
        last.map_or(0, |last| last.wrapping_add(1))
    }

    /// Records that this rank begins a collective in which it agrees with others by plain messages.
    pub(in crate::engine) fn begin_creation(&mut self, call: CreationCall) {
        let next = call.id.sequence.wrapping_add(1);
        let known = self.created.entry(call.id.context).or_insert(next);
        if is_before(*known, next) {
            *known = next;
        }
        self.agreeing.push(call);
    }

    /// Returns true if this rank is in this collective, and agrees with others by plain messages.
    pub(in crate::engine) fn is_creating(&self, id: CollectiveId) -> bool {
        self.creation(id).is_some()
    }

    /// Returns the call by which this rank agrees with others in this collective, if it does.
    pub(in crate::engine) fn creation(&self, id: CollectiveId) -> Option<&CreationCall> {
        self.agreeing.iter().find(|call| call.id == id)
    }

    /// Returns the number after that of the last collective which this rank has begun in this context, as far as it is known.
    pub(in crate::engine) fn next_begun(&self, ctx: u32) -> u32 {
        let next = self.next(ctx);
        match self.created.get(&ctx) {
            Some(created) if is_before(next, *created) => *created,
            _ => next,
        }
    }

    /// Records that a rank has asked for a collective which this rank has not begun.
    pub(in crate::engine) fn was_asked(&mut self, id: CollectiveId, rank: WorldRank, sig: u64) {
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back((id, rank, sig));
    }

    /// Returns true if a rank has asked for a collective which this rank has not begun.
    pub(in crate::engine) fn any_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns a rank that has asked about this collective with another signature.
    pub(in crate::engine) fn mismatched_asker(
        &self,
        id: CollectiveId,
        sig: u64,
    ) -> Option<WorldRank> {
        let is_strange = |&&(of, _, its): &&(CollectiveId, WorldRank, u64)| of == id && its != sig;
        self.asked.iter().find(is_strange).map(|(_, rank, _)| *rank)
    }

    /// Forgets the questions about a collective that this rank begins. The ranks that asked get its messages.
    pub(in crate::engine) fn forget_asked(&mut self, id: CollectiveId) {
        self.asked.retain(|(of, ..)| *of != id);
    }

    /// Forgets a dropped communicator. `has_left` returns true for each dropped one. Whether it was revoked is still remembered
    /// for a while.
    pub(in crate::engine) fn forget(&mut self, ctx: u32, has_left: impl Fn(u32) -> bool) {
        // The communicator's last collectives still have places in `over`, and are displaced later.
        if self.displaced.len() >= DISPLACED_MAX {
            self.displaced.retain(|its, _| !has_left(*its));
        }
        self.created.remove(&ctx);
        self.revocations.note_left(ctx);
    }
}

/// Returns the place of a completed collective. Consecutive collectives, and those of consecutive communicators, have different
/// places.
fn place(id: CollectiveId) -> usize {
    (id.sequence as usize).wrapping_add((id.context as usize).wrapping_mul(OVER_MAX / 16 + 1))
        % OVER_MAX
}

/// Returns true if a number is before another one. Numbers of collectives wrap around.
pub(in crate::engine) fn is_before(tag: u32, other: u32) -> bool {
    tag.wrapping_sub(other) > u32::MAX / 2
}
