//! Credits that come with messages, and the order of messages where the driver does not keep it.

use ripstop_fabric::driver::PayloadView;

use super::PointToPoint;
use crate::{
    engine::EngineCommons,
    group::WorldRank,
    proto::{
        channel::ChannelVerdict,
        wire::{HeaderBase, WireKind},
    },
};

impl PointToPoint {
    /// Handles credits and order. Returns true if the message is the next one and must be handled now.
    #[inline]
    pub(in crate::engine) fn handle_base(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        base: HeaderBase,
        header: &[u8],
        body: PayloadView<'_>,
    ) -> bool {
        take_credits_of(self, rank, base.credits);
        self.common.peers.reliable || self.common.handle_order(rank, kind, base, header, body)
    }
}

/// Takes the credits that came with a message, which may let queued sends leave.
#[inline]
pub(super) fn take_credits_of(p2p: &mut PointToPoint, rank: WorldRank, credits: u16) {
    if credits > 0 {
        let peer = p2p.common.peers.peer_mut(rank);
        peer.credits.refund(credits);
        if !peer.sends.is_empty() {
            p2p.common.peers.mark_to_flush(rank);
        }
    }
}

impl EngineCommons {
    fn handle_order(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        base: HeaderBase,
        header: &[u8],
        body: PayloadView<'_>,
    ) -> bool {
        let now = self.now.nanos();
        let peer = self.peers.peer_mut(rank);
        let Some(channel) = &mut peer.channel else {
            return false; // the peer is down, and its messages arrive too late
        };
        let was_full = channel.is_full();
        match kind {
            WireKind::Nack => channel.handle_nack(base.ack, now),
            WireKind::Ack => channel.handle_bare_ack(base.ack, now),
            _ => channel.handle_ack(base.ack, now),
        }
        let verdict = match kind {
            WireKind::Ack | WireKind::Nack => None,
            _ => Some(channel.accept(base.seq, || (header.to_vec(), body.to_vec()))),
        };
        let opened = was_full && !channel.is_full(); // there is also room for messages that windows hold back
        self.peers.mark_clock_dirty(rank);
        if opened || verdict.is_some() {
            self.peers.mark_to_flush(rank); // its message must be acknowledged, or queued messages can leave
        }
        verdict == Some(ChannelVerdict::Deliver)
    }
}
