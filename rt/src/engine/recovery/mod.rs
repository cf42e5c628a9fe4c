//! Support for continuing after a rank has failed: streams of failures, revoked communicators, and agreements among the
//! surviving ranks.

mod agreements;
mod agree_calls;
mod failures;
mod revoke;

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

use ripstop_fabric::driver::Down;

use self::{agreements::Agreements, failures::Follower, revoke::Early};
pub(crate) use self::{
    agreements::{AgreementId, living},
    failures::Following,
};
use super::{Core, Engine};
use crate::group::{Group, WorldRank};

/// State for recovery, allocated when first needed: most jobs never need it.
#[derive(Default)]
pub(super) struct Recovery(Option<Box<State>>);

#[derive(Default)]
struct State {
    /// World ranks that have failed, in the order in which this rank learned of it.
    failed: Vec<WorldRank>,
    /// Streams that wait for the next failure, by number.
    followers: BTreeMap<u32, Follower>,
    /// Streams made so far.
    followings: u32,
    agreements: Agreements,
    /// Reports about communicators that this rank is not in yet.
    early: VecDeque<Early>,
}

impl Recovery {
    fn get(&self) -> Option<&State> {
        self.0.as_deref()
    }

    fn get_mut(&mut self) -> Option<&mut State> {
        self.0.as_deref_mut()
    }

    fn state(&mut self) -> &mut State {
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
    pub(crate) fn join(&mut self, ctx: u32, group: &Group) {
        self.core.join_group(ctx, group);
        self.core.join_group(ctx + 1, group);
        if self.core.peers.fresh() {
            self.flush();
        }
    }
}

impl Core {
    /// Handles a peer that is down.
    pub(super) fn recover_from(&mut self, rank: WorldRank, why: Down) {
        if why == Down::Failed {
            self.note_failure(rank);
        }
        self.spread_around(rank);
        self.agree_without(rank);
    }

    /// Enters a communicator, and handles the reports that came early.
    pub(super) fn enter(&mut self, ctx: u32, group: &Group) {
        if self.recovery.get().is_some() {
            self.enter_revoked(ctx, group);
            self.enter_agreements(ctx);
        }
    }

    /// Wakes the futures that wait for other ranks, because this runtime is closing.
    pub(super) fn end_recovery(&mut self) {
        let Some(state) = self.recovery.get_mut() else {
            return;
        };
        let followers = state.followers.values_mut();
        let followers = followers.filter_map(|follower| follower.waker.take());
        let wakers: Vec<Waker> = followers.chain(state.agreements.take_wakers()).collect();
        self.wakers.extend(wakers);
    }
}
