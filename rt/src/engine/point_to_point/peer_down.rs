//! Operations and messages of a peer that is down.

use std::collections::BTreeSet;

use bytemuck::Zeroable;
use ripstop_fabric::{driver::DownCause, memory::RemoteRegion};

use super::{
    PointToPoint,
    message::{OfferedMessage, StoredBody},
};
use crate::{
    engine::EngineCommons,
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::OpState,
    proto::{matching::RecvPattern, wire::OpId},
};

/// Failed members not yet reported to any wildcard receive, as pairs of context and rank.
#[derive(Default)]
#[expect(
    clippy::box_collection,
    reason = "most ranks never have one, and an idle simulated rank must take little memory"
)]
pub(super) struct UnreportedFailures(Option<Box<BTreeSet<(u32, WorldRank)>>>);

impl UnreportedFailures {
    fn add(&mut self, failures: impl Iterator<Item = (u32, WorldRank)>) {
        self.0.get_or_insert_default().extend(failures);
    }

    fn forget(&mut self, ctx: u32) {
        if let Some(unreported) = &mut self.0 {
            unreported.retain(|&(of, _)| of != ctx);
        }
    }

    /// Returns the error of a wildcard receive, if a failed member has not been reported yet. Each one is reported to one
    /// receive. Later receives wait for the remaining members, including this rank.
    pub(super) fn take(&mut self, ctx: u32) -> Option<ErrorKind> {
        let unreported = self.0.as_mut()?;
        let news = unreported
            .range((ctx, WorldRank(0))..=(ctx, WorldRank(u32::MAX)))
            .next();
        let news = news.copied()?;
        unreported.remove(&news);
        Some(ErrorKind::of_down(news.1, DownCause::Failed))
    }
}

impl PointToPoint {
    /// Fails the operations that wait for a peer that is down, and drops its offers.
    pub(in crate::engine) fn on_peer_down(&mut self, rank: WorldRank, why: DownCause) {
        self.forget_fetches(rank);
        self.common.lose_sends(rank, why);
        self.lose_offers(rank);
        self.lose_receives(rank, why);
        self.lose_landings(rank, why);
        self.common.end_packing_waits(Some(rank));
    }

    /// Drops the offers of a sender that is down, because they cannot be received any more. Whole messages still can.
    fn lose_offers(&mut self, rank: WorldRank) {
        for index in self.messages.offers(|envelope| envelope.source == rank) {
            if let Some(place) = self.messages.get(index).place {
                self.matching.withdraw(place);
                let message = self.messages.take(index);
                self.common.note_left_store(message.envelope);
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
        let told: BTreeSet<u32> = lost.iter().filter_map(|&op| self.common.told(op)).collect();
        if why == DownCause::Failed {
            let concerned = self
                .common
                .groups
                .with(rank)
                .filter(|ctx| !told.contains(ctx));
            self.unreported_failures
                .add(concerned.map(|ctx| (ctx, rank)));
        }
        for op in lost {
            self.common
                .complete_op(op, Err(ErrorKind::of_down(rank, why)));
        }
    }

    /// Records the members of a new communicator that have failed before.
    pub(in crate::engine) fn note_failed_members(&mut self, ctx: u32, group: &RankGroup) {
        let peers = &self.common.peers;
        let failed = |member: &WorldRank| peers.down(*member) == Some(DownCause::Failed);
        let failed = group.members().filter(failed);
        self.unreported_failures
            .add(failed.map(|member| (ctx, member)));
    }

    /// Forgets the failed members of a communicator that this rank has left.
    pub(in crate::engine) fn forget_unreported(&mut self, ctx: u32) {
        self.unreported_failures.forget(ctx);
    }

    fn lose_landings(&mut self, rank: WorldRank, why: DownCause) {
        // A get in flight ends only when the driver reports it, because until then the driver uses the buffer.
        let of_peer =
            |life: &OpState| matches!(life, OpState::Landing(landing) if landing.is_from(rank));
        for op in self.common.ops.select(|slot| of_peer(&slot.state)) {
            self.abandon(op, ErrorKind::of_down(rank, why));
        }
    }

    /// Fails an operation whose bytes were moving and will not all arrive.
    pub(in crate::engine) fn abandon(&mut self, op: OpId, why: ErrorKind) {
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

impl EngineCommons {
    /// Fails the sends to a peer that is down.
    fn lose_sends(&mut self, rank: WorldRank, why: DownCause) {
        // A put in flight ends only when the driver reports it, because until then the driver uses the buffer.
        let lost = |life: &OpState| {
            life.is_sending()
                && !matches!(life, OpState::Putting { .. } | OpState::PuttingRear { .. })
        };
        for op in self
            .ops
            .select(|slot| slot.info.peer == Some(rank) && lost(&slot.state))
        {
            self.complete_op(op, Err(ErrorKind::of_down(rank, why)));
        }
    }

    /// Returns the communicator of a wildcard receive that is about to report a failure.
    fn told(&mut self, op: OpId) -> Option<u32> {
        let info = self.ops.live(op).info;
        info.peer.is_none().then_some(info.ctx)
    }
}
