//! What is known of collectives by their numbers: which are under way, which were, and from which on they are revoked.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    error::ErrorKind,
    proto::wire::{self, Abort, Base, Kind},
};

/// Collectives that are over and still known: a message for one of them shows that two ranks called different ones.
const OVER_MAX: usize = 256;

/// Revoked communicators that this rank is not in, or not yet.
const UNKNOWN_MAX: usize = 1 << 10;

/// Context and tag.
type Key = (u32, u32);

pub(super) struct Calls {
    known: BTreeMap<Key, Known>,
    over: VecDeque<Key>,
    /// By context: the first collective that failed, and why.
    revoked: BTreeMap<u32, (u32, Why)>,
}

#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) sig: u64,
    /// `None` when it is over.
    pub(super) run: Option<u32>,
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
            known: BTreeMap::new(),
            over: VecDeque::new(),
            revoked: BTreeMap::new(),
        }
    }

    pub(super) fn begin(&mut self, key: Key, sig: u64, run: u32) {
        let run = Some(run);
        self.known.insert(key, Known { sig, run });
    }

    pub(super) fn end(&mut self, key: Key) {
        if let Some(known) = self.known.get_mut(&key) {
            known.run = None;
            self.over.push_back(key);
        }
        if self.over.len() > OVER_MAX
            && let Some(oldest) = self.over.pop_front()
            && self
                .known
                .get(&oldest)
                .is_some_and(|known| known.run.is_none())
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn get(&self, key: Key) -> Option<Known> {
        self.known.get(&key).copied()
    }

    pub(super) fn any_revoked(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// From this collective on there are none. `false`: that was known.
    pub(super) fn revoke(&mut self, (ctx, tag): Key, why: Why) -> bool {
        let new = self
            .revoked_from(ctx)
            .is_none_or(|(first, _)| is_before(tag, first));
        if new {
            self.revoked.insert(ctx, (tag, why));
        }
        new
    }

    /// Whether another communicator of others' may be remembered.
    pub(super) fn has_room(&self) -> bool {
        self.revoked.len() < UNKNOWN_MAX
    }

    pub(super) fn revoked_from(&self, ctx: u32) -> Option<(u32, Why)> {
        self.revoked.get(&ctx).copied()
    }

    /// Why there is no such collective, if there is none.
    pub(super) fn revoked_kind(&self, (ctx, tag): Key) -> Option<ErrorKind> {
        let (first, why) = self.revoked_from(ctx)?;
        match tag {
            _ if is_before(tag, first) => None,
            _ if tag == first => Some(why.kind()),
            _ => Some(ErrorKind::Revoked),
        }
    }

    pub(super) fn forget(&mut self, ctx: u32) {
        self.revoked.remove(&ctx);
    }
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
            ErrorKind::PeerFailed { rank } => Self::Failed(world(rank)),
            ErrorKind::PeerFinished { rank } => Self::Finished(world(rank)),
            ErrorKind::Mismatch { rank, other } => Self::Mismatch(world(rank), world(other)),
            ErrorKind::Aborted { rank } => Self::GaveUp(world(rank)),
            ErrorKind::Closed => Self::Finished(me),
            _ => Self::GaveUp(me),
        }
    }

    pub(super) fn kind(self) -> ErrorKind {
        match self {
            Self::Failed(rank) => ErrorKind::PeerFailed {
                rank: rank as usize,
            },
            Self::Finished(rank) => ErrorKind::PeerFinished {
                rank: rank as usize,
            },
            Self::Mismatch(rank, other) => ErrorKind::Mismatch {
                rank: rank as usize,
                other: other as usize,
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
