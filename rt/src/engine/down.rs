//! Peers that are gone, and what that means for everything that waits for them.

use std::collections::BTreeSet;

use ripstop_fabric::driver::Down;

use super::{Core, message::Body, send::down_kind};
use crate::{
    error::ErrorKind,
    ops::Life,
    proto::{matching::Want, wire::OpId},
};

impl Core {
    /// The peer is down: whatever waits for it ends.
    pub(super) fn lose(&mut self, rank: u32, why: Down) {
        let peer = self.peers.contact(rank);
        peer.down = Some(why);
        peer.control.clear();
        peer.sends.clear();
        peer.fragments.clear();
        peer.channel = None;
        self.lose_sends(rank, why);
        self.lose_offers(rank);
        self.lose_receives(rank, why);
        self.lose_landings(rank, why);
    }

    fn lose_sends(&mut self, rank: u32, why: Down) {
        // A put under way ends by the driver's word, which lets go of the buffer.
        let lost = |life: &Life| life.is_sending() && !matches!(life, Life::Putting { .. });
        for op in self
            .ops
            .which(|slot| slot.about.peer == Some(rank) && lost(&slot.life))
        {
            self.land(op, Err(down_kind(rank, why)));
        }
    }

    /// Offers whose sender is gone cannot be received any more; whole messages can.
    fn lose_offers(&mut self, rank: u32) {
        for index in self.messages.offers(|envelope| envelope.source == rank) {
            if let Some(place) = self.messages.get(index).place {
                self.matching.withdraw(place);
                self.messages.take(index);
            }
        }
    }

    fn lose_receives(&mut self, rank: u32, why: Down) {
        let Self {
            matching,
            groups,
            peers,
            ..
        } = self;
        let all_down = |members: &[u32]| {
            members
                .iter()
                .filter(|&&member| peers.down(member).is_none())
                .count()
                <= 1
        };
        let concerns = |want: &Want| match want.source {
            Some(source) => source == rank,
            None => groups.get(&want.ctx).is_some_and(|members| {
                members.contains(&rank) && (why == Down::Failed || all_down(members))
            }),
        };
        let lost = matching.drain_posted(concerns);
        let told: BTreeSet<u32> = lost.iter().filter_map(|&op| self.told(op)).collect();
        if why == Down::Failed {
            let concerned = self
                .groups
                .iter()
                .filter(|(_, members)| members.contains(&rank));
            self.untold.extend(
                concerned
                    .map(|(&ctx, _)| (ctx, rank))
                    .filter(|(ctx, _)| !told.contains(ctx)),
            );
        }
        for op in lost {
            self.land(op, Err(down_kind(rank, why)));
        }
    }

    /// The communicator whose receive from anybody is about to hear of a failure.
    fn told(&mut self, op: OpId) -> Option<u32> {
        let about = self.ops.live(op).about;
        about.peer.is_none().then_some(about.ctx)
    }

    /// A receive from anybody hears of each failed member once; later ones wait for the others.
    pub(super) fn hopeless_any(&mut self, ctx: u32) -> Option<ErrorKind> {
        let news = self
            .untold
            .range((ctx, 0)..=(ctx, u32::MAX))
            .next()
            .copied()?;
        self.untold.remove(&news);
        Some(down_kind(news.1, Down::Failed))
    }

    fn lose_landings(&mut self, rank: u32, why: Down) {
        // A get under way ends by the driver's word, which lets go of the buffer.
        let of_peer = |life: &Life| matches!(life, Life::Landing(landing) if landing.landed.source == rank && (landing.fragments || landing.invited));
        for op in self.ops.which(|slot| of_peer(&slot.life)) {
            self.abandon(op, down_kind(rank, why));
        }
    }

    /// An operation whose bytes were moving will not complete.
    pub(super) fn abandon(&mut self, op: OpId, why: ErrorKind) {
        let slot = self.ops.live(op);
        let Life::Landing(landing) = slot.life else {
            self.land(op, Err(why));
            return;
        };
        if !slot.orphan {
            self.land(op, Err(why));
            return;
        }
        match landing.follower {
            Some(follower) => self.land(follower, Err(why)),
            None => self.drop_message_in(op),
        }
        self.release(op);
    }

    /// The message whose bytes were to be in this operation's buffer does not exist any more.
    fn drop_message_in(&mut self, op: OpId) {
        let is_it = |body: &Body| matches!(body, Body::InOp { op: it, .. } if *it == op);
        if let Some(index) = self.messages.find(is_it)
            && let Some(place) = self.messages.get(index).place
        {
            self.matching.withdraw(place);
            self.messages.take(index);
        }
    }
}
