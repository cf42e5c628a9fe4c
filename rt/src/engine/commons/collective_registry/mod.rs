//! Records of collectives by context and number: those in flight, those complete, and from which number on they are revoked.
//!
//! A collective's number is its tag. Numbers count the collectives of a communicator, and wrap around.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    ops::{Deref, DerefMut},
    panic::Location,
};

use crate::{
    error::ErrorKind,
    group::WorldRank,
    proto::collective_id::CollectiveId,
    proto::wire::{self, AbortHeader, HeaderBase, WireKind},
};

/// Completed collectives that are remembered. A message for one of them shows that two ranks called different ones. A power of
/// two.
const OVER_MAX: usize = 256;

/// Revoked communicators that this rank has dropped and still remembers, because peers may ask for the reason. The oldest are
/// forgotten.
const LEFT_MAX: usize = 1 << 10;

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
    /// Unexpected messages of collectives, sorted by id.
    early: Vec<(CollectiveId, EarlyMessages)>,
    /// Ranks that have asked for collectives which this rank has not begun, with their signatures.
    asked: VecDeque<(CollectiveId, WorldRank, u64)>,
    /// Collectives in which this rank agrees with others by plain messages.
    pub(in crate::engine) agreeing: Vec<CreationCall>,
    /// By context, the number after that of the last such collective that this rank has begun.
    created: BTreeMap<u32, u32>,
    /// Ranks that were asked whether they will take part in such a collective.
    pub(in crate::engine) makers_asked: Vec<(WorldRank, CollectiveId)>,
    /// Revoked communicators, by context.
    revoked: BTreeMap<u32, CollectiveRevocation>,
    /// Revoked communicators that this rank has dropped, the oldest first.
    left: VecDeque<u32>,
}

/// A collective in which this rank agrees with others by plain messages: the making of a communicator or a window, a fence, or
/// the end of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreationCall {
    pub(crate) id: CollectiveId,
    /// Name of the function.
    pub(crate) name: &'static str,
    /// Number of the window, if it is about one.
    pub(crate) window: Option<u32>,
    /// Source line of the call.
    pub(crate) at: &'static Location<'static>,
}

/// A completed collective, with its signature and its source line.
#[derive(Clone, Copy)]
struct CompletedCollective {
    id: CollectiveId,
    sig: u64,
    at: &'static Location<'static>,
}

/// A communicator on which collectives fail.
#[derive(Clone, Copy, Default)]
struct CollectiveRevocation {
    /// Number of the first collective that failed, and the reason.
    from: Option<(u32, CollectiveFailure)>,
    /// True if ranks disagreed or a rank failed, and no call of this rank has returned that reason yet.
    untold: bool,
    /// True if the application revoked the communicator, with all its messages.
    void: bool,
}

#[derive(Clone, Copy)]
pub(in crate::engine) struct RunningCollective {
    pub(in crate::engine) sig: u64,
    pub(in crate::engine) run: u32,
}

/// Messages stored for one collective. The count is an upper bound, because some may have left the store unrecorded.
#[derive(Clone, Copy)]
struct EarlyMessages {
    stored: usize,
    /// Signature of the first message.
    sig: u64,
    /// True if another signature was seen.
    mixed: bool,
}

/// Reason why a collective failed, the same on all ranks. Ranks are those of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum CollectiveFailure {
    Failed(WorldRank),
    Finished(WorldRank),
    Mismatch(WorldRank, WorldRank),
    GaveUp(WorldRank),
}

impl CollectiveRegistry {
    pub(in crate::engine) const fn new() -> Self {
        Self {
            running: Vec::new(),
            over: Vec::new(),
            displaced: BTreeMap::new(),
            early: Vec::new(),
            asked: VecDeque::new(),
            agreeing: Vec::new(),
            created: BTreeMap::new(),
            makers_asked: Vec::new(),
            revoked: BTreeMap::new(),
            left: VecDeque::new(),
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
        self.agreeing.iter().any(|call| call.id == id)
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

    /// Records that a message for a collective is stored.
    pub(in crate::engine) fn came_early(&mut self, id: CollectiveId, sig: u64) {
        match self.early.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => {
                let early = &mut self.early[at].1;
                early.stored += 1;
                early.mixed |= early.sig != sig;
            }
            Err(at) => {
                let (stored, mixed) = (1, false);
                self.early
                    .insert(at, (id, EarlyMessages { stored, sig, mixed }));
            }
        }
    }

    /// Records that a stored message has left the store.
    pub(in crate::engine) fn was_early(&mut self, id: CollectiveId) {
        if let Ok(at) = self.early.binary_search_by_key(&id, |(id, _)| *id) {
            self.early[at].1.stored -= 1;
            if self.early[at].1.stored == 0 {
                self.early.remove(at);
            }
        }
    }

    /// Returns true if messages may be stored for any collective.
    pub(in crate::engine) fn any_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns true if messages may be stored for this collective.
    #[inline]
    pub(in crate::engine) fn may_be_early(&self, id: CollectiveId) -> bool {
        self.any_early() && self.early.binary_search_by_key(&id, |(id, _)| *id).is_ok()
    }

    /// Returns true if a message with another signature may be stored for this collective.
    #[inline]
    pub(in crate::engine) fn may_be_strange(&self, id: CollectiveId, sig: u64) -> bool {
        let at = self.early.binary_search_by_key(&id, |(id, _)| *id);
        at.is_ok_and(|at| self.early[at].1.mixed || self.early[at].1.sig != sig)
    }

    #[inline(never)]
    pub(in crate::engine) fn is_revoked(&self, ctx: u32) -> bool {
        self.is_void(ctx) || self.revoked_from(ctx).is_some()
    }

    #[inline]
    pub(in crate::engine) fn any_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Revokes a context with all its messages. Returns false if it was revoked already.
    pub(in crate::engine) fn make_void(&mut self, ctx: u32) -> bool {
        let revoked = self.revoked.entry(ctx).or_default();
        !mem::replace(&mut revoked.void, true)
    }

    #[inline]
    pub(in crate::engine) fn is_void(&self, ctx: u32) -> bool {
        self.any_revoked() && self.revoked.get(&ctx).is_some_and(|revoked| revoked.void)
    }

    /// Revokes this collective and all later ones of its context. Returns false if that was known.
    pub(in crate::engine) fn revoke(&mut self, id: CollectiveId, why: CollectiveFailure) -> bool {
        let before = self.revoked_from(id.context);
        let new = before.is_none_or(|(first, known)| {
            is_before(id.sequence, first) || id.sequence == first && why.is_sooner_than(known)
        });
        if new {
            let revoked = self.revoked.entry(id.context).or_default();
            revoked.from = Some((id.sequence, why));
            revoked.untold |= match why {
                CollectiveFailure::Mismatch(..) => {
                    !matches!(before, Some((first, CollectiveFailure::Mismatch(..))) if first == id.sequence)
                }
                // A failed rank is reported once: it need not be reported again for an earlier collective.
                CollectiveFailure::Failed(_) => {
                    !matches!(before, Some((_, CollectiveFailure::Failed(_))))
                }
                CollectiveFailure::Finished(_) | CollectiveFailure::GaveUp(_) => false,
            };
        }
        new
    }

    /// Returns the error for a call on a revoked communicator. If this rank has completed the collective in which two ranks
    /// disagreed or one failed, its next call names those ranks.
    pub(in crate::engine) fn report_revocation(
        &mut self,
        id: CollectiveId,
        kind: ErrorKind,
    ) -> ErrorKind {
        let Some(revoked) = self.revoked.get_mut(&id.context) else {
            return kind;
        };
        let told = !mem::take(&mut revoked.untold);
        match (&kind, revoked.from) {
            (ErrorKind::Revoked, Some((_, why))) if !told && !revoked.void => why.kind(),
            _ => kind,
        }
    }

    /// Returns the collectives in which two ranks disagreed, at most one for each communicator, and those ranks.
    pub(in crate::engine) fn mismatches(&self) -> Vec<(CollectiveId, [WorldRank; 2])> {
        let mismatch = |(ctx, revoked): (&u32, &CollectiveRevocation)| match revoked.from {
            Some((tag, CollectiveFailure::Mismatch(one, other))) => {
                Some((CollectiveId::new(*ctx, tag), [one, other]))
            }
            _ => None,
        };
        self.revoked.iter().filter_map(mismatch).collect()
    }

    /// Returns true if two ranks disagreed in this context, and no call of this rank has ended with that error. The caller
    /// reports it now.
    pub(in crate::engine) fn take_untold_mismatch(&mut self, ctx: u32) -> bool {
        let revoked = self.revoked.get_mut(&ctx);
        revoked.is_some_and(|revoked| {
            let is_mismatch = matches!(revoked.from, Some((_, CollectiveFailure::Mismatch(..))));
            is_mismatch && !revoked.void && mem::take(&mut revoked.untold)
        })
    }

    /// Records that a call has returned the reason of a revoked communicator.
    pub(in crate::engine) fn was_told(&mut self, id: CollectiveId) {
        if let Some(revoked) = self.revoked.get_mut(&id.context) {
            revoked.untold = false;
        }
    }

    /// Records that the future of a call was dropped before it could return that two ranks disagreed in it.
    pub(in crate::engine) fn was_not_told(&mut self, id: CollectiveId) {
        if let Some(revoked) = self.revoked.get_mut(&id.context) {
            let is_it = matches!(revoked.from, Some((first, CollectiveFailure::Mismatch(..))) if first == id.sequence);
            revoked.untold |= is_it;
        }
    }

    pub(in crate::engine) fn revoked_from(&self, ctx: u32) -> Option<(u32, CollectiveFailure)> {
        self.revoked.get(&ctx)?.from
    }

    /// Returns the error for this collective if it is revoked.
    pub(in crate::engine) fn revoked_kind(&self, id: CollectiveId) -> Option<ErrorKind> {
        if self.is_void(id.context) {
            return Some(ErrorKind::Revoked);
        }
        let (first, why) = self.revoked_from(id.context)?;
        match id.sequence {
            _ if is_before(id.sequence, first) => None,
            _ if id.sequence == first => Some(why.kind()),
            _ => Some(ErrorKind::Revoked),
        }
    }

    /// Forgets a dropped communicator. `has_left` returns true for each dropped one. Whether it was revoked is still remembered
    /// for a while.
    pub(in crate::engine) fn forget(&mut self, ctx: u32, has_left: impl Fn(u32) -> bool) {
        // The communicator's last collectives still have places in `over`, and are displaced later.
        if self.displaced.len() >= DISPLACED_MAX {
            self.displaced.retain(|its, _| !has_left(*its));
        }
        self.created.remove(&ctx);
        self.note_left(ctx);
    }

    /// Records a revoked communicator as dropped, so that it is forgotten in the end. See [`forget`](Self::forget).
    pub(in crate::engine) fn note_left(&mut self, ctx: u32) {
        // The world's contexts stay: a later call may make another handle of it.
        if ctx <= 1 || !self.revoked.contains_key(&ctx) || self.left.contains(&ctx) {
            return;
        }
        self.left.push_back(ctx);
        if self.left.len() > LEFT_MAX
            && let Some(oldest) = self.left.pop_front()
        {
            self.revoked.remove(&oldest);
        }
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

impl CollectiveFailure {
    /// Returns the reason that other ranks get for the error that ended a program on rank `me`.
    pub(in crate::engine) fn of(kind: &ErrorKind, me: WorldRank) -> Self {
        let world = |rank: &usize| u32::try_from(*rank).map_or(me, WorldRank);
        match kind {
            ErrorKind::PeerFailed { rank, .. } => Self::Failed(world(rank)),
            ErrorKind::PeerFinished { rank } => Self::Finished(world(rank)),
            ErrorKind::Mismatch { rank, other, .. } => Self::Mismatch(world(rank), world(other)),
            ErrorKind::Aborted { rank } => Self::GaveUp(world(rank)),
            ErrorKind::Closed => Self::Finished(me),
            _ => Self::GaveUp(me),
        }
    }

    /// Returns true if this reason takes precedence. If several pairs of ranks disagree in one collective, all ranks eventually
    /// name the lowest pair.
    fn is_sooner_than(self, known: Self) -> bool {
        match (self, known) {
            (Self::Mismatch(one, other), Self::Mismatch(first, second)) => {
                (one, other) < (first, second)
            }
            _ => false,
        }
    }

    pub(in crate::engine) fn kind(self) -> ErrorKind {
        match self {
            Self::Failed(rank) => ErrorKind::peer_failed(rank.0 as usize),
            Self::Finished(rank) => ErrorKind::PeerFinished {
                rank: rank.0 as usize,
            },
            Self::Mismatch(rank, other) => ErrorKind::Mismatch {
                rank: rank.0 as usize,
                other: other.0 as usize,
                calls: None,
            },
            Self::GaveUp(rank) => ErrorKind::Aborted {
                rank: rank.0 as usize,
            },
        }
    }

    /// Returns the message that reports this reason.
    pub(in crate::engine) fn header(self, id: CollectiveId) -> AbortHeader {
        let (why, rank, other) = match self {
            Self::Failed(rank) => (wire::WHY_FAILED, rank, 0),
            Self::Finished(rank) => (wire::WHY_FINISHED, rank, 0),
            Self::Mismatch(rank, other) => (wire::WHY_MISMATCH, rank, other.0),
            Self::GaveUp(rank) => (wire::WHY_GAVE_UP, rank, 0),
        };
        AbortHeader {
            base: HeaderBase::new(WireKind::Abort),
            ctx: id.context,
            tag: id.sequence,
            why,
            rank: rank.0,
            other,
            zero: 0,
        }
    }

    pub(in crate::engine) fn read(header: &AbortHeader) -> Option<Self> {
        let (rank, other) = (WorldRank(header.rank), WorldRank(header.other));
        match header.why {
            wire::WHY_FAILED => Some(Self::Failed(rank)),
            wire::WHY_FINISHED => Some(Self::Finished(rank)),
            wire::WHY_MISMATCH => Some(Self::Mismatch(rank, other)),
            wire::WHY_GAVE_UP => Some(Self::GaveUp(rank)),
            _ => None,
        }
    }
}
