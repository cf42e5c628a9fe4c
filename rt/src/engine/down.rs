//! Handling of peers that are down: everything that waits for them fails.

use std::collections::BTreeSet;

use bytemuck::Zeroable;
use ripstop_fabric::{driver::DownCause, memory::RemoteRegion};

use super::{
    EngineCore,
    message::{OfferedMessage, StoredBody},
    send::down_kind,
};
use crate::{
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::OpState,
    proto::{matching::RecvPattern, wire::OpId},
};

impl EngineCore {
    /// Handles a peer that is down: fails everything that waits for it.
    pub(super) fn handle_peer_down(&mut self, rank: WorldRank, why: DownCause) {
        if !self.common.peers.fall(rank, why) {
            return;
        }
        if let Some(tell) = self
            .on_failure
            .as_ref()
            .filter(|_| why == DownCause::Failed)
        {
            tell(rank);
        }
        self.post_all_waits();
        self.forget_fetches(rank);
        self.lose_sends(rank, why);
        self.lose_offers(rank);
        self.lose_receives(rank, why);
        self.lose_landings(rank, why);
        self.lose_programs(rank, why);
        self.windows().lose_windows(rank, why);
        self.recover_from(rank, why);
        if self.common.peers.grants().is_scarce() {
            self.distribute_quota(); // gives its share of the room to other peers
        }
    }

    /// Treats a peer as failed. Nothing is accepted from it any more.
    pub(crate) fn count_as_failed(&mut self, rank: WorldRank) {
        self.handle_peer_down(rank, DownCause::Failed);
    }

    /// Returns true if a future waits for an event that only turns bring.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self
            .common
            .ops
            .select(|slot| slot.waker.is_some())
            .is_empty()
            || self.sleepers.are_waited_for()
            || self.windows.has_waiting_futures()
    }

    fn lose_sends(&mut self, rank: WorldRank, why: DownCause) {
        // A put in flight ends only when the driver reports it, because until then the driver uses the buffer.
        let lost = |life: &OpState| {
            life.is_sending()
                && !matches!(life, OpState::Putting { .. } | OpState::PuttingRear { .. })
        };
        for op in self
            .common
            .ops
            .select(|slot| slot.info.peer == Some(rank) && lost(&slot.state))
        {
            self.common.complete_op(op, Err(down_kind(rank, why)));
        }
    }

    /// Drops the offers of a sender that is down, because they cannot be received any more. Whole messages still can.
    fn lose_offers(&mut self, rank: WorldRank) {
        for index in self.messages.offers(|envelope| envelope.source == rank) {
            if let Some(place) = self.messages.get(index).place {
                self.matching.withdraw(place);
                let message = self.messages.take(index);
                self.note_left_store(message.envelope);
                self.drop_stored(message);
            }
        }
    }

    fn lose_receives(&mut self, rank: WorldRank, why: DownCause) {
        let Self {
            matching, common, ..
        } = self;
        // If all other ranks have finished, wildcard receives stay posted: this rank may still send to itself (see
        // `self_deadlock`).
        let concerns = |want: &RecvPattern| match want.source {
            Some(source) => source == rank,
            None => {
                let group = common
                    .groups
                    .get(want.ctx)
                    .filter(|_| why == DownCause::Failed);
                group.is_some_and(|group| group.contains(rank))
            }
        };
        let lost = matching.drain_posted(concerns);
        let told: BTreeSet<u32> = lost.iter().filter_map(|&op| self.told(op)).collect();
        if why == DownCause::Failed {
            let concerned = self
                .common
                .groups
                .with(rank)
                .filter(|ctx| !told.contains(ctx));
            self.unreported_failures
                .extend(concerned.map(|ctx| (ctx, rank)));
        }
        for op in lost {
            self.common.complete_op(op, Err(down_kind(rank, why)));
        }
    }

    /// Returns the communicator of a wildcard receive that is about to report a failure.
    fn told(&mut self, op: OpId) -> Option<u32> {
        let info = self.common.ops.live(op).info;
        info.peer.is_none().then_some(info.ctx)
    }

    /// Returns the error of a wildcard receive, if a failed member has not been reported yet. Each one is reported to one
    /// receive. Later receives wait for the remaining members, including this rank.
    pub(super) fn unreported_failure(&mut self, ctx: u32) -> Option<ErrorKind> {
        let news = self
            .unreported_failures
            .range((ctx, WorldRank(0))..=(ctx, WorldRank(u32::MAX)))
            .next();
        let news = news.copied()?;
        self.unreported_failures.remove(&news);
        Some(down_kind(news.1, DownCause::Failed))
    }

    /// Registers a handle of a communicator and its members, whose failures end wildcard receives. Several handles may exist.
    pub(crate) fn join_group(&mut self, ctx: u32, group: &RankGroup) {
        if !self.common.groups.join(ctx, group) {
            return;
        }
        if self.common.peers.downs() > 0 {
            let failed =
                |member: &WorldRank| self.common.peers.down(*member) == Some(DownCause::Failed);
            let failed = group.members().filter(failed);
            self.unreported_failures
                .extend(failed.map(|member| (ctx, member)));
        }
        self.enter(ctx, group);
    }

    pub(crate) fn leave_group(&mut self, ctx: u32) {
        if let Some(group) = self.common.groups.leave(ctx) {
            self.keep_calls(ctx, group);
            self.unreported_failures.retain(|&(of, _)| of != ctx);
            self.forget_slots(ctx);
            self.forget_programs(ctx);
            self.recovery().leave_agreements(ctx);
            if self.has_stopped_receiving(ctx) {
                self.forget_messages(|envelope, _| envelope.ctx == ctx);
            }
            self.forget_left(ctx);
        }
    }

    fn lose_landings(&mut self, rank: WorldRank, why: DownCause) {
        // A get in flight ends only when the driver reports it, because until then the driver uses the buffer.
        let of_peer =
            |life: &OpState| matches!(life, OpState::Landing(landing) if landing.is_from(rank));
        for op in self.common.ops.select(|slot| of_peer(&slot.state)) {
            self.abandon(op, down_kind(rank, why));
        }
    }

    /// Fails an operation whose bytes were moving and will not all arrive.
    pub(super) fn abandon(&mut self, op: OpId, why: ErrorKind) {
        let slot = self.common.ops.live(op);
        let OpState::Landing(landing) = slot.state else {
            self.common.complete_op(op, Err(why));
            return;
        };
        if !slot.orphan {
            self.common.complete_op(op, Err(why));
            return;
        }
        match landing.follower {
            Some(follower) => self.common.complete_op(follower, Err(why)),
            None => self.drop_message_in(op, landing.sender),
        }
        self.common.release(op);
    }

    /// Drops the message whose bytes should have arrived in this operation's buffer.
    fn drop_message_in(&mut self, op: OpId, sender: OpId) {
        let is_it =
            |body: &StoredBody| matches!(body, StoredBody::InOp { op: it, .. } if *it == op);
        let Some(index) = self.messages.find(is_it) else {
            return;
        };
        let message = self.messages.get(index);
        match message.place {
            Some(place) => {
                self.matching.withdraw(place);
                self.messages.take(index);
            }
            // A probe has taken the message out of the queue. It becomes an offer of a sender that is down, so receiving it
            // fails.
            None => {
                let offered = OfferedMessage {
                    total: message.body.as_message_body().bytes(),
                    sender,
                    modes: 0,
                    out_of_order: false,
                    key: RemoteRegion::zeroed(),
                };
                self.messages.make_offer(index, offered);
            }
        }
    }
}
