//! Messages of this rank to itself. A short way past the driver leads from the sender's buffer into a posted receive.

use ripstop_fabric::driver::PayloadView;

use super::PointToPoint;
use crate::{
    group::WorldRank,
    ops::MessageStatus,
    proto::{matching::MessageEnvelope, wire::EagerHeader},
};

/// Of so many messages in a row, one goes by the driver, because a rank that only talks to itself would make no turns.
const BY_DRIVER_EVERY: u8 = 32;

/// Decides whether a message of this rank to itself may go past the driver.
#[derive(Debug)]
pub(in crate::engine) struct OwnMessages {
    pub(in crate::engine) rank: WorldRank,
    /// True if a processor copies the driver's messages anyway, and the driver keeps their order.
    pub(in crate::engine) is_direct: bool,
    /// Messages that the driver has brought from this rank, modulo 2³².
    arrived: u32,
    /// Messages in a row that went past the driver.
    in_a_row: u8,
}

impl OwnMessages {
    pub(in crate::engine) fn new(rank: WorldRank, is_direct: bool) -> Self {
        Self {
            rank,
            is_direct,
            arrived: 0,
            in_a_row: 0,
        }
    }

    /// Counts a message that the driver has brought.
    #[inline]
    pub(in crate::engine) fn note_arrival(&mut self, from: WorldRank) {
        self.arrived = self.arrived.wrapping_add(u32::from(from == self.rank));
    }
}

impl PointToPoint {
    /// Copies a message of this rank to itself into the posted receive that matches it. Returns false if the driver must
    /// move the message: no receive is posted, the receive cannot take the message as it is, or earlier messages to this
    /// rank are still queued or in flight.
    #[inline(never)]
    pub(in crate::engine) fn deliver_to_self(
        &mut self,
        header: &EagerHeader,
        bytes: &[u8],
    ) -> bool {
        let own = &mut self.own;
        let is_of_collective = header.ctx & 1 == 1;
        if !own.is_direct | is_of_collective {
            return false;
        }
        let peer = self.common.peers.peer_mut(own.rank);
        if !peer.is_clear() || peer.posted != own.arrived {
            return false;
        }
        own.in_a_row = (own.in_a_row + 1) % BY_DRIVER_EVERY;
        if own.in_a_row == 0 {
            return false;
        }
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: own.rank,
            tag: header.tag,
        };
        let mut receiver = None;
        // If the receive cannot take the message, it fails and the store keeps the message, as with any other sender.
        let arrival = self.matching.arrive_if(envelope, |recv| {
            let slot = self.common.ops.live(recv);
            let takes = slot.takes(header.sig, bytes.len());
            receiver = Some(slot);
            takes
        });
        let (Some((_, arrival)), Some(slot)) = (arrival, receiver) else {
            return false;
        };
        let filled = slot.fill(0, PayloadView::from_slice(bytes));
        assert!(filled, "`admit` said so");
        let waker = slot.land(MessageStatus {
            source: envelope.source,
            tag: envelope.tag,
            bytes: bytes.len(),
            arrival,
            stored: None,
        });
        self.common.wakers.extend(waker);
        true
    }
}
