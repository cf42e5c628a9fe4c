//! Communicators on which collectives fail: from which number on, why, and whether the application knows.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use super::{failure::CollectiveFailure, is_before};
use crate::{error::ErrorKind, group::WorldRank, proto::collective_id::CollectiveId};

/// Revoked communicators that this rank has dropped and still remembers, because peers may ask for the reason. The oldest are
/// forgotten.
pub(super) const LEFT_MAX: usize = 1 << 10;

/// The revoked communicators.
pub(in crate::engine) struct CollectiveRevocations {
    /// By context.
    revoked: BTreeMap<u32, CollectiveRevocation>,
    /// Those that this rank has dropped, the oldest first.
    left: VecDeque<u32>,
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

impl CollectiveRevocations {
    pub(super) const fn new() -> Self {
        Self {
            revoked: BTreeMap::new(),
            left: VecDeque::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.revoked.len()
    }

    #[inline(never)]
    pub(in crate::engine) fn is_revoked(&self, ctx: u32) -> bool {
        self.is_void(ctx) || self.first(ctx).is_some()
    }

    #[inline]
    pub(in crate::engine) fn any(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Revokes a context with all its messages. Returns false if it was revoked already.
    pub(in crate::engine) fn make_void(&mut self, ctx: u32) -> bool {
        let revoked = self.revoked.entry(ctx).or_default();
        !mem::replace(&mut revoked.void, true)
    }

    #[inline]
    pub(in crate::engine) fn is_void(&self, ctx: u32) -> bool {
        self.any() && self.revoked.get(&ctx).is_some_and(|revoked| revoked.void)
    }

    /// Revokes this collective and all later ones of its context. Returns false if that was known.
    pub(in crate::engine) fn revoke(&mut self, id: CollectiveId, why: CollectiveFailure) -> bool {
        let before = self.first(id.context);
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
    pub(in crate::engine) fn report(&mut self, id: CollectiveId, kind: ErrorKind) -> ErrorKind {
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

    /// Returns the number of the first collective of a context that failed, and the reason.
    pub(in crate::engine) fn first(&self, ctx: u32) -> Option<(u32, CollectiveFailure)> {
        self.revoked.get(&ctx)?.from
    }

    /// Returns the error for this collective if it is revoked.
    pub(in crate::engine) fn kind(&self, id: CollectiveId) -> Option<ErrorKind> {
        if self.is_void(id.context) {
            return Some(ErrorKind::Revoked);
        }
        let (first, why) = self.first(id.context)?;
        match id.sequence {
            _ if is_before(id.sequence, first) => None,
            _ if id.sequence == first => Some(why.kind()),
            _ => Some(ErrorKind::Revoked),
        }
    }

    /// Records a revoked communicator as dropped, so that it is forgotten in the end.
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
