//! What a revocation, a failure, a decision and a new communicator do to several parts of the engine, one after the other.

use std::{panic::Location, sync::Arc};

use ripstop_fabric::driver::DownCause;

use super::{Engine, EngineCore, collective::AbortResult, recovery::RecoveryPart};
use crate::{
    contexts::ContextIds,
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::OpSlot,
    proto::wire::{AbortHeader, RevokeHeader},
};

impl Engine {
    /// Revokes a communicator for the application.
    pub(crate) fn revoke(&mut self, ctx: u32) {
        self.core.revoke_all(ctx);
        self.flush();
    }

    /// Begins this rank's next agreement on a communicator that it is in. Returns the number of the call.
    pub(crate) fn agree(
        &mut self,
        ctx: u32,
        flag: bool,
        number: u32,
        at: &'static Location<'static>,
    ) -> u32 {
        let begin = |part: &mut RecoveryPart<'_>| part.begin_agreement(ctx, flag, number, at);
        let call = self.core.in_recovery(begin);
        self.flush();
        call
    }

    /// Begins to create a communicator of the surviving ranks. Returns the number of the call.
    pub(crate) fn shrink(
        &mut self,
        ctx: u32,
        contexts: &Arc<ContextIds>,
        at: &'static Location<'static>,
    ) -> u32 {
        let begin = |part: &mut RecoveryPart<'_>| part.begin_shrink(ctx, contexts, at);
        let call = self.core.in_recovery(begin);
        self.flush();
        call
    }

    /// Registers a handle's communicator, with both its contexts.
    pub(crate) fn join(&mut self, ctx: u32, group: &RankGroup) {
        self.core.join_group(ctx, group);
        self.core.join_group(ctx + 1, group);
        if self.core.p2p.common.peers.has_new_work() {
            self.flush();
        }
    }
}

impl EngineCore {
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
        self.in_recovery(|part| part.on_peer_down(rank, why));
    }

    /// Enters a communicator, and handles the reports that came early.
    pub(super) fn enter(&mut self, ctx: u32, group: &RankGroup) {
        if self.recovery.is_used() {
            self.enter_revoked(ctx, group);
            self.in_recovery(|part| part.enter_agreements(ctx));
        }
    }

    /// Handles the reports about a communicator that came before this rank was in it.
    fn enter_revoked(&mut self, ctx: u32, group: &RankGroup) {
        for early in self.recovery().take_early_revocations(ctx, group) {
            match early.failed {
                Some(header) => self.handle_abort(early.by, &header),
                None => self.revoke_all(ctx),
            }
        }
    }

    /// Handles a peer's report that a collective has failed.
    pub(super) fn handle_abort(&mut self, rank: WorldRank, header: &AbortHeader) {
        if self.collectives().note_abort(rank, header) == AbortResult::UnknownContext {
            self.recovery()
                .keep_early_revocation(header.ctx, rank, Some(*header));
        }
    }

    /// Handles a peer's report that a communicator is revoked.
    pub(in crate::engine) fn handle_revoke(&mut self, rank: WorldRank, header: &RevokeHeader) {
        if self.recovery().accepts_revocation(rank, header) {
            self.revoke_all(header.ctx);
        }
    }

    pub(in crate::engine) fn revoke_all(&mut self, ctx: u32) {
        if !self.recovery().begin_revocation(ctx) {
            return;
        }
        self.collectives().void_programs(ctx + 1);
        let is_of = |its: u32| its & !1 == ctx;
        self.p2p
            .fail_posted(|want| is_of(want.ctx), |_| ErrorKind::Revoked);
        let sends = |slot: &OpSlot| {
            is_of(slot.info.ctx) && slot.state.is_sending() && !slot.is_in_program()
        };
        for op in self.p2p.common.ops.select(sends) {
            self.p2p.withdraw(op, ErrorKind::Revoked);
        }
        self.p2p.forget_messages(|envelope, _| is_of(envelope.ctx));
    }
}
