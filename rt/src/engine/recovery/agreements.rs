//! Agreements: one [`AgreeProtocol`] for each communicator, and its messages as headers.
//!
//! A rank that has dropped a communicator still answers for it, because another rank may not know yet what was decided. A rank
//! that waits for a peer which never calls again [asks](crate::engine::collective) that peer, and continues without it.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    panic::Location,
    sync::Arc,
    task::{Poll, Waker},
};

use super::{
    LazyRecovery, RecoveryPart,
    agree_calls::{AgreeCalls, CommCreation},
    agree_headers::{headers, read},
};
use crate::{
    contexts::ContextIds,
    engine::pending_ops::PendingOpReport,
    error::ErrorKind,
    group::{CommRank, RankGroup, WorldRank},
    proto::{
        agree::{AgreeProtocol, AgreeValue, RankSet},
        collective_id::CollectiveId,
        wire::{self, ProgramHeader, WireKind},
    },
};

/// Most communicators that this rank has left and still answers for. Beyond that, the oldest one not in use is forgotten.
const LEFT_MAX: usize = 64;

/// Most headers kept per peer for communicators that this rank is not in yet. Enough for all that a rank sends before it gets an
/// answer, on the few communicators that are created at a time.
const EARLY_MAX: usize = 64;

/// Names an agreement: the context of its communicator, and the number of this rank's call there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AgreementId {
    pub(crate) context: u32,
    pub(crate) call: u32,
}

impl AgreementId {
    pub(crate) const fn new(context: u32, call: u32) -> Self {
        Self { context, call }
    }
}

#[derive(Default)]
pub(super) struct CommAgreements {
    by_ctx: BTreeMap<u32, CommAgreement>,
    /// Communicators that this rank has left, the oldest first.
    left: VecDeque<u32>,
    /// Headers for communicators that this rank is not in yet, by sender.
    early: BTreeMap<WorldRank, VecDeque<wire::AgreeHeader>>,
    /// Communicators that were created although no future of this rank waits for them.
    unwanted: Vec<(u32, RankGroup)>,
}

/// The agreements of one communicator.
struct CommAgreement {
    group: RankGroup,
    machine: AgreeProtocol,
    /// Sets of ranks received in part, by member; the rest of each is still to come.
    parts: BTreeMap<CommRank, RankSet>,
    calls: AgreeCalls,
    /// Last round in which this rank has asked the ranks it waits for whether they will call.
    asked: Option<u32>,
}

impl CommAgreements {
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        let all = self.by_ctx.values_mut();
        all.flat_map(|agreement| agreement.calls.take_wakers())
    }

    /// Keeps a header for later. Drops the oldest at the limit, which may be for a communicator that this rank has forgotten.
    fn keep(&mut self, rank: WorldRank, header: wire::AgreeHeader) {
        let early = self.early.entry(rank).or_default();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(header);
    }

    /// Removes the headers kept for a communicator. Returns them with their senders, in order.
    fn take_early(&mut self, ctx: u32) -> Vec<(WorldRank, wire::AgreeHeader)> {
        let mut taken = Vec::new();
        self.early.retain(|&rank, headers| {
            taken.extend(
                headers
                    .iter()
                    .filter(|header| header.ctx == ctx)
                    .map(|header| (rank, *header)),
            );
            headers.retain(|header| header.ctx != ctx);
            !headers.is_empty()
        });
        taken
    }

    fn leave(&mut self, ctx: u32) {
        if !self.by_ctx.contains_key(&ctx) {
            return;
        }
        self.left.push_back(ctx);
        if self.left.len() <= LEFT_MAX {
            return;
        }
        // Keep a communicator whose agreement is in progress, because other ranks wait for this rank's messages.
        let by_ctx = &self.by_ctx;
        let is_over = |ctx: &u32| by_ctx.get(ctx).is_none_or(|it| !it.machine.is_in_flight());
        if let Some(oldest) = self.left.iter().position(is_over)
            && let Some(gone) = self.left.remove(oldest)
        {
            self.by_ctx.remove(&gone);
        }
    }
}

/// Calls of the application.
impl RecoveryPart<'_> {
    /// Begins this rank's next agreement on a communicator that it is in. Returns the number of the call.
    pub(in crate::engine) fn begin_agreement(
        &mut self,
        ctx: u32,
        flag: bool,
        number: u32,
        at: &'static Location<'static>,
    ) -> u32 {
        let value = AgreeValue {
            flag,
            number,
            down: RankSet::default(),
        };
        self.agree(ctx, value, None, at)
    }

    /// Begins to create a communicator of the surviving ranks. The last decision has its number, or says that there is none.
    pub(in crate::engine) fn begin_shrink(
        &mut self,
        ctx: u32,
        contexts: &Arc<ContextIds>,
        at: &'static Location<'static>,
    ) -> u32 {
        let (making, value) = CommCreation::new(contexts);
        self.agree(ctx, value, Some(making), at)
    }

    fn agree(
        &mut self,
        ctx: u32,
        value: AgreeValue,
        making: Option<CommCreation>,
        at: &'static Location<'static>,
    ) -> u32 {
        let ends = self.common.begins_no_more();
        let Some(agreement) = self.agreement(ctx) else {
            unreachable!("a handle of the communicator calls, so this rank is in it");
        };
        let CommAgreement { machine, calls, .. } = agreement;
        if ends {
            return calls.take_number(); // peers may have been notified that this rank does not call
        }
        let call = calls.begin(machine, value, making, at);
        self.say_agreed(ctx);
        call
    }

    pub(crate) fn poll_agreed(
        &mut self,
        id: AgreementId,
        waker: &Waker,
    ) -> Poll<Result<AgreeValue, ErrorKind>> {
        let Self {
            recovery, common, ..
        } = self;
        let agreement = recovery.agreement(id.context);
        let polled = agreement.and_then(|agreement| agreement.calls.poll(id.call, waker));
        let Some((polled, other)) = polled else {
            return Poll::Ready(Err(ErrorKind::Closed));
        };
        common.wakers.extend(other);
        match polled {
            Poll::Pending if common.closing => Poll::Ready(Err(ErrorKind::Closed)),
            polled => polled.map(Ok),
        }
    }

    /// Drops the future of a call. The agreement continues.
    pub(crate) fn forget_agreed(&mut self, id: AgreementId) {
        let agreement = self.recovery.agreement(id.context);
        let waker = agreement.and_then(|agreement| agreement.calls.leave(id.call));
        self.common.wakers.extend(waker);
        self.note_unwanted(id.context);
    }
}

impl RecoveryPart<'_> {
    /// Returns the communicators that were created although no future of this rank waits for them: their contexts and members.
    pub(in crate::engine) fn take_unwanted(&mut self) -> Vec<(u32, RankGroup)> {
        let state = self.recovery.get_mut();
        state.map_or_else(Vec::new, |state| mem::take(&mut state.agreements.unwanted))
    }

    /// Notes the communicators that this agreement created and no future of this rank waits for.
    fn note_unwanted(&mut self, ctx: u32) {
        let me = self.common.me;
        let Some(state) = self.recovery.get_mut() else {
            return;
        };
        let CommAgreements {
            by_ctx, unwanted, ..
        } = &mut state.agreements;
        let Some(agreement) = by_ctx.get_mut(&ctx) else {
            return;
        };
        for AgreeValue { down, number, .. } in agreement.calls.take_unwanted() {
            let made = survivors(&agreement.group, &down);
            if made.contains(me) {
                unwanted.push((number, made)); // otherwise the others continue without this rank
            }
        }
    }
}

/// Handlers of what peers and the driver report.
impl RecoveryPart<'_> {
    pub(in crate::engine) fn handle_agree(&mut self, rank: WorldRank, header: &wire::AgreeHeader) {
        let ctx = header.ctx;
        let makes_sense = if !ctx.is_multiple_of(2) {
            false
        } else if let Some(agreement) = self.agreement(ctx) {
            agreement.handle(rank, header).is_some()
        } else {
            if !self.common.has_left(ctx) {
                self.recovery.state().agreements.keep(rank, *header);
            }
            true
        };
        self.common.refused += u64::from(!makes_sense);
        self.say_agreed(ctx);
    }

    /// Continues agreements without a peer that is down.
    pub(super) fn agree_without(&mut self, rank: WorldRank) {
        let Some(state) = self.recovery.get_mut() else {
            return;
        };
        state.agreements.early.remove(&rank);
        let concerned = state.agreements.by_ctx.iter_mut();
        let concerned: Vec<u32> = concerned
            .filter_map(|(&ctx, agreement)| agreement.lose(rank).then_some(ctx))
            .collect();
        for ctx in concerned {
            self.say_agreed(ctx);
        }
    }

    /// Asks the ranks for which agreements wait whether they will ever call. If `once`, skips agreements that have asked in this
    /// round. Returns true if any rank was asked.
    pub(in crate::engine) fn ask_agreed(&mut self, once: bool) -> bool {
        let Self {
            recovery, common, ..
        } = self;
        let mut asked = false;
        for (ctx, agreement) in recovery.agreements() {
            let round = agreement.machine.round();
            let before = agreement.asked.replace(round);
            if once && before == Some(round) {
                continue;
            }
            let ask = ProgramHeader::new(WireKind::StallProbe, CollectiveId::new(*ctx, round), 0);
            for rank in agreement.awaited() {
                common.peers.control(rank, &ask);
                asked = true;
            }
        }
        asked
    }

    /// Answers a peer that waits for this rank in an agreement.
    pub(in crate::engine) fn handle_ask_agreed(&mut self, rank: WorldRank, header: &ProgramHeader) {
        let mut agreement = self.recovery.agreement(header.ctx);
        let reminded = |it: &mut CommAgreement| {
            let rank = it.group.local_of(rank);
            rank.is_some_and(|rank| it.machine.remind(rank.0, header.tag))
        };
        if agreement.as_deref_mut().is_some_and(reminded) {
            return self.say_agreed(header.ctx);
        }
        let calls = agreement.is_some_and(|it| it.machine.is_in_flight());
        let stays =
            self.common.leaving && self.common.promised == 0 || self.common.is_kept_by_sends();
        if !calls && (self.common.has_left(header.ctx) || stays) {
            let id = header.collective_id();
            self.common.peers.control(
                rank,
                &ProgramHeader::new(WireKind::ProgramDone, id, header.sig),
            );
        }
    }

    /// Handles a peer that makes no more calls on this communicator: it counts as down there.
    pub(in crate::engine) fn handle_over_agreed(
        &mut self,
        rank: WorldRank,
        header: &ProgramHeader,
    ) {
        let agreement = self.recovery.agreement(header.ctx);
        let waits = |it: &&mut CommAgreement| {
            it.machine.round() == header.tag && it.awaited().any(|awaited| awaited == rank)
        };
        if agreement
            .filter(waits)
            .is_some_and(|agreement| agreement.lose(rank))
        {
            self.say_agreed(header.ctx);
        }
    }

    /// Enters a communicator, maybe again, and handles the headers that came early.
    pub(in crate::engine) fn enter_agreements(&mut self, ctx: u32) {
        let Some(state) = self.recovery.get_mut() else {
            return;
        };
        state.agreements.left.retain(|left| *left != ctx);
        for (rank, header) in state.agreements.take_early(ctx) {
            self.handle_agree(rank, &header);
        }
    }

    /// Leaves a communicator whose last handle was dropped.
    pub(in crate::engine) fn leave_agreements(&mut self, ctx: u32) {
        if let Some(state) = self.recovery.get_mut() {
            state.agreements.leave(ctx);
        }
    }

    /// Returns the agreement of a communicator that this rank is or was in. Created at the first use.
    fn agreement(&mut self, ctx: u32) -> Option<&mut CommAgreement> {
        if self.recovery.agreement(ctx).is_none() {
            let group = self.common.members(ctx)?.clone();
            let me = group.local_of(self.common.me)?;
            let mut down = RankSet::default();
            for (rank, member) in group.members().enumerate() {
                if self.common.peers.down(member).is_some() {
                    down.insert(rank);
                }
            }
            let agreement = CommAgreement {
                machine: AgreeProtocol::new(me.0, group.len(), down),
                group,
                parts: BTreeMap::new(),
                calls: AgreeCalls::default(),
                asked: None,
            };
            self.recovery
                .state()
                .agreements
                .by_ctx
                .insert(ctx, agreement);
        }
        self.recovery.agreement(ctx)
    }

    /// Sends the messages that are due, and wakes the futures whose call is decided.
    fn say_agreed(&mut self, ctx: u32) {
        let Self {
            recovery, common, ..
        } = self;
        let Some(agreement) = recovery.agreement(ctx) else {
            return;
        };
        let CommAgreement { machine, calls, .. } = agreement;
        while let Some((round, value)) = machine.poll_decided() {
            common.wakers.extend(calls.decided(machine, round, value));
        }
        while let Some(outgoing) = machine.poll_message() {
            let Some(to) = agreement.group.world_of(CommRank(outgoing.to)) else {
                continue;
            };
            for header in headers(ctx, &outgoing) {
                common.peers.control(to, &header);
            }
        }
        common.awaited_peers_changed |= machine.is_in_flight(); // the agreement may wait for other ranks than before
        self.note_unwanted(ctx);
    }
}

/// Returns the group of the members that are not down.
pub(crate) fn survivors(group: &RankGroup, down: &RankSet) -> RankGroup {
    let left = group.ranks().filter(|rank| !down.contains(rank.0));
    RankGroup::new(left.filter_map(|rank| group.world_of(rank)).collect())
}

impl LazyRecovery {
    /// Returns the world ranks for which agreements wait.
    pub(in crate::engine) fn awaited_agreed(&self) -> impl Iterator<Item = WorldRank> {
        let all = self.all_agreements();
        all.flat_map(|(_, agreement)| agreement.awaited())
    }

    /// Returns the agreements for which futures wait, with their numbers on their communicators.
    pub(in crate::engine) fn waiting_agreed(&self) -> impl Iterator<Item = (u32, PendingOpReport)> {
        self.all_agreements().flat_map(|(ctx, agreement)| {
            agreement.calls.open().map(move |(number, at)| {
                let report = PendingOpReport {
                    what: "agree",
                    ctx,
                    peer: None,
                    tag: None,
                    at,
                };
                (number, report)
            })
        })
    }

    fn all_agreements(&self) -> impl Iterator<Item = (u32, &CommAgreement)> {
        let state = self.get().into_iter();
        let all = state.flat_map(|state| &state.agreements.by_ctx);
        all.map(|(ctx, agreement)| (*ctx, agreement))
    }

    /// Returns true if any agreement is in progress.
    #[inline]
    pub(in crate::engine) fn is_agreeing(&self) -> bool {
        self.get().is_some() && self.awaited_agreed().next().is_some()
    }

    fn agreement(&mut self, ctx: u32) -> Option<&mut CommAgreement> {
        self.get_mut()?.agreements.by_ctx.get_mut(&ctx)
    }

    fn agreements(&mut self) -> impl Iterator<Item = (&u32, &mut CommAgreement)> {
        let state = self.get_mut().into_iter();
        state.flat_map(|state| &mut state.agreements.by_ctx)
    }
}

impl CommAgreement {
    /// Returns the world ranks for which this agreement waits.
    fn awaited(&self) -> impl Iterator<Item = WorldRank> {
        let awaited = self.machine.awaited();
        awaited.filter_map(|rank| self.group.world_of(CommRank(rank)))
    }

    /// Handles a header. Returns `None` if it makes no sense.
    fn handle(&mut self, rank: WorldRank, header: &wire::AgreeHeader) -> Option<()> {
        let from = self.group.local_of(rank)?;
        let at = header.at as usize;
        let mut said = RankSet::default();
        let words = self.group.len().div_ceil(64).checked_sub(at)?;
        if header.down.iter().skip(words).any(|word| *word != 0) {
            return None;
        }
        said.join_words(at, &header.down);
        if let Some(before) = self.parts.remove(&from) {
            said.join(&before);
        }
        if header.more != 0 {
            self.parts.insert(from, said);
            return Some(());
        }
        let say = read(header, said)?;
        self.machine.handle(from.0, header.round, say).then_some(())
    }

    /// Continues without a rank. Returns true if that rank was a member.
    fn lose(&mut self, rank: WorldRank) -> bool {
        let Some(rank) = self.group.local_of(rank) else {
            return false;
        };
        self.parts.remove(&rank);
        self.machine.handle_down(rank.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ripstop_fabric::random::SeededRandom;

    use super::{
        AgreeCalls, AgreeProtocol, AgreeValue, CommAgreement, RankSet, WorldRank, headers,
    };
    use crate::{
        group::RankGroup,
        proto::agree::{AgreeMessage, AgreeOutMessage},
    };

    #[test]
    fn what_is_said_of_many_dead_ranks_comes_in_parts_and_is_whole_again() {
        let mut random = SeededRandom::new(1);
        for size in [2, 640, 641, 5_000] {
            let mut agreement = CommAgreement {
                group: RankGroup::First(size),
                machine: AgreeProtocol::new(1, size as usize, RankSet::default()),
                parts: BTreeMap::new(),
                calls: AgreeCalls::default(),
                asked: None,
            };
            let mut down = RankSet::default();
            for _ in 0..random.within(0..20) {
                let rank = random.within(2..u64::from(size.max(3)));
                down.insert(usize::try_from(rank).unwrap());
            }
            let down = if size == 2 { RankSet::default() } else { down };
            let value = AgreeValue {
                flag: true,
                number: 7,
                down,
            };
            let outgoing = AgreeOutMessage {
                to: 1,
                round: 0,
                message: AgreeMessage::Decide(value.clone()),
            };
            agreement.machine.begin(value.clone());
            for header in headers(4, &outgoing) {
                assert!(agreement.machine.poll_decided().is_none());
                assert_eq!(agreement.handle(WorldRank(0), &header), Some(()));
            }
            assert_eq!(agreement.machine.poll_decided(), Some((0, value)));
        }
    }
}
