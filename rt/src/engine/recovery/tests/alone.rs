//! Ranks that have no other part of the engine than recovery, over drivers in this process.

use std::{
    panic::Location,
    sync::Arc,
    task::{Poll, Waker},
};

use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DownCause, Driver, PayloadView, Sink},
    loopback,
};

pub(super) use crate::engine::commons::lone_rank::settle;
use crate::{
    contexts::ContextIds,
    engine::{
        EngineCommons, OneSidedCommand,
        commons::{
            lone_rank::{ARRIVALS_MAX, LoneFlush, lone_setup},
            transmit::FlushResult,
        },
        recovery::{AgreementId, FailureCursor, LazyRecovery, RecoveryPart},
    },
    error::ErrorKind,
    group::{CommRank, RankGroup, WorldRank},
    proto::{
        agree::AgreeValue,
        wire::{self, WireKind, read},
    },
};

/// Context of a communicator of all ranks, which is not the world: it can be left for good.
pub(super) const COMM: u32 = 2;

/// A rank with nothing but recovery.
pub(super) struct LoneSurvivor {
    driver: Box<dyn Driver>,
    pub(super) core: LoneSurvivorSink,
    contexts: Arc<ContextIds>,
}

/// What the driver reports to. Messages of other parts are refused.
pub(super) struct LoneSurvivorSink {
    pub(super) common: EngineCommons,
    recovery: LazyRecovery,
}

/// Returns `size` ranks, all of which are in the communicator [`COMM`].
pub(super) fn lone_survivors(size: u32) -> Vec<LoneSurvivor> {
    let ranks = (0..).zip(loopback::world(size)).map(|(me, driver)| {
        let setup = lone_setup(&driver, me, size);
        let mut driver: Box<dyn Driver> = Box::new(driver);
        let mut common = EngineCommons::new(&mut *driver, setup, false);
        common.groups.join(COMM, &RankGroup::First(size));
        let recovery = LazyRecovery::default();
        let contexts = Arc::new(ContextIds::default());
        assert_eq!(contexts.propose(COMM), COMM);
        LoneSurvivor {
            driver,
            core: LoneSurvivorSink { common, recovery },
            contexts,
        }
    });
    ranks.collect()
}

impl LoneSurvivor {
    /// Uses up some numbers of communicators, which other ranks may propose.
    pub(super) fn use_contexts(&self, count: u32) {
        (0..count).for_each(|_| _ = self.contexts.propose(2));
    }

    /// Returns true if this rank knows that a communicator has this number.
    pub(super) fn knows_context(&self, ctx: u32) -> bool {
        !self.contexts.accept(ctx, 0)
    }

    pub(super) fn agree(&mut self, flag: bool, number: u32) -> AgreementId {
        let begin = |part: &mut RecoveryPart<'_>| {
            part.begin_agreement(COMM, flag, number, Location::caller())
        };
        AgreementId::new(COMM, self.core.in_recovery(begin))
    }

    pub(super) fn shrink(&mut self) -> AgreementId {
        let contexts = Arc::clone(&self.contexts);
        let begin =
            |part: &mut RecoveryPart<'_>| part.begin_shrink(COMM, &contexts, Location::caller());
        AgreementId::new(COMM, self.core.in_recovery(begin))
    }

    /// Returns the decision, or `None` if there is none yet.
    pub(super) fn decision(&mut self, call: AgreementId) -> Option<Result<AgreeValue, ErrorKind>> {
        match self.core.recovery().poll_agreed(call, Waker::noop()) {
            Poll::Ready(decision) => Some(decision),
            Poll::Pending => None,
        }
    }

    /// Drops the future of a call.
    pub(super) fn forget(&mut self, call: AgreementId) {
        self.core.in_recovery(|part| part.forget_agreed(call));
    }

    /// Drops the last handle of the communicator.
    pub(super) fn leave(&mut self) {
        self.core.leave(COMM);
    }

    pub(super) fn revoke(&mut self) {
        self.revoke_context(COMM);
    }

    pub(super) fn revoke_context(&mut self, ctx: u32) {
        self.core.recovery().begin_revocation(ctx);
    }

    /// Asks those for which agreements wait. Returns true if any was asked.
    pub(super) fn ask(&mut self) -> bool {
        self.core.recovery().ask_agreed(false)
    }

    pub(super) fn follow_failures(&mut self) -> FailureCursor {
        self.core.recovery().follow_failures(COMM)
    }

    pub(super) fn next_failure(&mut self, stream: &mut FailureCursor) -> Option<CommRank> {
        let group = RankGroup::First(u32::MAX);
        let mut part = self.core.recovery();
        match part.poll_failure(stream, &group, Waker::noop()) {
            Poll::Ready(failed) => Some(failed.expect("no rank closes")),
            Poll::Pending => None,
        }
    }

    /// Forgets what is queued for a peer and not sent yet.
    pub(super) fn lose_queue(&mut self, peer: u32) {
        let peer = self.core.common.peers.peer_mut(WorldRank(peer));
        peer.control.clear();
    }

    /// Handles what the driver has, and posts what that asks for. Returns true if anything happened.
    pub(super) fn turn(&mut self) -> bool {
        let events = self.driver.progress(ARRIVALS_MAX, &mut self.core).events;
        self.flush();
        self.core.common.wakers.clear();
        events > 0
    }
}

impl LoneFlush for LoneSurvivor {
    fn driver_and_commons(&mut self) -> (&mut dyn Driver, &mut EngineCommons) {
        (&mut *self.driver, &mut self.core.common)
    }

    fn post_command(&mut self, command: OneSidedCommand) -> bool {
        unreachable!("recovery asks for no {command:?}");
    }

    fn flush_queues(&mut self, _: WorldRank) -> FlushResult {
        FlushResult::All
    }
}

impl LoneSurvivorSink {
    fn recovery(&mut self) -> RecoveryPart<'_> {
        let Self { common, recovery } = self;
        RecoveryPart { recovery, common }
    }

    /// Makes a call that may decide agreements. Then leaves the communicators that no future of this rank waits for.
    fn in_recovery<T>(&mut self, call: impl FnOnce(&mut RecoveryPart<'_>) -> T) -> T {
        let result = call(&mut self.recovery());
        for (number, made) in self.recovery().take_unwanted() {
            self.common.groups.join(number, &made);
            self.recovery().enter_agreements(number);
            self.leave(number);
        }
        result
    }

    fn leave(&mut self, ctx: u32) {
        self.common.groups.leave(ctx).expect("it was in it");
        self.recovery().leave_agreements(ctx);
    }

    /// Handles a peer that is down.
    pub(super) fn lose(&mut self, peer: WorldRank, why: DownCause) {
        if self.common.peers.fall(peer, why) {
            self.in_recovery(|part| part.on_peer_down(peer, why));
        }
    }
}

impl Sink for LoneSurvivorSink {
    fn message(&mut self, rank: WorldRank, header: &[u8], _: PayloadView<'_>) {
        let kind = wire::read_base(header).map(|(kind, _)| kind);
        let understood = match kind {
            Some(WireKind::Agree) => {
                read(header).map(|header| self.in_recovery(|part| part.handle_agree(rank, &header)))
            }
            Some(WireKind::StallProbe) => read(header)
                .map(|header| self.in_recovery(|part| part.handle_ask_agreed(rank, &header))),
            Some(WireKind::ProgramDone) => read(header)
                .map(|header| self.in_recovery(|part| part.handle_over_agreed(rank, &header))),
            Some(WireKind::Revoke) => read(header).map(|header: wire::RevokeHeader| {
                if self.recovery().accepts_revocation(rank, &header) {
                    self.recovery().begin_revocation(header.ctx);
                }
            }),
            _ => None,
        };
        if understood.is_none() {
            self.common.refused += 1;
        }
    }

    fn complete(&mut self, _: CommandToken) {
        unreachable!("recovery has no commands");
    }

    fn fetched(&mut self, _: CommandToken, _: u64) {
        unreachable!("recovery has no commands");
    }

    fn failed(&mut self, _: CommandToken, _: CommandFailure) {
        unreachable!("recovery has no commands");
    }

    fn reached(&mut self, _: CommandToken) {
        unreachable!("no counter is watched");
    }

    fn triggered(&mut self, _: CommandToken) {
        unreachable!("there is no task list");
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.lose(peer, why);
    }
}
