//! Operations that only this rank itself can complete.
//!
//! A receive from any source stays posted when all other ranks have finished: this rank may still send to itself. A
//! message that this rank has sent to itself may still be received, too. But when the application waits for such operations
//! and nothing else is in flight, it waits for itself, and they end with [`ErrorKind::WaitsForItself`].
//!
//! The engine cannot see threads of the application that have no operation in flight. A simulation has none, and knows when
//! nothing can happen any more; elsewhere the thread that goes to sleep looks at the others (rt/src/shared/self_deadlock.rs).

use super::{Engine, EngineCore};
use crate::{
    clock::ClockTime,
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::{OpSlot, OpState},
    proto::wire::OpId,
};

/// State of a rank that seems to wait for itself.
#[derive(Debug)]
pub(crate) struct SelfDeadlock {
    pub(crate) since: ClockTime,
    /// Receives posted and messages arrived by then: something has happened when there are more.
    seen: (u64, u64),
}

impl Engine {
    /// Fails the operations for which this rank waits in vain, if it waits for itself. Returns true if there were any.
    pub(crate) fn fail_self_deadlock(&mut self) -> bool {
        let ends = self.core.waits_for_itself();
        if ends {
            self.core.end_own_waits();
            self.flush();
        }
        ends
    }
}

impl EngineCore {
    /// Returns true if the application awaits operations that only this rank can complete, and nothing else is in flight.
    #[inline]
    pub(crate) fn waits_for_itself(&self) -> bool {
        let may = self.p2p.tables().is_receiving()
            || self.p2p.common.offers > 0
            || self.p2p.common.peers.any_to_flush();
        may && self.is_waiting_for_itself()
    }

    #[cold]
    fn is_waiting_for_itself(&self) -> bool {
        self.is_otherwise_idle()
            && self
                .p2p
                .tables()
                .posted_patterns()
                .all(|want| self.is_for_itself(want.source, want.ctx))
            && self
                .p2p
                .common
                .ops
                .select(|slot| self.is_for_others(slot))
                .is_empty()
            && !self.own_waits().is_empty()
    }

    /// Returns true if nothing is in flight but operations that futures of messages wait for.
    fn is_otherwise_idle(&self) -> bool {
        let is_open =
            !(self.p2p.common.closing || self.p2p.common.leaving || self.p2p.common.ended);
        let no_collectives =
            !self.programs.any() && self.p2p.common.promised == 0 && !self.recovery.is_agreeing();
        let no_news_awaited = !self.windows.has_waiting_futures()
            && self.recovery.followed().all(|ctx| self.is_left_alone(ctx));
        is_open
            && no_collectives
            && no_news_awaited
            && self.p2p.common.timers.next().is_none()
            && self.p2p.common.commands.is_empty()
            && self.p2p.common.commands_in_flight == 0
            && self.p2p.common.peers.unacked().next().is_none()
    }

    /// Returns true if only this rank can send what such a receive waits for.
    fn is_for_itself(&self, source: Option<WorldRank>, ctx: u32) -> bool {
        let me = self.p2p.common.me;
        source.map_or_else(|| self.is_left_alone(ctx), |source| source == me)
    }

    /// Returns true if all other ranks of the communicator are down.
    fn is_left_alone(&self, ctx: u32) -> bool {
        let me = self.p2p.common.me;
        self.p2p.common.groups.get(ctx).is_some_and(|group| {
            let mut others = group.members().filter(|&member| member != me);
            self.p2p.common.peers.downs() + 1 >= group.len()
                && others.all(|member| self.p2p.common.peers.down(member).is_some())
        })
    }

    /// Returns true if something else than this rank may still complete the operation.
    fn is_for_others(&self, slot: &OpSlot) -> bool {
        match slot.state {
            OpState::Free | OpState::Done(_) | OpState::Failed | OpState::Lost => false,
            OpState::Posted(_) => slot.is_in_program(), // its source was checked above
            OpState::Queued | OpState::Offered => slot.info.peer != Some(self.p2p.common.me),
            _ => true,
        }
    }

    /// Returns the operations in flight for which the application waits.
    fn own_waits(&self) -> Vec<OpId> {
        self.p2p
            .common
            .ops
            .select(|slot| slot.waker.is_some() && !slot.state.is_done())
    }

    fn end_own_waits(&mut self) {
        self.own_wait = None;
        for op in self.own_waits() {
            let slot = self.p2p.common.ops.live(op);
            let (is_sending, ctx) = (slot.state.is_sending(), slot.info.ctx);
            let size = self.p2p.common.groups.get(ctx).map_or(1, RankGroup::len);
            let alone = size > 1 && self.is_left_alone(ctx);
            let why = ErrorKind::WaitsForItself { alone };
            if is_sending {
                self.p2p.withdraw(op, why);
            } else {
                self.p2p.unpost(op, why);
            }
        }
    }

    /// Returns the time since when this rank has seemed to wait for itself.
    pub(crate) fn self_deadlock(&mut self, now: ClockTime) -> &mut SelfDeadlock {
        let seen = self.p2p.tables().counts();
        let before = self.own_wait.take().filter(|before| before.seen == seen);
        let begin = || Box::new(SelfDeadlock { since: now, seen });
        self.own_wait.insert(before.unwrap_or_else(begin))
    }
}
