//! Reasons why a collective failed, as ranks report them to each other.

use crate::{
    error::ErrorKind,
    group::WorldRank,
    proto::collective_id::CollectiveId,
    proto::wire::{self, AbortHeader, HeaderBase, WireKind},
};

/// Reason why a collective failed, the same on all ranks. Ranks are those of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum CollectiveFailure {
    Failed(WorldRank),
    Finished(WorldRank),
    /// The lower rank comes first. Errors name the pair in the order of its communicator.
    Mismatch(WorldRank, WorldRank),
    GaveUp(WorldRank),
}

impl CollectiveFailure {
    /// Returns the reason that other ranks get for the error that ended a program on rank `me`.
    pub(in crate::engine) fn of(kind: &ErrorKind, me: WorldRank) -> Self {
        let world = |rank: &usize| u32::try_from(*rank).map_or(me, WorldRank);
        match kind {
            ErrorKind::PeerFailed { rank, .. } => Self::Failed(world(rank)),
            ErrorKind::PeerFinished { rank } => Self::Finished(world(rank)),
            ErrorKind::Mismatch { rank, other, .. } => Self::mismatch(world(rank), world(other)),
            ErrorKind::Aborted { rank } => Self::GaveUp(world(rank)),
            ErrorKind::Closed => Self::Finished(me),
            _ => Self::GaveUp(me),
        }
    }

    /// Returns the reason that two ranks disagree.
    pub(in crate::engine) fn mismatch(one: WorldRank, other: WorldRank) -> Self {
        Self::Mismatch(one.min(other), one.max(other))
    }

    /// Returns true if this reason takes precedence. If several pairs of ranks disagree in one collective, all ranks eventually
    /// name the lowest pair.
    pub(super) fn is_sooner_than(self, known: Self) -> bool {
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
            wire::WHY_MISMATCH => Some(Self::mismatch(rank, other)),
            wire::WHY_GAVE_UP => Some(Self::GaveUp(rank)),
            _ => None,
        }
    }
}
