//! Failures of ranks as streams: a list that only grows, and the position of each stream in it.

use std::task::{Poll, Waker};

use super::{LazyRecovery, RecoveryPart, remember};
use crate::group::{CommRank, RankGroup, WorldRank};

/// Position of one stream.
#[derive(Debug)]
pub(crate) struct FailureCursor {
    number: u32,
    ctx: u32,
    /// Failures in the list that the stream has looked at.
    heard: usize,
}

/// A stream that waits for the next failure.
pub(super) struct FailureFollower {
    pub(super) ctx: u32,
    pub(super) waker: Option<Waker>,
}

impl LazyRecovery {
    /// Returns the communicators whose failures a stream waits for.
    pub(in crate::engine) fn followed(&self) -> impl Iterator<Item = u32> {
        let state = self.get();
        let followers = state.into_iter().flat_map(|state| state.followers.values());
        followers.map(|follower| follower.ctx)
    }
}

impl RecoveryPart<'_> {
    pub(crate) fn follow_failures(&mut self, ctx: u32) -> FailureCursor {
        let state = self.recovery.state();
        state.followings = state.followings.wrapping_add(1);
        FailureCursor {
            number: state.followings,
            ctx,
            heard: 0,
        }
    }

    /// Returns the next failed rank of this group by its rank there, or `None` once this runtime closes.
    pub(crate) fn poll_failure(
        &mut self,
        following: &mut FailureCursor,
        group: &RankGroup,
        waker: &Waker,
    ) -> Poll<Option<CommRank>> {
        let (closing, state) = (self.common.closing, self.recovery.state());
        while let Some(rank) = state.failed.get(following.heard) {
            following.heard += 1;
            if let Some(rank) = group.local_of(*rank) {
                return Poll::Ready(Some(rank));
            }
        }
        if closing {
            return Poll::Ready(None);
        }
        let follower = state.followers.entry(following.number);
        let follower = follower.or_insert(FailureFollower {
            ctx: following.ctx,
            waker: None,
        });
        self.common
            .wakers
            .extend(remember(&mut follower.waker, waker));
        self.common.awaited_peers_changed = true;
        Poll::Pending
    }

    pub(crate) fn unfollow_failures(&mut self, following: &FailureCursor) {
        let state = self.recovery.get_mut();
        let follower = state.and_then(|state| state.followers.remove(&following.number));
        self.common
            .wakers
            .extend(follower.and_then(|follower| follower.waker));
    }

    pub(super) fn note_failure(&mut self, rank: WorldRank) {
        let state = self.recovery.state();
        state.failed.push(rank);
        let followers = state.followers.values_mut();
        self.common
            .wakers
            .extend(followers.filter_map(|follower| follower.waker.take()));
    }
}
