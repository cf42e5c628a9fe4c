//! Revocation: all operations on a communicator fail, on all its ranks.
//!
//! A rank that learns of a revocation notifies the living members at distances of powers of two, on both sides. When a member
//! fails, each rank that knows also notifies its next living member on both sides, so the news passes around the ring whichever
//! ranks fail. All members know after about log₂ size messages in a row, and no rank sends more than 2 log₂ size messages plus
//! two for each failure.

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
};

use super::{Engine, EngineCore, RecoveryPart};
use crate::{
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::OpSlot,
    proto::wire::{AbortHeader, RevokeHeader},
};

/// Most reports kept about communicators that this rank is not in yet. The oldest are dropped.
const EARLY_MAX: usize = 1 << 10;

/// Report about a communicator that this rank is not in yet, with its sender.
#[derive(Debug)]
pub(super) struct EarlyRevocation {
    ctx: u32,
    by: WorldRank,
    /// The collective that failed there, or `None` if the application has revoked the communicator.
    failed: Option<AbortHeader>,
}

impl Engine {
    /// Revokes a communicator for the application.
    pub(crate) fn revoke(&mut self, ctx: u32) {
        self.core.revoke_all(ctx);
        self.flush();
    }
}

impl RecoveryPart<'_> {
    /// Keeps a report about a communicator that this rank is not in yet. It counts only if its sender turns out to be a member.
    pub(in crate::engine) fn keep_early_revocation(
        &mut self,
        ctx: u32,
        by: WorldRank,
        failed: Option<AbortHeader>,
    ) {
        if self.common.has_left(ctx & !1) {
            return;
        }
        let early = &mut self.recovery.state().early;
        let tag = |failed: &Option<AbortHeader>| failed.map(|header| header.tag);
        let is_old =
            |it: &EarlyRevocation| it.ctx == ctx && it.by == by && tag(&it.failed) == tag(&failed);
        if early.iter().any(is_old) {
            return;
        }
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(EarlyRevocation { ctx, by, failed });
    }
}

impl EngineCore {
    /// Handles a peer's report that a communicator is revoked.
    pub(in crate::engine) fn handle_revoke(&mut self, rank: WorldRank, header: &RevokeHeader) {
        let ctx = header.ctx;
        let member = self
            .p2p
            .common
            .members(ctx)
            .map(|group| group.contains(rank));
        match member {
            _ if !ctx.is_multiple_of(2) => self.p2p.common.refused += 1,
            Some(true) => self.revoke_all(ctx),
            Some(false) => self.p2p.common.refused += 1,
            None => self.recovery().keep_early_revocation(ctx, rank, None),
        }
    }

    pub(super) fn enter_revoked(&mut self, ctx: u32, group: &RankGroup) {
        let Some(state) = self.recovery.get_mut() else {
            return;
        };
        let (news, others) = mem::take(&mut state.early)
            .into_iter()
            .partition::<VecDeque<_>, _>(|early| early.ctx == ctx);
        state.early = others;
        for EarlyRevocation { by, failed, .. } in news {
            match failed {
                _ if !group.contains(by) => {}
                Some(header) => self.handle_abort(by, &header),
                None => self.revoke_all(ctx),
            }
        }
    }

    pub(in crate::engine) fn revoke_all(&mut self, ctx: u32) {
        if self.p2p.common.ended || !self.p2p.common.make_void(ctx) {
            return;
        }
        self.p2p.common.make_void(ctx + 1);
        self.p2p.common.revokes = true;
        if let Some(group) = self.p2p.common.members(ctx).cloned() {
            let me = self.p2p.common.me;
            let lives = |rank| self.p2p.common.peers.down(rank).is_none();
            let neighbors = neighbors(&group, me, lives);
            self.say_revoked(ctx, neighbors);
        }
        self.void_programs(ctx + 1);
        let is_of = |its: u32| its & !1 == ctx;
        self.p2p.void_receives(|want| is_of(want.ctx));
        let sends =
            |slot: &OpSlot| is_of(slot.info.ctx) && slot.state.is_sending() && !slot.in_program;
        for op in self.p2p.common.ops.select(sends) {
            self.p2p.withdraw(op, ErrorKind::Revoked);
        }
        self.p2p.forget_messages(|envelope, _| is_of(envelope.ctx));
    }

    /// Notifies the members next to this rank again after a peer has failed: that peer may have failed before it notified them.
    pub(super) fn spread_around(&mut self, rank: WorldRank) {
        let void: Vec<u32> = self
            .p2p
            .common
            .void()
            .filter(|ctx| ctx.is_multiple_of(2))
            .collect();
        for ctx in void {
            let Some(group) = self
                .p2p
                .common
                .members(ctx)
                .filter(|group| group.contains(rank))
            else {
                continue;
            };
            let lives = |rank| self.p2p.common.peers.down(rank).is_none();
            let next = next_around(group, self.p2p.common.me, lives);
            self.say_revoked(ctx, next);
        }
    }

    fn say_revoked(&mut self, ctx: u32, to: BTreeSet<WorldRank>) {
        for rank in to {
            self.p2p.common.peers.control(rank, &RevokeHeader::new(ctx));
        }
    }
}

/// Returns the world ranks of the living members at distances of powers of two, or of the next ones beyond, on both sides.
fn neighbors(
    group: &RankGroup,
    me: WorldRank,
    lives: impl Fn(WorldRank) -> bool,
) -> BTreeSet<WorldRank> {
    let distances = (0..usize::BITS).map(|bit| 1_usize << bit);
    let distances = distances.take_while(|&distance| distance < group.len());
    let found = distances.flat_map(|distance| beyond(group, me, distance, &lives));
    found.collect()
}

/// Returns the world ranks of the next living members on both sides.
fn next_around(
    group: &RankGroup,
    me: WorldRank,
    lives: impl Fn(WorldRank) -> bool,
) -> BTreeSet<WorldRank> {
    beyond(group, me, 1, &lives).collect()
}

/// Returns the first living member at this distance or beyond it, on each side.
fn beyond(
    group: &RankGroup,
    me: WorldRank,
    distance: usize,
    lives: &impl Fn(WorldRank) -> bool,
) -> impl Iterator<Item = WorldRank> {
    let size = group.len();
    let first = |back: bool| {
        let rank = group.local_of(me)?;
        let places = (distance..size).map(|by| if back { size - by } else { by });
        let mut ranks = places.filter_map(|by| group.world_after(rank, by));
        ranks.find(|&rank| lives(rank))
    };
    [first(false), first(true)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{neighbors, next_around};
    use crate::group::{RankGroup, WorldRank};

    #[test]
    fn all_living_ranks_hear_of_a_revocation_whichever_ranks_are_dead() {
        for size in 1..10_u32 {
            let group = RankGroup::new((0..size).map(|rank| WorldRank(rank * 3 + 1)).collect());
            for dead in 0..1_u32 << size {
                let lives = |world: WorldRank| dead >> (world.0 / 3) & 1 == 0;
                let living = || group.members().filter(|&rank| lives(rank));
                let Some(first) = living().next() else {
                    continue;
                };
                let (mut heard, mut tell) = (BTreeSet::from([first]), vec![first]);
                while let Some(rank) = tell.pop() {
                    let told = neighbors(&group, rank, lives);
                    assert!(next_around(&group, rank, lives).is_subset(&told));
                    assert!(!told.contains(&rank) && told.iter().all(|&rank| lives(rank)));
                    tell.extend(told.into_iter().filter(|&rank| heard.insert(rank)));
                }
                assert!(heard.into_iter().eq(living()));
            }
        }
    }
}
