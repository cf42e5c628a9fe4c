//! Sends that leave at once or are queued, and the withdrawal of sends.

use super::{MessageTransmitter, PointToPoint};
use crate::{
    engine::commons::{EngineCommons, transmit::transmit_tagged},
    error::ErrorKind,
    group::WorldRank,
    ops::{OpInfo, OpState, OpTicket},
    proto::wire::{self, EagerHeader, OpId, WireKind},
};

/// Outcome of starting a send.
pub(crate) enum SendStart<B> {
    /// The bytes were sent, so the buffer is free.
    Sent(B),
    /// The message could not be sent.
    Refused(ErrorKind, B),
    InFlight(OpTicket<B>),
}

impl MessageTransmitter<'_> {
    /// Queues a send that waits for room or credits.
    pub(in crate::engine) fn queue(&mut self, op: OpId, to: WorldRank) {
        self.p2p.common.awaited_peers_changed = true;
        self.p2p.own.note_by_driver(to == self.p2p.common.me);
        self.p2p.common.enqueue(to, op);
        self.p2p.common.peers.mark_to_flush(to);
    }

    pub(in crate::engine) fn send_now(
        &mut self,
        info: &OpInfo,
        to: WorldRank,
        bytes: &[u8],
    ) -> bool {
        if info.synchronous || bytes.len() > self.p2p.common.paths.to(to).eager_max() {
            return false;
        }
        let is_own = to == self.p2p.common.me;
        is_own && self.p2p.deliver_to_self(info, bytes) || self.send_eager(info.eager(), to, bytes)
    }

    /// Gives an eager message to the driver, if it can leave at once. Returns true if the driver has taken the
    /// message.
    #[inline(always)]
    pub(in crate::engine) fn send_eager(
        &mut self,
        mut header: EagerHeader,
        to: WorldRank,
        bytes: &[u8],
    ) -> bool {
        if bytes.len() > self.p2p.common.paths.to(to).eager_max() {
            return false;
        }
        let peer = self.p2p.common.peers.peer_mut(to);
        if !peer.is_clear() || !peer.header_quota.spend() {
            return false;
        }
        if !peer.credits.spend(bytes.len()) {
            peer.header_quota.unspend();
            return false;
        }
        let tag = header.tag_for(self.p2p.hw_matching_min, bytes.len());
        let header = bytemuck::bytes_of_mut(&mut header);
        let posted = transmit_tagged(&mut *self.driver, peer, to, tag, header, bytes);
        self.p2p.own.note_by_driver(to == self.p2p.common.me);
        if !posted {
            peer.credits.unspend(bytes.len());
            peer.header_quota.unspend();
        } else if !self.p2p.common.peers.reliable {
            self.p2p.common.peers.mark_clock_dirty(to);
            self.p2p.common.awaited_peers_changed = true;
        }
        posted
    }
}

impl EngineCommons {
    /// Appends a send to the peer's queue. Notifies the peer if it has asked for such a message.
    fn enqueue(&mut self, to: WorldRank, op: OpId) {
        let info = self.ops.live(op).info;
        let line = &mut self.peers.peer_mut(to).sends;
        let held = line.push(op, info.ctx, info.tag.unwrap_or(0));
        self.send_fetch_candidates(to, held.as_slice());
    }

    fn withdraw_offer(&mut self, op: OpId, to: WorldRank, why: ErrorKind) {
        if self.take_unanswered(op) {
            self.handle_fetch_matched(to, op); // the offer was not sent, so the receiver does not know of it
            self.complete_op(op, Err(why));
        } else {
            self.ops.live(op).withdraw(why);
            self.send_control(to, WireKind::Cancel, op, wire::OK);
        }
    }

    /// Returns the reason why nothing can be sent to this rank on a communicator, if there is one.
    #[inline]
    pub(in crate::engine) fn unsendable(&self, ctx: u32, rank: WorldRank) -> Option<ErrorKind> {
        if self.unusual && self.is_void(ctx) {
            return Some(ErrorKind::Revoked);
        }
        self.unreachable(rank)
    }
}

impl PointToPoint {
    /// Withdraws a send: immediately if nothing was sent, otherwise by asking the receiver to forget the offer.
    /// A send whose bytes are moving is not withdrawn.
    pub(crate) fn withdraw(&mut self, op: OpId, why: ErrorKind) {
        let Some(slot) = self.common.ops.get(op) else {
            return;
        };
        let to = slot.info.peer.expect("a send has a peer");
        match slot.state {
            OpState::Queued => {
                let uncovered = self.common.peers.peer_mut(to).sends.remove(op);
                self.common.send_fetch_candidates(to, &uncovered);
                self.common.complete_op(op, Err(why));
            }
            OpState::Offered => self.common.withdraw_offer(op, to, why),
            _ => {} // its bytes are moving, so it completes by itself
        }
    }
}
