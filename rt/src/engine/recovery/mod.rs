//! Support for continuing after a rank has failed: streams of failures, revoked communicators, and agreements among the
//! surviving ranks.

mod agree_calls;
mod agree_headers;
mod agreements;
mod failures;
mod revoke;

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

use ripstop_fabric::driver::DownCause;

use self::{agreements::CommAgreements, failures::FailureFollower, revoke::EarlyRevocation};
pub(crate) use self::{
    agreements::{AgreementId, survivors},
    failures::FailureCursor,
};
use super::{Engine, EngineCommons, EngineCore};
use crate::group::{RankGroup, WorldRank};

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
}

impl LazyRecovery {
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

impl Engine {
    /// Registers a handle's communicator, with both its contexts.
    pub(crate) fn join(&mut self, ctx: u32, group: &RankGroup) {
        self.core.join_group(ctx, group);
        self.core.join_group(ctx + 1, group);
        if self.core.p2p.common.peers.has_new_work() {
            self.flush();
        }
    }
}

/// Recovery from failures, with all that it uses of the rest of the engine.
pub(crate) struct RecoveryPart<'a> {
    recovery: &'a mut LazyRecovery,
    common: &'a mut EngineCommons,
}

impl RecoveryPart<'_> {
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

impl EngineCore {
    pub(crate) fn recovery(&mut self) -> RecoveryPart<'_> {
        let Self { recovery, p2p, .. } = self;
        RecoveryPart {
            recovery,
            common: &mut p2p.common,
        }
    }

    /// Makes a call that may decide agreements. Then leaves the communicators that were created without a future waiting here, as
    /// if the last handle had been dropped. So peers get the usual answers.
    pub(crate) fn in_recovery<T>(&mut self, call: impl FnOnce(&mut RecoveryPart<'_>) -> T) -> T {
        let result = call(&mut self.recovery());
        for (number, made) in self.recovery().take_unwanted() {
            let both = [number, number + 1];
            both.into_iter().for_each(|ctx| self.join_group(ctx, &made));
            both.into_iter().for_each(|ctx| self.leave_group(ctx));
        }
        result
    }

    /// Handles a peer that is down.
    pub(super) fn recover_from(&mut self, rank: WorldRank, why: DownCause) {
        if why == DownCause::Failed {
            self.recovery().note_failure(rank);
        }
        self.spread_around(rank);
        self.in_recovery(|part| part.agree_without(rank));
    }

    /// Enters a communicator, and handles the reports that came early.
    pub(super) fn enter(&mut self, ctx: u32, group: &RankGroup) {
        if self.recovery.get().is_some() {
            self.enter_revoked(ctx, group);
            self.in_recovery(|part| part.enter_agreements(ctx));
        }
    }
}
