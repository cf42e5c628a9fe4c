//! Content of a one-sided command: its keys and memory, and whether the keys can be valid.

use std::sync::atomic::AtomicU64;

use super::regions::check;
use crate::{
    driver::{AtomicOp, CommandFailure, LocalRange, WorldRank},
    memory::RemoteRegion,
    offload::{COUNTER_LEN, PutLanding, RemoteCounter},
};

/// Content of a one-sided command.
#[derive(Clone, Copy, Debug)]
pub(super) enum VerbsRmaOp {
    Put {
        from: LocalRange,
        into: RemoteRegion,
        count: Option<RemoteRegion>,
    },
    /// A put of the few words of a landing.
    Offer {
        landing: PutLanding,
        into: RemoteRegion,
        count: Option<RemoteRegion>,
    },
    Get {
        from: RemoteRegion,
        into: LocalRange,
    },
    /// `known`: the value of the word when it was last read.
    Atomic {
        at: RemoteRegion,
        op: AtomicOp,
        known: Option<u64>,
    },
    Count {
        cell: RemoteRegion,
        by: u64,
    },
}

impl VerbsRmaOp {
    /// Returns 1 for a count, and otherwise 0.
    pub(super) fn counts(&self) -> u32 {
        u32::from(matches!(self, Self::Count { .. }))
    }

    /// Returns true if the peer's device answers with a value or bytes.
    pub(super) const fn asks(&self) -> bool {
        let counts = matches!(self.keys(), (_, Some(_)));
        counts || matches!(self, Self::Get { .. } | Self::Atomic { .. })
    }

    /// Makes a count, if the key can be one to a counter.
    pub(super) fn count(counter: RemoteCounter, by: u64) -> Option<Self> {
        counter.words_key().map(|cell| Self::Count { cell, by })
    }

    pub(super) const fn keys(&self) -> (RemoteRegion, Option<RemoteRegion>) {
        match *self {
            Self::Put { into, count, .. } | Self::Offer { into, count, .. } => (into, count),
            Self::Get { from, .. } => (from, None),
            Self::Atomic { at, .. } => (at, None),
            Self::Count { cell, .. } => (cell, Some(cell)),
        }
    }

    /// Returns the bytes that the operation moves, which may be more than one request takes.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Put { from, .. } => from.len(),
            Self::Offer { .. } => size_of::<PutLanding>(),
            Self::Get { into, .. } => into.len(),
            Self::Atomic { .. } | Self::Count { .. } => 0,
        }
    }

    /// Returns true for a put or a get of no bytes that counts nothing.
    pub(super) const fn does_nothing(&self) -> bool {
        match self {
            Self::Put {
                from, count: None, ..
            } => from.is_empty(),
            Self::Get { into, .. } => into.is_empty(),
            _ => false,
        }
    }

    /// Checks that its keys can be keys of this peer.
    pub(super) fn check(&self, peer: WorldRank) -> Result<(), CommandFailure> {
        let word = |key: RemoteRegion, len| {
            let aligned = key.base.is_multiple_of(size_of::<u64>() as u64);
            check(key, peer, len)?;
            aligned.then_some(()).ok_or(CommandFailure::BadRange)
        };
        match *self {
            Self::Put { from, into, count } => {
                check(into, peer, from.len())?;
                count.map_or(Ok(()), |cell| word(cell, COUNTER_LEN))
            }
            Self::Offer { into, count, .. } => {
                check(into, peer, size_of::<PutLanding>())?;
                count.map_or(Ok(()), |cell| word(cell, COUNTER_LEN))
            }
            Self::Get { from, into } => check(from, peer, into.len()),
            Self::Atomic { at, .. } => word(at, size_of::<u64>()),
            Self::Count { cell, .. } => word(cell, COUNTER_LEN),
        }
    }

    /// Notes the value that an atomic found. Returns true if it must be tried again, because the device has no such operation and
    /// a compare-and-swap in its place has failed or is still to come.
    pub(super) fn must_retry(&mut self, expected: Option<u64>, old: u64) -> bool {
        let Self::Atomic { op, known, .. } = self else {
            return false;
        };
        let native = matches!(
            op,
            AtomicOp::Add(_) | AtomicOp::Fetch | AtomicOp::CompareSwap { .. }
        );
        let done = native || expected == Some(old);
        *known = Some(old);
        !done
    }
}

/// Returns the counter of a put, if its key can be one to a counter.
pub(super) fn cell_of(
    count: Option<RemoteCounter>,
) -> Result<Option<RemoteRegion>, CommandFailure> {
    let cell = count.map(|count| count.words_key().ok_or(CommandFailure::BadRange));
    cell.transpose()
}

impl AtomicOp {
    /// Returns the value of a word after this operation.
    pub(super) fn after(self, word: u64) -> u64 {
        let word = AtomicU64::new(word);
        self.apply(&word);
        word.into_inner()
    }
}
