//! Revocation: all operations on a communicator fail, on all its ranks.
//!
//! A rank that learns of a revocation notifies the living members at distances of powers of two, on both sides. A member that
//! has dropped the communicator, or has not made its handle yet, does not know the other members, and answers so. Once a member
//! has failed or answered so, each rank that knows notifies the next member beyond it. So any two living members that are next
//! to each other on the ring notify each other, whichever ranks fail and leave. All members know after about log₂ size messages
//! in a row, and no rank sends more than 2 log₂ size messages, plus two for each member that failed or has no handle, and an
//! answer to each rank that notifies it while it has none itself.

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

/// A revocation that this rank knows of, and which members it has notified. It stays for good, like what is known of a revoked
/// context: any of these members may fail or answer after this rank has left the communicator.
#[derive(Debug)]
pub(super) struct RevocationSpread {
    ctx: u32,
    group: RankGroup,
    notified: BTreeSet<WorldRank>,
    /// Notified members that answered that they do not know the others.
    left: BTreeSet<WorldRank>,
}

impl RevocationSpread {
    fn new(ctx: u32, group: RankGroup) -> Self {
        Self {
            ctx,
            group,
            notified: BTreeSet::new(),
            left: BTreeSet::new(),
        }
    }

    /// Returns the members that are to be notified now.
    fn advance(&mut self, me: WorldRank, lives: impl Fn(WorldRank) -> bool) -> Vec<WorldRank> {
        let Self {
            group,
            notified,
            left,
            ..
        } = self;
        let next = neighbors(group, me, |rank| lives(rank) && !left.contains(&rank));
        next.into_iter()
            .filter(|&rank| notified.insert(rank))
            .collect()
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
        let is_member = members.map(|group| group.contains(rank));
        match (ctx.is_multiple_of(2), header.left, is_member) {
            (true, 1, _) => self.note_left(ctx, rank),
            (true, 0, Some(true)) => return true,
            // A rank that knew before it left has notified others.
            (true, 0, None) if self.common.is_void(ctx) => {}
            // This rank does not know the other members. It may have left, or not have come in yet.
            (true, 0, None) => {
                self.keep_early_revocation(ctx, rank, None);
                self.common.peers.control(rank, &RevokeHeader::left(ctx));
            }
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
        let Some(group) = self.common.members(ctx).cloned() else {
            return;
        };
        let spread = RevocationSpread::new(ctx, group);
        self.recovery.state().spreads.push(spread);
        self.spread(|spread| spread.ctx == ctx);
    }

    /// Notifies the members beyond one that has failed: it may have failed before it notified them.
    pub(super) fn spread_around(&mut self, rank: WorldRank) {
        self.spread(|spread| spread.group.contains(rank));
    }

    /// Notifies the members beyond one that has answered that it does not know the others.
    fn note_left(&mut self, ctx: u32, rank: WorldRank) {
        let spreads = self.recovery.get_mut().map(|state| &mut state.spreads);
        let spread = spreads.and_then(|all| all.iter_mut().find(|spread| spread.ctx == ctx));
        let is_news = spread
            .is_some_and(|spread| spread.notified.contains(&rank) && spread.left.insert(rank));
        if is_news {
            self.spread(|spread| spread.ctx == ctx);
        }
    }

    /// Notifies the members that are next to this rank now in these revocations, and were not before.
    fn spread(&mut self, is_meant: impl Fn(&RevocationSpread) -> bool) {
        let Self { recovery, common } = self;
        let spreads = recovery.get_mut().map(|state| &mut state.spreads);
        for spread in spreads
            .into_iter()
            .flatten()
            .filter(|spread| is_meant(spread))
        {
            let lives = |rank| common.peers.down(rank).is_none();
            for rank in spread.advance(common.me, lives) {
                common.peers.control(rank, &RevokeHeader::new(spread.ctx));
            }
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

    use super::neighbors;
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
                    assert!(!told.contains(&rank) && told.iter().all(|&rank| lives(rank)));
                    tell.extend(told.into_iter().filter(|&rank| heard.insert(rank)));
                }
                assert!(heard.into_iter().eq(living()));
            }
        }
    }
}
