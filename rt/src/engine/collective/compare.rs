//! Comparison of the last collective calls on each communicator, between ranks that are about to leave.
//!
//! The root of a broadcast completes without hearing from any other rank. If two ranks each consider themselves the root of
//! the same broadcast, and call no collective after it, only this comparison shows the difference.
//!
//! A rank that closes its runtime sends its last calls to the member one place behind it. When a rank has received the same calls
//! in one round, it sends its own to a member twice as far away in the next round (dissemination: Hensgen, Finkel, Manber 1988).
//! After ⌈log₂ size⌉ rounds, the calls of each rank are compared with those of all others, directly or through other ranks. A
//! rank that does not close yet takes part as soon as it has called the same number of collectives. A rank that finds a
//! difference revokes the communicator, which notifies all members.
//!
//! Only the last [`CALLS`] calls are compared. If two ranks disagreed in an older one, its messages have arrived meanwhile and
//! have shown the difference.

use std::{
    collections::BTreeMap,
    ops::Range,
    task::{Poll, Waker},
};

use ripstop_fabric::driver::DownCause;

use super::{CollectivePart, disagreements::CallDisagreements};
use crate::{
    engine::commons::{collective_registry::CollectiveFailure, program_events::ProgramEvent},
    error::{Error, ErrorKind},
    group::{CommRank, RankGroup, WorldRank},
    proto::collective_id::CollectiveId,
    proto::wire::{self, HeaderBase, LastCallsHeader, WireKind},
};

/// [`wire::CALLS`] in the type of call numbers.
const CALLS: u32 = 16;
const _: () = assert!(CALLS as usize == wire::CALLS);

/// Maximum number of dropped communicators whose calls are still compared. The oldest are forgotten.
const LEFT_MAX: usize = 64;

/// Messages of peers that are kept: those of all rounds of the compared communicators.
const RECEIVED_MAX: usize = (LEFT_MAX + 1) * ROUNDS_MAX as usize;

/// The context of the collectives of the world.
pub(super) const WORLD: u32 = 1;

/// Rounds in the largest possible communicator.
const ROUNDS_MAX: u32 = u32::BITS;

/// State of the comparisons of one rank.
pub(super) struct CallComparisons {
    /// Number of collectives that this rank has begun on the world. `Some` only while it closes in good order, so that it begins
    /// no others.
    closing: Option<u32>,
    /// Dropped communicators on which this rank has called collectives, by their collectives' context.
    left: BTreeMap<u32, (RankGroup, RecentCalls)>,
    /// The last message of each context and round, and its sender.
    received: BTreeMap<(u32, u32), (WorldRank, LastCallsHeader)>,
    /// The number of calls that this rank has sent in each context and round.
    sent: BTreeMap<(u32, u32), u32>,
}

/// The last calls of one rank on one communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecentCalls {
    /// Number of the next call.
    next: u32,
    /// Halves of signatures, the last call's first. 0 if a signature is not known.
    sigs: [u32; wire::CALLS],
    /// Number of collectives begun on the world, if the rank begins no others.
    closing: Option<u32>,
}

impl RecentCalls {
    /// The calls on a communicator whose collectives are revoked. They differ from no others, and a peer waits for no more.
    const REVOKED: Self = Self {
        next: u32::MAX,
        sigs: [0; wire::CALLS],
        closing: None,
    };

    fn of(header: &LastCallsHeader) -> Self {
        Self {
            next: header.next,
            sigs: header.sigs,
            closing: (header.closing != 0).then_some(header.begun),
        }
    }

    fn header(&self, ctx: u32, round: u32) -> LastCallsHeader {
        LastCallsHeader {
            base: HeaderBase::new(WireKind::LastCalls),
            ctx,
            round,
            next: self.next,
            closing: self.closing.is_some().into(),
            begun: self.closing.unwrap_or_default(),
            sigs: self.sigs,
        }
    }

    /// Returns the half of a call's signature, or 0 if it is not known.
    fn sig(&self, tag: u32) -> u32 {
        let age = self.next.wrapping_sub(tag).wrapping_sub(1);
        let sig = self.sigs.get(age as usize);
        sig.copied().unwrap_or_default()
    }

    /// Returns the numbers of these calls, the oldest first.
    fn tags(&self) -> Range<u32> {
        let first = self.next.saturating_sub(CALLS);
        first..self.next
    }

    /// Returns true if nothing is to be learned from later calls of this rank that `other` could be compared with.
    fn covers(&self, other: &Self) -> bool {
        self.closing.is_some() || self.next >= other.next
    }

    /// Returns the first call with two different known signatures.
    fn difference(&self, other: &Self) -> Option<u32> {
        self.tags().find(|tag| {
            let (ours, theirs) = (self.sig(*tag), other.sig(*tag));
            ours != theirs && ours != 0 && theirs != 0
        })
    }

    /// Returns the first call on the world that one of two closing ranks lacks.
    fn lack(&self, other: &Self) -> Option<u32> {
        let (ours, theirs) = self.closing.zip(other.closing)?;
        let tag = ours.min(theirs);
        // Collectives that create communicators and windows have no signature here. They fail by themselves if only some ranks
        // call them, so do not report them.
        let is_known = self.sig(tag) != 0 || other.sig(tag) != 0;
        (ours != theirs && is_known).then_some(tag)
    }
}

/// Folds a signature into half its length. Never returns 0.
fn half(sig: u64) -> u32 {
    (wire::low_half(sig) ^ wire::low_half(sig >> 32)).max(1)
}

impl CallComparisons {
    pub(super) const fn new() -> Self {
        Self {
            closing: None,
            left: BTreeMap::new(),
            received: BTreeMap::new(),
            sent: BTreeMap::new(),
        }
    }

    /// Returns true while this rank closes in good order.
    pub(super) const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Returns the members of a dropped communicator on which this rank has called collectives.
    pub(super) fn group(&self, ctx: u32) -> Option<&RankGroup> {
        self.left.get(&ctx).map(|(group, _)| group)
    }
}

/// What a comparison of calls has found.
enum CallComparison {
    /// Calls of another rank have still to come.
    Incomplete,
    /// From each round, the calls are the same, their sender is down, or the collectives are revoked.
    Complete,
    /// Two ranks called different collectives.
    Different(CollectiveId, CollectiveFailure),
}

impl CollectivePart<'_> {
    /// Begins to compare calls, as `Engine::begin_comparison` says.
    pub(in crate::engine) fn begin_comparison(&mut self, closing: Option<u32>) -> bool {
        let has_begun = closing.is_some_and(|begun| begun > 0) && self.p2p.common.peers.size() > 1;
        if !has_begun && self.disagreements().compared_contexts().is_empty() {
            return false;
        }
        self.programs.compared.closing = closing;
        self.compare_again();
        true
    }

    /// Notifies the peers again. A peer that does not close yet may have called the same number of collectives meanwhile.
    pub(in crate::engine) fn compare_again(&mut self) {
        for ctx in self.disagreements().compared_contexts() {
            let sent = &mut self.programs.compared.sent;
            sent.retain(|(of, _), _| *of != ctx);
            self.compare(ctx);
        }
    }

    /// Compares the calls received for this communicator with those of this rank, and revokes its collectives if they differ.
    /// Returns true if no more has to be received.
    pub(super) fn compare(&mut self, ctx: u32) -> bool {
        match self.disagreements().compare_calls(ctx) {
            CallComparison::Incomplete => false,
            CallComparison::Complete => true,
            CallComparison::Different(id, why) => {
                self.revoke(id, why);
                true
            }
        }
    }

    /// Waits for the last calls of the other ranks. Ready when those of each round have arrived or their sender is down.
    pub(crate) fn poll_compared(&mut self, waker: &Waker) -> Poll<()> {
        for ctx in self.disagreements().compared_contexts() {
            let polled = if self.compare(ctx) {
                self.disagreements().poll_descriptions(ctx, waker)
            } else {
                self.disagreements().wait_for_descriptions(waker)
            };
            if polled.is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl CallDisagreements<'_> {
    /// Returns the contexts on which this rank, or a leaving peer, has called collectives.
    fn compared_contexts(&self) -> Vec<u32> {
        let state = &*self.programs;
        let live = self.common.groups.contexts();
        let live = live.filter(|ctx| !ctx.is_multiple_of(2) && self.common.calls.next(*ctx) > 0);
        let left = state.compared.left.keys().copied();
        let named = state.compared.received.keys().map(|(ctx, _)| *ctx);
        // Collectives whose futures were never polled have no record, but are included in this count.
        let world = state.compared.closing.filter(|begun| *begun > 0);
        let world = world.map(|_| WORLD);
        let mut all: Vec<u32> = live.chain(left).chain(named).chain(world).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|ctx| self.group_of(*ctx).is_some_and(|group| group.len() > 1));
        // The world, and the latest others.
        let first = usize::from(all.first() == Some(&WORLD));
        let surplus = all.len().saturating_sub(first + LEFT_MAX);
        all.drain(first..first + surplus);
        all
    }

    /// Returns the last calls of this rank on a communicator.
    fn last_calls(&self, ctx: u32) -> RecentCalls {
        let state = &*self.programs;
        let left = state.compared.left.get(&ctx);
        let left = left.map_or_else(RecentCalls::default, |(_, calls)| *calls);
        let next = self.common.calls.next(ctx).max(left.next);
        let closing = state.compared.closing;
        let mut recent = RecentCalls {
            next,
            closing,
            ..left
        };
        for tag in recent.tags() {
            let age = (next - tag - 1) as usize;
            let id = CollectiveId::new(ctx, tag);
            let running = self.common.calls.running(id).map(|running| running.sig);
            let known = running.or_else(|| self.common.calls.sig_of_over(id));
            recent.sigs[age] = known.map_or_else(|| left.sig(tag), half);
        }
        recent
    }

    /// Keeps the last calls on a communicator that this rank drops. They are compared when it leaves.
    pub(in crate::engine) fn keep_calls(&mut self, ctx: u32, group: RankGroup) {
        let is_compared = !ctx.is_multiple_of(2) && group.len() > 1;
        if !is_compared || self.common.calls.next(ctx) == 0 {
            return;
        }
        let recent = self.last_calls(ctx);
        let left = &mut self.programs.compared.left;
        left.insert(ctx, (group, recent));
        if left.len() > LEFT_MAX {
            // Never drop the world's calls: all ranks rely on them.
            let oldest = left.keys().copied().find(|ctx| *ctx > WORLD);
            oldest.map(|ctx| left.remove(&ctx));
        }
    }

    /// Compares the calls received for this communicator with those of this rank, and sends these in each round that is due.
    fn compare_calls(&mut self, ctx: u32) -> CallComparison {
        let me = self.common.me;
        let Some(group) = self.group_of(ctx) else {
            return CallComparison::Complete;
        };
        let Some(place) = group.local_of(me) else {
            return CallComparison::Complete;
        };
        let is_revoked = self.common.calls.revocations.is_revoked(ctx);
        let ours = if is_revoked {
            RecentCalls::REVOKED
        } else {
            self.last_calls(ctx)
        };
        let may_lack = ctx == WORLD && !self.has_failed_member(&group);
        for round in 0..rounds(group.len()) {
            let (from, to) = (before(&group, place, round), behind(&group, place, round));
            let (Some(from), Some(to)) = (from, to) else {
                return CallComparison::Complete;
            };
            self.send_calls(&ours.header(ctx, round), to);
            if is_revoked {
                continue; // the peers wait for this in all rounds, and this rank for nothing
            }
            let received = self.programs.compared.received.get(&(ctx, round));
            let theirs = received.filter(|(rank, _)| *rank == from);
            let theirs = theirs.map(|(_, header)| RecentCalls::of(header));
            let lack = |theirs| ours.lack(theirs).filter(|_| may_lack);
            let apart = |theirs| ours.difference(theirs).or_else(|| lack(theirs));
            if let Some(tag) = theirs.as_ref().and_then(apart) {
                let why = CollectiveFailure::mismatch(from, me);
                return CallComparison::Different(CollectiveId::new(ctx, tag), why);
            }
            let is_enough = theirs.is_some_and(|theirs| theirs.covers(&ours));
            if !is_enough && self.common.peers.down(from).is_none() {
                return CallComparison::Incomplete;
            }
        }
        CallComparison::Complete
    }

    /// Returns true if a member has failed. Survivors may have gone on at different collectives.
    fn has_failed_member(&self, group: &RankGroup) -> bool {
        let failed = |member: WorldRank| self.common.peers.down(member) == Some(DownCause::Failed);
        self.common.peers.downs() > 0 && group.members().any(failed)
    }

    /// Sends the last calls of this rank, unless the peer has them already.
    fn send_calls(&mut self, header: &LastCallsHeader, to: WorldRank) {
        let sent = &mut self.programs.compared.sent;
        let before = sent.insert((header.ctx, header.round), header.next);
        if before != Some(header.next) && self.common.peers.down(to).is_none() {
            self.common.peers.control(to, header);
        }
    }

    /// Handles the last calls of a peer that leaves or takes part in a comparison.
    pub(in crate::engine) fn handle_last_calls(
        &mut self,
        rank: WorldRank,
        header: &LastCallsHeader,
    ) {
        if header.ctx.is_multiple_of(2) || header.round >= ROUNDS_MAX {
            self.common.refused += 1;
            return;
        }
        let is_expected = match self.group_of(header.ctx) {
            Some(group) => {
                let place = group.local_of(self.common.me);
                let from = place.and_then(|place| before(&group, place, header.round));
                from == Some(rank) && header.round < rounds(group.len())
            }
            // This rank does not have the communicator yet. When it has dropped it, nothing is known of the calls any more.
            None => !self.common.has_left(header.ctx & !1),
        };
        if !is_expected {
            return;
        }
        let is_revoked = self.common.calls.revocations.is_revoked(header.ctx);
        if is_revoked {
            self.common.tell_revoked(rank, header.ctx);
        }
        let compared = &mut self.programs.compared;
        let received = &mut compared.received;
        received.insert((header.ctx, header.round), (rank, *header));
        if received.len() > RECEIVED_MAX {
            received.pop_last();
        }
        let closing = compared.closing;
        if is_revoked || closing.is_some() || self.last_calls(header.ctx).next >= header.next {
            // Compare later: news of a difference may have arrived right behind this message. Its sender may have left since, so
            // that it could not send the description of its call any more.
            self.common
                .program_events
                .push(ProgramEvent::LastCalls(header.ctx));
        }
    }

    /// Returns true if this rank knows that two ranks called different collectives.
    pub(crate) fn knows_of_mismatch(&self) -> bool {
        !self.common.calls.revocations.mismatches().is_empty()
    }

    /// Returns the error that two ranks called different collectives, if no call of this rank has returned it. The caller must
    /// report it.
    pub(crate) fn take_untold_mismatch(&mut self) -> Option<Error> {
        let mut contexts = self.compared_contexts().into_iter();
        let ctx = contexts.find(|ctx| self.common.calls.revocations.take_untold_mismatch(*ctx))?;
        let (ranks, calls) = self.disagreement(ctx)?;
        let group = self.group_of(ctx)?;
        let [rank, other] = ranks.map(|world| {
            group
                .local_of(world)
                .map_or(world.0 as usize, |rank| rank.0)
        });
        let kind = ErrorKind::Mismatch { rank, other, calls };
        let mut error = Error::new("close", kind).of_group(&group);
        error.comm = Some(ctx & !1);
        Some(error)
    }
}

/// Returns the rank that sends to the member at `place` in a round.
fn before(group: &RankGroup, place: CommRank, round: u32) -> Option<WorldRank> {
    group.world_before(place, distance(round) % group.len())
}

/// Returns the rank that the member at `place` sends to in a round.
fn behind(group: &RankGroup, place: CommRank, round: u32) -> Option<WorldRank> {
    group.world_after(place, distance(round))
}

/// Returns how many places lie between sender and receiver.
const fn distance(round: u32) -> usize {
    1 << round
}

/// Returns the number of rounds among `size` ranks.
const fn rounds(size: usize) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::{CommRank, RankGroup, RecentCalls, behind, half, rounds, wire};

    /// Returns the window of a rank with these calls, the first call first.
    fn calls(sigs: &[u64]) -> RecentCalls {
        let mut calls = RecentCalls {
            next: u32::try_from(sigs.len()).expect("a few"),
            ..RecentCalls::default()
        };
        for (kept, sig) in calls.sigs.iter_mut().zip(sigs.iter().rev()) {
            *kept = half(*sig);
        }
        calls
    }

    #[test]
    fn the_first_different_call_is_found() {
        let ours = calls(&[1, 2, 3, 4]);
        for same in [&[1, 2, 3, 4][..], &[1, 2], &[], &[1, 2, 3, 4, 5]] {
            assert_eq!(ours.difference(&calls(same)), None);
        }
        assert_eq!(ours.difference(&calls(&[1, 9, 9, 4])), Some(1));
        assert_eq!(ours.difference(&calls(&[1, 9])), Some(1));
        assert_eq!(calls(&[1, 9]).difference(&ours), Some(1));
    }

    #[test]
    fn calls_that_one_rank_does_not_know_any_more_are_no_difference() {
        let all: Vec<u64> = (1..=40).collect();
        let mut others = all.clone();
        others[40 - wire::CALLS - 1] = 99;
        assert_eq!(calls(&all).difference(&calls(&others)), None);
        others[40 - wire::CALLS] = 99;
        let first = u32::try_from(40 - wire::CALLS).ok();
        assert_eq!(calls(&all).difference(&calls(&others)), first);
        let mut gaps = calls(&all);
        gaps.sigs.fill(0);
        assert_eq!(gaps.difference(&calls(&others)), None);
    }

    #[test]
    fn a_forged_number_of_calls_is_no_panic() {
        let ours = calls(&[1, 2, 3]);
        for next in [0, 1, 20, u32::MAX - 1, u32::MAX] {
            let found = ours.difference(&RecentCalls { next, ..ours });
            assert!(found.is_none_or(|tag| tag < 3), "{next}: {found:?}");
        }
    }

    #[test]
    fn a_call_that_one_of_two_closing_ranks_lacks_is_found_if_it_is_known() {
        let closing = |sigs: &[u64], begun| RecentCalls {
            closing: Some(begun),
            ..calls(sigs)
        };
        let ours = closing(&[1, 2, 3], 3);
        assert_eq!(ours.lack(&closing(&[1, 2], 2)), Some(2));
        assert_eq!(closing(&[1, 2], 2).lack(&ours), Some(2));
        assert_eq!(ours.lack(&closing(&[1, 2], 3)), None, "never awaited");
        assert_eq!(ours.lack(&calls(&[1, 2])), None, "it may call more");
        assert_eq!(
            ours.lack(&closing(&[1, 2, 3], 4)),
            None,
            "a communicator made"
        );
        assert!(ours.covers(&closing(&[1, 2, 3, 4], 4)) && !calls(&[1]).covers(&ours));
        assert!(RecentCalls::REVOKED.covers(&ours) && ours.lack(&RecentCalls::REVOKED).is_none());
    }

    #[test]
    fn each_rank_hears_of_all_others_in_the_rounds() {
        for size in 1..40_usize {
            let mut known = vec![0_u64; size];
            (0..size).for_each(|rank| known[rank] = 1 << rank);
            let group = RankGroup::First(u32::try_from(size).expect("a few"));
            for round in 0..rounds(size) {
                let before = known.clone();
                for (rank, its) in before.iter().enumerate() {
                    let to = behind(&group, CommRank(rank), round).expect("a member");
                    known[to.0 as usize] |= its;
                }
            }
            assert!(
                known
                    .iter()
                    .all(|known| known.count_ones() as usize == size)
            );
        }
    }
}
