//! Messages of this rank to itself. A short way past the driver leads from the sender's buffer into a posted receive.

use ripstop_fabric::driver::PayloadView;

use super::PointToPoint;
use crate::{
    engine::commons::CalmState,
    group::WorldRank,
    ops::{ChannelNumber, MessageStatus, OpInfo, OpSlot},
    proto::{
        matching::{Matching, MessageEnvelope},
        wire::OpId,
    },
};

/// Number of messages of a rank to itself that go past the driver between two that go by it.
const PASSES_MAX: u8 = u8::MAX;

/// Decides whether a message of this rank to itself may go past the driver.
#[derive(Debug)]
pub(in crate::engine) struct OwnMessages {
    /// Messages that the driver has brought from this rank, modulo 2³².
    arrived: u32,
    /// True if a processor copies the driver's messages anyway, and the driver keeps their order.
    is_direct: bool,
    /// True if messages to this rank itself may be queued or in flight.
    by_driver: bool,
    /// Number of messages that may go past the driver before one must go by it, because a rank that only talks to itself would
    /// make no turns. Zero also if something else is to be asked first.
    passes: u8,
}

impl OwnMessages {
    /// Records that a message goes by the driver, if it is one of this rank to itself.
    #[inline]
    pub(super) fn note_by_driver(&mut self, is_own: bool) {
        if is_own {
            self.by_driver = true;
            self.passes = 0;
        }
    }

    pub(in crate::engine) fn new(is_direct: bool) -> Self {
        Self {
            arrived: 0,
            is_direct,
            by_driver: false,
            passes: if is_direct { PASSES_MAX } else { 0 },
        }
    }

    /// Counts a message that the driver has brought, if it is from this rank.
    #[inline]
    fn note_arrival(&mut self, is_own: bool) {
        self.arrived = self.arrived.wrapping_add(u32::from(is_own));
    }
}

impl PointToPoint {
    /// Counts a message that the driver hands over, if it is this rank's own.
    #[inline]
    pub(in crate::engine) fn note_arrival(&mut self, rank: WorldRank) {
        self.own.note_arrival(rank == self.common.me);
    }

    /// Copies a message of this rank to itself into the posted receive that matches it. Returns false if the driver must
    /// move the message: no receive is posted, the receive cannot take the message as it is, or earlier messages to this
    /// rank are still queued or in flight.
    #[inline(always)]
    pub(in crate::engine) fn deliver_to_self(&mut self, info: &OpInfo, bytes: &[u8]) -> bool {
        if !self.may_pass_driver(info.ctx) {
            return false;
        }
        let envelope = own_envelope(self.common.me, info);
        let Some((earliest, recv)) = self.matching.earliest(envelope) else {
            return false;
        };
        let slot = self.common.ops.live(recv);
        if !slot.takes(info.sig, bytes.len()) {
            return false; // it fails, and the store keeps the message, as with any other sender
        }
        let arrival = self.matching.give(earliest);
        let body = PayloadView::from_slice(bytes);
        let filled = slot.fill(0, body);
        assert!(filled, "`takes` said so");
        let landed = MessageStatus::of(envelope, arrival, body.len());
        if slot.waker.is_some() {
            self.common.land_awaited(recv, landed);
        } else {
            slot.land_unawaited(landed);
        }
        true
    }

    /// Does the same as [`deliver_to_self`](Self::deliver_to_self) with the expected receive.
    #[inline(always)]
    pub(in crate::engine) fn deliver_expected(&mut self, info: &OpInfo, bytes: &[u8]) -> bool {
        if !self.may_pass_driver(info.ctx) {
            return false;
        }
        let envelope = own_envelope(self.common.me, info);
        let slot = self.common.ops.expected();
        if !slot.info.wants(&envelope) || !slot.admits_own(info, bytes.len()) {
            return false;
        }
        let body = PayloadView::from_slice(bytes);
        land_expected_message(slot, &mut self.matching, envelope, body);
        self.common.calm = CalmState::Calm;
        true
    }

    /// Does the same as [`deliver_expected`](Self::deliver_expected) if the expected receive is of the channel by which the
    /// message is sent, which is of this rank to itself. Type, tag and communicator are the same then.
    #[inline(always)]
    pub(in crate::engine) fn deliver_to_place(
        &mut self,
        channel: ChannelNumber,
        own: &MessageEnvelope,
        bytes: &[u8],
    ) -> bool {
        if !self.has_pass() {
            return false;
        }
        let slot = self.common.ops.expected();
        if !slot.is_place_for(channel, bytes.len()) {
            return false;
        }
        self.own.passes -= 1;
        let body = PayloadView::from_slice(bytes);
        land_expected_message(slot, &mut self.matching, *own, body);
        self.common.calm = CalmState::Calm;
        true
    }

    #[inline(always)]
    fn may_pass_driver(&mut self, ctx: u32) -> bool {
        let is_of_collective = ctx & 1 == 1;
        !is_of_collective && self.take_pass()
    }

    #[inline(always)]
    fn take_pass(&mut self) -> bool {
        let has_pass = self.has_pass();
        if has_pass {
            self.own.passes -= 1;
        }
        has_pass
    }

    #[inline(always)]
    fn has_pass(&mut self) -> bool {
        self.own.passes > 0 || self.renew_passes()
    }

    /// Lets messages of this rank to itself go past the driver again, after one that went by it. Returns false if the next one
    /// must go by the driver, too: there was none, it or a later one has not arrived, or one is queued.
    #[inline(never)]
    fn renew_passes(&mut self) -> bool {
        if !self.own.is_direct || !self.own.by_driver {
            return false;
        }
        let peer = self.common.peers.peer_mut(self.common.me);
        let are_here = peer.is_clear() && peer.posted == self.own.arrived;
        if are_here {
            self.own.by_driver = false;
            self.own.passes = PASSES_MAX;
        }
        are_here
    }
}

#[inline(always)]
fn own_envelope(me: WorldRank, info: &OpInfo) -> MessageEnvelope {
    MessageEnvelope {
        ctx: info.ctx,
        source: me,
        tag: info.tag.unwrap_or(0),
    }
}

/// Copies a message into the expected receive, which admits it, and completes the receive.
#[inline(always)]
pub(super) fn land_expected_message(
    slot: &mut OpSlot,
    matching: &mut Matching<OpId, u32>,
    envelope: MessageEnvelope,
    body: PayloadView<'_>,
) {
    debug_assert!(slot.marks == 0 && !slot.lent && !slot.info.probe);
    slot.fill_start(body);
    let arrival = matching.number_arrival();
    slot.land_unawaited(MessageStatus::of(envelope, arrival, body.len()));
}
