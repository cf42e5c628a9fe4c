//! Handling of peers that are down: everything that waits for them fails.

use std::mem;

use ripstop_fabric::driver::DownCause;

use super::{EngineCore, collective::DeferredPeerEvent};
use crate::group::{RankGroup, WorldRank};

impl EngineCore {
    /// Handles a peer that is down. What it left in collective slots is looked for first.
    pub(super) fn note_peer_down(&mut self, rank: WorldRank, why: DownCause) {
        if self.programs.has_slot_waiters() {
            let event = DeferredPeerEvent::Down(rank, why);
            self.programs.deferred_events.push(event);
        } else {
            self.handle_peer_down(rank, why);
        }
    }

    /// Handles the last events of peers, because the collective slots were checked.
    pub(super) fn handle_deferred_events(&mut self) {
        for event in mem::take(&mut self.programs.deferred_events) {
            match event {
                DeferredPeerEvent::Down(rank, why) => self.handle_peer_down(rank, why),
                DeferredPeerEvent::Over(rank, header) => {
                    self.collectives().is_through(rank, &header)
                }
            }
        }
    }

    /// Handles a peer that is down: fails everything that waits for it.
    pub(super) fn handle_peer_down(&mut self, rank: WorldRank, why: DownCause) {
        if !self.p2p.common.peers.fall(rank, why) {
            return;
        }
        if let Some(tell) = self
            .on_failure
            .as_ref()
            .filter(|_| why == DownCause::Failed)
        {
            tell(rank);
        }
        self.collectives().post_all_waits();
        self.p2p.on_peer_down(rank, why);
        self.collectives().lose_programs(rank, why);
        self.windows().lose_windows(rank, why);
        self.recover_from(rank, why);
        if self.p2p.common.peers.grants().is_scarce() {
            self.p2p.distribute_quota(); // gives its share of the room to other peers
        }
    }

    /// Treats a peer as failed. Nothing is accepted from it any more.
    pub(crate) fn count_as_failed(&mut self, rank: WorldRank) {
        self.handle_peer_down(rank, DownCause::Failed);
    }

    /// Returns true if a future waits for an event that only turns bring.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self
            .p2p
            .common
            .ops
            .select(|slot| slot.waker.is_some())
            .is_empty()
            || self.sleepers.are_waited_for()
            || self.windows.has_waiting_futures()
    }

    /// Registers a handle of a communicator and its members, whose failures end wildcard receives. Several handles may exist.
    pub(crate) fn join_group(&mut self, ctx: u32, group: &RankGroup) {
        if !self.p2p.common.groups.join(ctx, group) {
            return;
        }
        if self.p2p.common.peers.downs() > 0 {
            self.p2p.note_failed_members(ctx, group);
        }
        self.enter(ctx, group);
    }

    pub(crate) fn leave_group(&mut self, ctx: u32) {
        if let Some(group) = self.p2p.common.groups.leave(ctx) {
            self.collectives().disagreements().keep_calls(ctx, group);
            self.p2p.forget_unreported(ctx);
            self.collectives().forget_slots(ctx);
            self.collectives().forget_programs(ctx);
            self.recovery().leave_agreements(ctx);
            if self.p2p.common.has_stopped_receiving(ctx) {
                self.p2p.forget_messages(|envelope, _| envelope.ctx == ctx);
            }
            self.collectives().forget_left(ctx);
        }
    }
}
