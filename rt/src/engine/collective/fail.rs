//! Fails collectives: on all ranks, with one reason, together with all later ones on the communicator.
//!
//! A rank that learns of a failed collective notifies the ranks at distances that are powers of two, once. So all ranks know
//! after ⌈log₂ size⌉ consecutive messages, and no rank sends more than 2⌈log₂ size⌉. At least ⌈log₂ size⌉ ranks must fail
//! before a survivor misses the news.

use std::collections::BTreeSet;

use ripstop_fabric::driver::DownCause;

use super::{BorrowedCall, CollectivePart};
use crate::{
    engine::{
        commons::collective_registry::{CollectiveFailure, RunningCollective, is_before},
        point_to_point::message::{MessageBody, StoredBody},
    },
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::OpState,
    proto::collective_id::CollectiveId,
    proto::{
        matching::{MessageEnvelope, RecvPattern, UnexpectedHandle},
        wire::{AbortHeader, OpId},
    },
};

/// What became of a peer's report that a collective has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum AbortResult {
    Handled,
    /// This rank is not in the communicator yet.
    UnknownContext,
}

impl CollectivePart<'_> {
    /// Forgets the collectives of a communicator whose last handle was dropped.
    pub(in crate::engine) fn forget_programs(&mut self, ctx: u32) {
        let common = &mut self.p2p.common;
        // The context of collectives is odd: that of the communicator's messages, plus one.
        common
            .calls
            .forget(ctx, |its| common.groups.has_left(its & !1));
    }

    /// Returns the reason why a collective cannot begin, if there is one. A collective that has begun by collective slots
    /// continues in a closing runtime, because peers wait for it.
    pub(super) fn begin_error(
        &self,
        call: &BorrowedCall<'_>,
        has_begun: bool,
    ) -> Option<ErrorKind> {
        if !has_begun && self.p2p.common.begins_no_more() {
            return Some(ErrorKind::Closed);
        }
        let id = call.id;
        if let Some(kind) = self.p2p.common.calls.revocations.kind(id) {
            return Some(kind);
        }
        if self.p2p.common.peers.downs() > 0 {
            let failed =
                |member: &WorldRank| self.p2p.common.peers.down(*member) == Some(DownCause::Failed);
            if let Some(member) = call.group.members().find(failed) {
                return Some(CollectiveFailure::Failed(member).kind());
            }
        }
        if let Some(stranger) = self.p2p.common.calls.mismatched_asker(id, call.sig)
            && call.group.contains(stranger)
        {
            return Some(self.mismatch_with(stranger));
        }
        if !self.p2p.common.calls.early.may_have_other(id, call.sig) {
            return None;
        }
        let stranger = self
            .p2p
            .tables()
            .mismatched_sender(id.context, id.sequence, call.sig)?;
        Some(self.mismatch_with(stranger))
    }

    /// Fails a program, here and on all other ranks.
    pub(super) fn fail(&mut self, index: u32, kind: ErrorKind) {
        let me = self.p2p.common.me;
        let fails = self.programs.get(index).filter(|run| run.failed.is_none());
        let Some(id) = fails.map(|run| run.id()) else {
            return;
        };
        let why = CollectiveFailure::of(&kind, me);
        let is_awaited = self.is_awaited(index);
        let kind = if is_awaited {
            self.p2p.common.calls.revocations.report(id, kind)
        } else {
            kind
        };
        let Some(run) = self.programs.get(index) else {
            return;
        };
        run.failed = Some(kind);
        run.take_waits();
        let ops = run.ops();
        self.p2p.common.mark_dirty(index);
        for op in ops {
            self.cancel(op);
        }
        self.revoke(id, why);
        if is_awaited {
            self.p2p.common.calls.revocations.was_told(id);
        }
        self.disagreements().send_own_description(id);
    }

    /// Returns true if a future takes the outcome of this program.
    fn is_awaited(&mut self, index: u32) -> bool {
        let buffers = self.programs.get(index).map(|run| run.buffers);
        buffers.is_some_and(|buffers| !self.p2p.common.ops.live(buffers).orphan)
    }

    pub(super) fn fail_mismatched(&mut self, index: u32, peer: WorldRank) {
        let kind = self.mismatch_with(peer);
        self.fail(index, kind);
    }

    pub(super) fn mismatch_with(&self, peer: WorldRank) -> ErrorKind {
        CollectiveFailure::mismatch(peer, self.p2p.common.me).kind()
    }

    /// Cancels an operation that was not matched yet. A matched operation completes by itself.
    fn cancel(&mut self, op: OpId) {
        let life = self.p2p.common.ops.live(op).state;
        if matches!(life, OpState::Posted(_)) {
            self.p2p.unpost(op, ErrorKind::Cancelled);
        } else if life.is_sending() {
            self.p2p.withdraw(op, ErrorKind::Cancelled);
        }
    }

    /// Fails all collectives with a member that has failed.
    pub(in crate::engine) fn lose_programs(&mut self, rank: WorldRank, why: DownCause) {
        self.disagreements().wake_for_descriptions();
        self.quiesce_without(rank);
        if why != DownCause::Failed {
            self.lose_listed(rank);
            return; // programs that wait for its messages fail with those, and the others have all they need from it
        }
        for index in self.programs.indices() {
            let run = self.programs.get(index);
            if run.is_some_and(|run| run.group().contains(rank)) {
                self.fail(index, CollectiveFailure::Failed(rank).kind());
            }
        }
    }

    /// Fails all programs of a context.
    pub(in crate::engine) fn void_programs(&mut self, ctx: u32) {
        for index in self.programs.indices() {
            let run = self.programs.get(index);
            if run.is_some_and(|run| run.id().context == ctx) {
                self.fail(index, ErrorKind::Revoked);
            }
        }
    }

    /// Revokes this collective and all later ones on its communicator.
    pub(super) fn revoke(&mut self, id: CollectiveId, why: CollectiveFailure) {
        if self.p2p.common.is_void(id.context) {
            return;
        }
        self.p2p.common.unusual = true;
        let is_new = self.p2p.common.calls.revocations.revoke(id, why);
        if let CollectiveFailure::Mismatch(one, other) = why {
            self.disagreements().note_pair(id, [one, other], is_new);
        }
        if !is_new {
            return;
        }
        let running = self.p2p.common.calls.running(id);
        if running.is_some_and(|running| self.is_awaited(running.run)) {
            self.p2p.common.calls.revocations.was_told(id); // its future will return the reason
        }
        if self.p2p.common.has_left(id.context & !1) {
            self.p2p.common.calls.revocations.note_left(id.context);
        }
        if !matches!(why, CollectiveFailure::Mismatch(..)) {
            self.disagreements().announce_failure(id, why);
        }
        self.disagreements().wake_for_descriptions();
        for index in self.programs.indices() {
            let Some(run) = self.programs.get(index) else {
                continue;
            };
            let its = run.id();
            if its == id {
                self.fail(index, why.kind());
            } else if its.context == id.context && is_before(id.sequence, its.sequence) {
                self.fail(index, ErrorKind::Revoked);
            }
        }
        let waits = |want: &RecvPattern| {
            want.ctx == id.context && want.tag.is_some_and(|its| !is_before(its, id.sequence))
        };
        self.p2p.fail_posted(waits, |info| {
            if info.tag == Some(id.sequence) {
                why.kind()
            } else {
                ErrorKind::Revoked
            }
        });
        self.p2p
            .forget_messages(|its, _| its.ctx == id.context && !is_before(its.tag, id.sequence));
    }

    /// Handles a peer's report that a collective has failed. Only members of the communicator are believed.
    pub(in crate::engine) fn note_abort(
        &mut self,
        rank: WorldRank,
        header: &AbortHeader,
    ) -> AbortResult {
        let id = CollectiveId::new(header.ctx, header.tag);
        let is_of_collectives = !id.context.is_multiple_of(2);
        let member = self
            .disagreements()
            .group_of(id.context)
            .map(|group| group.contains(rank));
        match CollectiveFailure::read(header).filter(|_| is_of_collectives) {
            Some(_) if member.is_none() => return AbortResult::UnknownContext,
            Some(why) if member == Some(true) => {
                if matches!(why, CollectiveFailure::Finished(finished) if finished == rank) {
                    self.lose_invited(rank, id);
                }
                self.revoke(id, why);
            }
            _ => self.p2p.common.refused += 1,
        }
        AbortResult::Handled
    }

    /// Stores an unexpected message of a collective. It also shows whether its sender calls the same collective.
    pub(in crate::engine) fn store_for_collective(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
        place: UnexpectedHandle,
    ) {
        let id = envelope.collective_id();
        let in_vain =
            || matches!(content, MessageBody::Bytes(_)) && self.p2p.common.is_left(&envelope);
        if self.p2p.common.calls.revocations.kind(id).is_some() || in_vain() {
            return self.p2p.refuse_at(place, envelope, content);
        }
        if !self.p2p.store_unexpected(envelope, sig, content, place) {
            return;
        }
        self.p2p.common.calls.early.add(id, sig);
        match self.p2p.common.calls.running(id) {
            Some(running) if running.sig == sig => {}
            Some(RunningCollective { run, .. }) => self.fail_mismatched(run, envelope.source),
            // This rank has completed the collective without this message, so the sender has called another one.
            None if self.p2p.common.calls.is_over(id) => {
                let (me, peer) = (self.p2p.common.me, envelope.source);
                self.revoke(id, CollectiveFailure::mismatch(peer, me));
            }
            None => {}
        }
    }

    /// Drops stored messages of a dropped communicator that are for collectives which this rank has not begun.
    ///
    /// Offers stay. Their sender learns that the collective will not begin when it [asks](crate::engine::stall_probe), or learns
    /// the reason before that.
    pub(in crate::engine) fn forget_left(&mut self, ctx: u32) {
        if self.p2p.common.has_left(ctx & !1) && !self.p2p.common.calls.early.is_empty() {
            let running = self.p2p.common.calls.running_of(ctx);
            self.p2p.forget_messages(|envelope, body| {
                let is_left = envelope.ctx == ctx && !running.contains(&envelope.tag);
                is_left && !matches!(body, StoredBody::Offered(_))
            });
        }
    }
}

/// Returns the world ranks of the members at distances that are powers of two, on both sides.
pub(super) fn neighbors(group: &RankGroup, me: WorldRank) -> BTreeSet<WorldRank> {
    let (size, mut found) = (group.len(), BTreeSet::new());
    let Some(rank) = group.local_of(me) else {
        return found;
    };
    let mut distance = 1;
    while distance < size {
        found.extend(group.world_after(rank, distance));
        found.extend(group.world_before(rank, distance));
        distance *= 2;
    }
    found.remove(&me);
    found
}
