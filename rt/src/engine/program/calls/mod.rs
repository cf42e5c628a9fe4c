//! What is known of collectives by their numbers: which are under way, which were, and from which on they are revoked.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    panic::Location,
};

use crate::{
    error::ErrorKind,
    proto::wire::{self, Abort, Base, Kind},
};

/// Collectives that are over and still known: a message for one of them shows that two ranks called different ones. A power
/// of two.
const OVER_MAX: usize = 256;

/// Revoked communicators that this rank has left: others may still ask why. The oldest are forgotten.
const LEFT_MAX: usize = 1 << 10;

/// Places of displaced ones that may be those of communicators which are gone: the more, the rarer they are looked through.
const DISPLACED_MAX: usize = 64;

/// Of the collectives of a communicator, those with these bits zero look whether one of its displaced ones is long gone: often
/// before numbers go round, and seldom enough to cost nothing.
const DISPLACED_MASK: u32 = (1 << 16) - 1;

/// Questions that are kept. A rank asks its neighbours and a few others.
const ASKED_MAX: usize = 64;

/// Context and tag.
type Key = (u32, u32);

pub(super) struct Calls {
    /// Those under way, by key: few, and new ones come last.
    running: Vec<(Key, Running)>,
    /// Those that are over, each in the place that its key gives it until another one comes there; empty until the first.
    over: Vec<Option<Over>>,
    /// By context, the last of those whose place another communicator's took, or one that ended late.
    displaced: BTreeMap<u32, u32>,
    /// Messages that came before they were asked for, by key.
    early: Vec<(Key, Early)>,
    /// Ranks that have asked for collectives which this one has not begun, by key, and their signatures.
    asked: VecDeque<(Key, u32, u64)>,
    /// Where this rank agrees with others by plain messages.
    pub(super) agreeing: Vec<Key>,
    /// Those that were asked whether they will ever do that, and where.
    pub(super) makers_asked: Vec<(u32, Key)>,
    /// By context, those that are revoked.
    revoked: BTreeMap<u32, Revoked>,
    /// Those of them that this rank has left, the oldest first.
    left: VecDeque<u32>,
}

/// One that is over: its signature, and the line that called it.
#[derive(Clone, Copy)]
struct Over {
    key: Key,
    sig: u64,
    at: &'static Location<'static>,
}

/// A communicator on which collectives fail.
#[derive(Clone, Copy, Default)]
struct Revoked {
    /// The first one that failed, and why.
    from: Option<(u32, Why)>,
    /// Ranks called different ones, or one failed, and no call of this rank has ended with that reason.
    untold: bool,
    /// The application revoked it, with all that is under way on it.
    void: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) sig: u64,
    pub(super) run: u32,
}

/// What is stored for one collective, at most: some may have gone another way than to its receives.
#[derive(Clone, Copy)]
struct Early {
    stored: usize,
    /// That of the first.
    sig: u64,
    /// There was another one.
    mixed: bool,
}

/// Why a collective failed, the same on all ranks. Ranks are the world's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Failed(u32),
    Finished(u32),
    Mismatch(u32, u32),
    GaveUp(u32),
}

impl Calls {
    pub(super) const fn new() -> Self {
        Self {
            running: Vec::new(),
            over: Vec::new(),
            displaced: BTreeMap::new(),
            early: Vec::new(),
            asked: VecDeque::new(),
            agreeing: Vec::new(),
            makers_asked: Vec::new(),
            revoked: BTreeMap::new(),
            left: VecDeque::new(),
        }
    }

    pub(super) fn begin(&mut self, key: Key, sig: u64, run: u32) {
        let at = self.running.partition_point(|(other, _)| *other <= key);
        self.running.insert(at, (key, Running { sig, run }));
    }

    pub(super) fn end(&mut self, key: Key, sig: u64, at: &'static Location<'static>) {
        if let Ok(at) = self.running.binary_search_by_key(&key, |(key, _)| *key) {
            self.running.remove(at);
        }
        self.note_over(key, sig, at);
    }

    /// It is over, and nobody had to know that it was under way.
    pub(super) fn note_over(&mut self, key: Key, sig: u64, at: &'static Location<'static>) {
        if self.over.is_empty() {
            self.over.resize(OVER_MAX, None);
        }
        if key.1 & DISPLACED_MASK == 0 {
            self.forget_displaced(key);
        }
        let before = self.over[place(key)].replace(Over { key, sig, at });
        let is_news = |(ctx, tag): Key| ctx != key.0 || is_before(key.1, tag);
        if let Some((ctx, tag)) = before
            .map(|other| other.key)
            .filter(|other| is_news(*other))
        {
            let last = self.displaced.entry(ctx).or_insert(tag);
            if is_before(*last, tag) {
                *last = tag;
            }
        }
    }

    /// This one is over. What was displaced long before it is known by its number alone, as long as that has not gone round.
    #[cold]
    fn forget_displaced(&mut self, (ctx, tag): Key) {
        let is_old =
            |last: &u32| is_before(*last, tag) && tag.wrapping_sub(*last) as usize > OVER_MAX;
        if self.displaced.get(&ctx).is_some_and(is_old) {
            self.displaced.remove(&ctx);
        }
    }

    pub(super) fn running(&self, key: Key) -> Option<Running> {
        let at = self.running.binary_search_by_key(&key, |(key, _)| *key);
        at.ok().map(|at| self.running[at].1)
    }

    /// The numbers of those that are under way in this context.
    pub(super) fn running_of(&self, ctx: u32) -> Vec<u32> {
        let running = self.running.iter().map(|(key, _)| *key);
        running
            .filter(|(of, _)| *of == ctx)
            .map(|(_, tag)| tag)
            .collect()
    }

    /// Whether it is over, as far as that is still known.
    pub(super) fn is_over(&self, key: Key) -> bool {
        self.sig_of_over(key).is_some()
    }

    /// The signature of one that is over, as far as that is still known.
    pub(super) fn sig_of_over(&self, key: Key) -> Option<u64> {
        self.over(key).map(|(sig, _)| sig)
    }

    /// The signature of one that is over and the line that called it, as far as that is still known.
    pub(super) fn over(&self, key: Key) -> Option<(u64, &'static Location<'static>)> {
        let over = (*self.over.get(place(key))?)?;
        (over.key == key).then_some((over.sig, over.at))
    }

    /// Whether one that is neither running nor known to be over is that long over that it is not known any more, or never was one
    /// of this rank's: others were since. It may be one that only its future knows of, which has sent all that it ever sends.
    pub(super) fn is_long_over(&self, (ctx, tag): Key) -> bool {
        let displaced = self.displaced.get(&ctx);
        if displaced.is_some_and(|last| !is_before(*last, tag)) {
            return true;
        }
        let next = self.next(ctx);
        is_before(tag, next) && next.wrapping_sub(tag) as usize > OVER_MAX
    }

    /// A number that no collective of this context has had yet.
    pub(super) fn next(&self, ctx: u32) -> u32 {
        let over = self.over.iter().flatten().map(|over| over.key);
        let running = self.running.iter().map(|(key, _)| *key);
        let displaced = self.displaced.get(&ctx).map(|tag| (ctx, *tag));
        let keys = over.chain(running).chain(displaced);
        let tags = keys.filter(|(of, _)| *of == ctx).map(|(_, tag)| tag);
        let last = tags.reduce(|last, tag| if is_before(last, tag) { tag } else { last });
        last.map_or(0, |last| last.wrapping_add(1))
    }

    /// A rank has asked for a collective that this one has not begun.
    pub(super) fn was_asked(&mut self, key: Key, rank: u32, sig: u64) {
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back((key, rank, sig));
    }

    /// Whether any rank has asked for a collective that this one has not begun.
    pub(super) fn any_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// A rank that has asked for this collective and has called another one in its place.
    pub(super) fn stranger(&self, key: Key, sig: u64) -> Option<u32> {
        let is_strange = |&&(of, _, its): &&(Key, u32, u64)| of == key && its != sig;
        self.asked.iter().find(is_strange).map(|(_, rank, _)| *rank)
    }

    /// This rank has begun it: those that have asked for it hear from it.
    pub(super) fn forget_asked(&mut self, key: Key) {
        self.asked.retain(|(of, ..)| *of != key);
    }

    /// A message is stored.
    pub(super) fn came_early(&mut self, key: Key, sig: u64) {
        match self.early.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => {
                let early = &mut self.early[at].1;
                early.stored += 1;
                early.mixed |= early.sig != sig;
            }
            Err(at) => {
                let (stored, mixed) = (1, false);
                self.early.insert(at, (key, Early { stored, sig, mixed }));
            }
        }
    }

    /// A stored message has left the store.
    pub(super) fn was_early(&mut self, key: Key) {
        if let Ok(at) = self.early.binary_search_by_key(&key, |(key, _)| *key) {
            self.early[at].1.stored -= 1;
            if self.early[at].1.stored == 0 {
                self.early.remove(at);
            }
        }
    }

    /// Whether any message may be stored for a collective.
    pub(super) fn any_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Whether a message may be stored for it.
    #[inline]
    pub(super) fn may_be_early(&self, key: Key) -> bool {
        self.any_early()
            && self
                .early
                .binary_search_by_key(&key, |(key, _)| *key)
                .is_ok()
    }

    /// Whether a message of another signature may be stored for it.
    #[inline]
    pub(super) fn may_be_strange(&self, key: Key, sig: u64) -> bool {
        let at = self.early.binary_search_by_key(&key, |(key, _)| *key);
        at.is_ok_and(|at| self.early[at].1.mixed || self.early[at].1.sig != sig)
    }

    /// Whether nothing is known of this collective that it would have to be told when it begins.
    #[inline]
    pub(super) fn is_calm(&self, key: Key) -> bool {
        let revoked = self.any_revoked() && self.is_revoked(key.0);
        !revoked && !self.may_be_early(key)
    }

    #[inline(never)]
    pub(super) fn is_revoked(&self, ctx: u32) -> bool {
        self.is_void(ctx) || self.revoked_from(ctx).is_some()
    }

    #[inline]
    pub(super) fn any_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Nothing is under way in this context any more. `false`: that was known.
    pub(super) fn make_void(&mut self, ctx: u32) -> bool {
        let revoked = self.revoked.entry(ctx).or_default();
        !mem::replace(&mut revoked.void, true)
    }

    #[inline]
    pub(super) fn is_void(&self, ctx: u32) -> bool {
        self.any_revoked() && self.revoked.get(&ctx).is_some_and(|revoked| revoked.void)
    }

    /// Contexts in which nothing is under way any more.
    pub(super) fn void(&self) -> impl Iterator<Item = u32> {
        let void = self.revoked.iter().filter(|(_, revoked)| revoked.void);
        void.map(|(ctx, _)| *ctx)
    }

    /// From this collective on there are none. `false`: that was known.
    pub(super) fn revoke(&mut self, (ctx, tag): Key, why: Why) -> bool {
        let before = self.revoked_from(ctx);
        let new = before.is_none_or(|(first, known)| {
            is_before(tag, first) || tag == first && why.is_sooner_than(known)
        });
        if new {
            let revoked = self.revoked.entry(ctx).or_default();
            revoked.from = Some((tag, why));
            revoked.untold |= match why {
                Why::Mismatch(..) => {
                    !matches!(before, Some((first, Why::Mismatch(..))) if first == tag)
                }
                // Who knows that one has failed need not hear that it failed an earlier one, too.
                Why::Failed(_) => !matches!(before, Some((_, Why::Failed(_)))),
                Why::Finished(_) | Why::GaveUp(_) => false,
            };
        }
        new
    }

    /// What a call ends with that is on a revoked communicator: if this rank was through with the collective in which two ranks
    /// disagreed or one failed, its next call names them.
    pub(super) fn tell_why(&mut self, (ctx, _): Key, kind: ErrorKind) -> ErrorKind {
        let Some(revoked) = self.revoked.get_mut(&ctx) else {
            return kind;
        };
        let told = !mem::take(&mut revoked.untold);
        match (&kind, revoked.from) {
            (ErrorKind::Revoked, Some((_, why))) if !told && !revoked.void => why.kind(),
            _ => kind,
        }
    }

    /// The collectives in which two ranks disagreed, one for each communicator, and those ranks.
    pub(super) fn mismatches(&self) -> Vec<(u32, u32, [u32; 2])> {
        let mismatch = |(ctx, revoked): (&u32, &Revoked)| match revoked.from {
            Some((tag, Why::Mismatch(one, other))) => Some((*ctx, tag, [one, other])),
            _ => None,
        };
        self.revoked.iter().filter_map(mismatch).collect()
    }

    /// Returns true if two ranks disagreed in this context, and no call of this rank has ended with that error. The caller
    /// reports it now.
    pub(super) fn take_untold_mismatch(&mut self, ctx: u32) -> bool {
        let revoked = self.revoked.get_mut(&ctx);
        revoked.is_some_and(|revoked| {
            let is_mismatch = matches!(revoked.from, Some((_, Why::Mismatch(..))));
            is_mismatch && !revoked.void && mem::take(&mut revoked.untold)
        })
    }

    /// A call has ended with an error.
    pub(super) fn was_told(&mut self, (ctx, _): Key) {
        if let Some(revoked) = self.revoked.get_mut(&ctx) {
            revoked.untold = false;
        }
    }

    /// The future of this call was dropped before it could tell that two ranks disagreed in it.
    pub(super) fn was_not_told(&mut self, (ctx, tag): Key) {
        if let Some(revoked) = self.revoked.get_mut(&ctx) {
            let is_it = matches!(revoked.from, Some((first, Why::Mismatch(..))) if first == tag);
            revoked.untold |= is_it;
        }
    }

    pub(super) fn revoked_from(&self, ctx: u32) -> Option<(u32, Why)> {
        self.revoked.get(&ctx)?.from
    }

    /// Why there is no such collective, if there is none.
    pub(super) fn revoked_kind(&self, (ctx, tag): Key) -> Option<ErrorKind> {
        if self.is_void(ctx) {
            return Some(ErrorKind::Revoked);
        }
        let (first, why) = self.revoked_from(ctx)?;
        match tag {
            _ if is_before(tag, first) => None,
            _ if tag == first => Some(why.kind()),
            _ => Some(ErrorKind::Revoked),
        }
    }

    /// A communicator is gone, as those are for which `has_left` says yes. Whether it was revoked is still known for a while.
    pub(super) fn forget(&mut self, ctx: u32, has_left: impl Fn(u32) -> bool) {
        // Its last collectives still have places, and are displaced later.
        if self.displaced.len() >= DISPLACED_MAX {
            self.displaced.retain(|its, _| !has_left(*its));
        }
        self.note_left(ctx);
    }

    /// As [`forget`](Self::forget), for one that may have been revoked since.
    pub(super) fn note_left(&mut self, ctx: u32) {
        // There may be another handle of the world later.
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

/// Neighbouring collectives of a communicator, and neighbouring communicators, have places of their own.
fn place((ctx, tag): Key) -> usize {
    (tag as usize).wrapping_add((ctx as usize).wrapping_mul(OVER_MAX / 16 + 1)) % OVER_MAX
}

/// Numbers of collectives wrap around.
pub(super) fn is_before(tag: u32, other: u32) -> bool {
    tag.wrapping_sub(other) > u32::MAX / 2
}

impl Why {
    /// What ended a program on the rank `me`, for the others.
    pub(super) fn of(kind: &ErrorKind, me: u32) -> Self {
        let world = |rank: &usize| u32::try_from(*rank).unwrap_or(me);
        match kind {
            ErrorKind::PeerFailed { rank, .. } => Self::Failed(world(rank)),
            ErrorKind::PeerFinished { rank } => Self::Finished(world(rank)),
            ErrorKind::Mismatch { rank, other, .. } => Self::Mismatch(world(rank), world(other)),
            ErrorKind::Aborted { rank } => Self::GaveUp(world(rank)),
            ErrorKind::Closed => Self::Finished(me),
            _ => Self::GaveUp(me),
        }
    }

    /// Of several pairs of ranks that disagree in one collective, all ranks name the same one in the end.
    fn is_sooner_than(self, known: Self) -> bool {
        match (self, known) {
            (Self::Mismatch(one, other), Self::Mismatch(first, second)) => {
                (one, other) < (first, second)
            }
            _ => false,
        }
    }

    pub(super) fn kind(self) -> ErrorKind {
        match self {
            Self::Failed(rank) => ErrorKind::peer_failed(rank as usize),
            Self::Finished(rank) => ErrorKind::PeerFinished {
                rank: rank as usize,
            },
            Self::Mismatch(rank, other) => ErrorKind::Mismatch {
                rank: rank as usize,
                other: other as usize,
                calls: None,
            },
            Self::GaveUp(rank) => ErrorKind::Aborted {
                rank: rank as usize,
            },
        }
    }

    /// As a message.
    pub(super) fn header(self, (ctx, tag): Key) -> Abort {
        let (why, rank, other) = match self {
            Self::Failed(rank) => (wire::WHY_FAILED, rank, 0),
            Self::Finished(rank) => (wire::WHY_FINISHED, rank, 0),
            Self::Mismatch(rank, other) => (wire::WHY_MISMATCH, rank, other),
            Self::GaveUp(rank) => (wire::WHY_GAVE_UP, rank, 0),
        };
        Abort {
            base: Base::new(Kind::Abort),
            ctx,
            tag,
            why,
            rank,
            other,
            zero: 0,
        }
    }

    pub(super) fn read(header: &Abort) -> Option<Self> {
        match header.why {
            wire::WHY_FAILED => Some(Self::Failed(header.rank)),
            wire::WHY_FINISHED => Some(Self::Finished(header.rank)),
            wire::WHY_MISMATCH => Some(Self::Mismatch(header.rank, header.other)),
            wire::WHY_GAVE_UP => Some(Self::GaveUp(header.rank)),
            _ => None,
        }
    }
}
