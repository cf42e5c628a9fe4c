//! Support for continuing after a rank has failed: streams of failures, revoked communicators, and agreements among the
//! surviving ranks.
//!
//! The part knows operations only as something that other parts fail: it says that a communicator is to be revoked
//! ([`begin_revocation`](RecoveryPart::begin_revocation)), and the whole engine then ends what is in flight there. `tests/` runs
//! the part alone.

mod agree_calls;
mod agree_headers;
mod agreements;
mod failures;
mod revoke;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

use ripstop_fabric::driver::DownCause;

use self::{
    agreements::CommAgreements,
    failures::FailureFollower,
    revoke::{EarlyRevocation, RevocationSpread},
};
pub(crate) use self::{
    agreements::{AgreementId, survivors},
    failures::FailureCursor,
};
use super::EngineCommons;
use crate::group::WorldRank;

/// State for recovery, allocated when first needed: most jobs never need it.
#[derive(Default)]
pub(super) struct LazyRecovery(Option<Box<RecoveryState>>);

#[derive(Default)]
struct RecoveryState {
    /// World ranks that have failed, in the order in which this rank learned of it.
    failed: Vec<WorldRank>,
    /// Streams that wait for the next failure, by number.
    followers: BTreeMap<u32, FailureFollower>,
    /// Streams made so far.
    followings: u32,
    agreements: CommAgreements,
    /// Reports about communicators that this rank is not in yet.
    early: VecDeque<EarlyRevocation>,
    spreads: Vec<RevocationSpread>,
}

impl LazyRecovery {
    /// Returns true if this rank has needed any state for recovery.
    pub(super) fn is_used(&self) -> bool {
        self.0.is_some()
    }

    fn get(&self) -> Option<&RecoveryState> {
        self.0.as_deref()
    }

    fn get_mut(&mut self) -> Option<&mut RecoveryState> {
        self.0.as_deref_mut()
    }

    fn state(&mut self) -> &mut RecoveryState {
        self.0.get_or_insert_default()
    }
}

/// Stores a future's waker. Returns the waker of another future, which must not be dropped under the engine's lock.
fn remember(place: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    let known = place.as_ref().is_some_and(|known| known.will_wake(waker));
    if known {
        None
    } else {
        place.replace(waker.clone())
    }
}

/// Recovery from failures, with all that it uses of the rest of the engine.
pub(crate) struct RecoveryPart<'a> {
    pub(super) recovery: &'a mut LazyRecovery,
    pub(super) common: &'a mut EngineCommons,
}

impl RecoveryPart<'_> {
    /// Handles a peer that is down: streams report it if it has failed, and the others continue without it.
    pub(super) fn on_peer_down(&mut self, rank: WorldRank, why: DownCause) {
        if why == DownCause::Failed {
            self.note_failure(rank);
        }
        self.spread_around(rank);
        self.agree_without(rank);
    }

    /// Wakes the futures that wait for other ranks, because this runtime is closing.
    pub(super) fn end_recovery(&mut self) {
        let Some(state) = self.recovery.get_mut() else {
            return;
        };
        let followers = state.followers.values_mut();
        let followers = followers.filter_map(|follower| follower.waker.take());
        let wakers: Vec<Waker> = followers.chain(state.agreements.take_wakers()).collect();
        self.common.wakers.extend(wakers);
    }
}
