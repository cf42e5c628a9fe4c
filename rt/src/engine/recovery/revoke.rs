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

use super::RecoveryPart;
use crate::{
    engine::LibraryEvent,
    group::{RankGroup, WorldRank},
    proto::wire::{AbortHeader, RevokeHeader},
};

/// Most reports kept about communicators that this rank is not in yet. The oldest are dropped.
const EARLY_MAX: usize = 1 << 10;

/// Report about a communicator that this rank is not in yet, with its sender.
#[derive(Debug)]
pub(in crate::engine) struct EarlyRevocation {
    ctx: u32,
    pub(in crate::engine) by: WorldRank,
    /// The collective that failed there, or `None` if the application has revoked the communicator.
    pub(in crate::engine) failed: Option<AbortHeader>,
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

    /// Takes the reports about a communicator that came before this rank was in it, those of members.
    pub(in crate::engine) fn take_early_revocations(
        &mut self,
        ctx: u32,
        group: &RankGroup,
    ) -> VecDeque<EarlyRevocation> {
        let Some(state) = self.recovery.get_mut() else {
            return VecDeque::new();
        };
        let (mut news, others) = mem::take(&mut state.early)
            .into_iter()
            .partition::<VecDeque<_>, _>(|early| early.ctx == ctx);
        state.early = others;
        news.retain(|early| group.contains(early.by));
        news
    }

    /// Handles a peer's report that a communicator is revoked. Returns true if the communicator is to be
    /// [revoked](Self::begin_revocation) here too.
    pub(in crate::engine) fn accepts_revocation(
        &mut self,
        rank: WorldRank,
        header: &RevokeHeader,
    ) -> bool {
        let ctx = header.ctx;
        let members = self.common.members(ctx);
        match members.map(|group| group.contains(rank)) {
            Some(true) if ctx.is_multiple_of(2) => return true,
            None if ctx.is_multiple_of(2) => self.keep_early_revocation(ctx, rank, None),
            _ => self.common.refused += 1,
        }
        false
    }

    /// Revokes both contexts of a communicator, and notifies its members. Returns false if it was revoked before.
    pub(in crate::engine) fn begin_revocation(&mut self, ctx: u32) -> bool {
        if self.common.ended || !self.common.make_void(ctx) {
            return false;
        }
        self.common.make_void(ctx + 1);
        let (rank, comm) = (self.common.me, ctx & !1);
        self.common.report(LibraryEvent::Revoked { rank, comm });
        self.announce_revocation(ctx);
        true
    }

    /// Notifies the living neighbors that a communicator is revoked.
    fn announce_revocation(&mut self, ctx: u32) {
        if let Some(group) = self.common.members(ctx).cloned() {
            let me = self.common.me;
            let lives = |rank| self.common.peers.down(rank).is_none();
            let neighbors = neighbors(&group, me, lives);
            self.say_revoked(ctx, neighbors);
        }
    }

    /// Notifies the members next to this rank again after a peer has failed: that peer may have failed before it notified them.
    pub(super) fn spread_around(&mut self, rank: WorldRank) {
        let void: Vec<u32> = self
            .common
            .void()
            .filter(|ctx| ctx.is_multiple_of(2))
            .collect();
        for ctx in void {
            let Some(group) = self
                .common
                .members(ctx)
                .filter(|group| group.contains(rank))
            else {
                continue;
            };
            let lives = |rank| self.common.peers.down(rank).is_none();
            let next = next_around(group, self.common.me, lives);
            self.say_revoked(ctx, next);
        }
    }

    fn say_revoked(&mut self, ctx: u32, to: BTreeSet<WorldRank>) {
        for rank in to {
            self.common.peers.control(rank, &RevokeHeader::new(ctx));
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
