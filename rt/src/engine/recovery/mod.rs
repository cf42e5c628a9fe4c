//! What a job goes on with after a rank has died: who has failed, communicators that are revoked, and agreements among those
//! that live.

mod agreements;
mod calls;
mod failures;
mod revoke;

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

use ripstop_fabric::driver::Down;

use self::{agreements::Agreements, failures::Follower, revoke::Early};
pub(crate) use self::{agreements::living, failures::Following};
use super::{Core, Engine};
use crate::group::Group;

/// Nothing until it is needed: most jobs never do.
#[derive(Default)]
pub(super) struct Recovery(Option<Box<State>>);

#[derive(Default)]
struct State {
    /// World ranks that have failed, in the order in which this rank heard of it.
    failed: Vec<u32>,
    /// Streams that wait for the next failure, by number.
    followers: BTreeMap<u32, Follower>,
    /// Streams made so far.
    followings: u32,
    agreements: Agreements,
    /// Of communicators that this rank is not in yet.
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

/// Keeps a future's waker. Returns one of another future, which may not be dropped under the engine's lock.
fn remember(place: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    let known = place.as_ref().is_some_and(|known| known.will_wake(waker));
    if known {
        None
    } else {
        place.replace(waker.clone())
    }
}

impl Engine {
    /// A handle joins a communicator.
    pub(crate) fn join(&mut self, ctx: u32, group: &Group) {
        self.core.join_group(ctx, group);
        self.core.join_group(ctx + 1, group);
        if self.core.peers.fresh() {
            self.flush();
        }
    }
}

impl Core {
    /// A peer is down.
    pub(super) fn recover_from(&mut self, rank: u32, why: Down) {
        if why == Down::Failed {
            self.note_failure(rank);
        }
        self.spread_around(rank);
        self.agree_without(rank);
    }

    /// This rank has come to a communicator, of which it may have heard before.
    pub(super) fn enter(&mut self, ctx: u32, group: &Group) {
        if self.recovery.get().is_some() {
            self.enter_revoked(ctx, group);
            self.enter_agreements(ctx);
        }
    }

    /// Futures that wait for somebody else look again: this runtime is closing.
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
