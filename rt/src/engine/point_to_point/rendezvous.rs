//! Handles the messages between RTS and completion of a rendezvous: RTR, fragments, ATP, ATS, and the withdrawal of an offer.

use ripstop_fabric::driver::{DownCause, PayloadView};

use super::PointToPoint;
use crate::{
    engine::{EngineCommons, OneSidedCommand},
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpSlot, OpState},
    proto::wire::{
        self, FragmentHeader, MODE_FRAGMENTS, MODE_PUT, OpHeader, OpId, RtrHeader, WireKind,
    },
};

impl PointToPoint {
    pub(in crate::engine) fn handle_fragment(
        &mut self,
        rank: WorldRank,
        header: &FragmentHeader,
        body: PayloadView<'_>,
    ) {
        let Some(slot) = self.common.ops.get(header.receiver) else {
            return;
        };
        let OpState::Landing(mut landing) = slot.state else {
            return;
        };
        let offset = usize::try_from(header.offset).unwrap_or(usize::MAX);
        let expected = landing.landed.source == rank
            && (landing.fragments || landing.sender_moves_rest)
            && offset == landing.received;
        if !expected
            || body.len() > landing.landed.bytes - landing.received
            || !slot.fill(offset, body)
        {
            self.common.refused += 1;
            return;
        }
        landing.received += body.len();
        slot.state = OpState::Landing(landing);
        if landing.received == landing.landed.bytes {
            self.complete_recv(header.receiver);
        }
    }

    /// Completes a receive whose sender has put all bytes.
    pub(in crate::engine) fn handle_atp(&mut self, rank: WorldRank, header: &OpHeader) {
        let Some(slot) = self.common.ops.get(header.op) else {
            return;
        };
        let OpState::Landing(landing) = slot.state else {
            return;
        };
        if landing.landed.source == rank && landing.is_split {
            self.rear_landed(header.op, header);
        } else if landing.landed.source == rank
            && landing.sender_moves_rest
            && landing.received == 0
        {
            self.complete_recv(header.op);
        } else {
            self.common.refused += 1;
        }
    }

    pub(in crate::engine) fn handle_cancel(&mut self, rank: WorldRank, header: &OpHeader) {
        if self.withdraw_parked(rank, header.op) {
            return self
                .common
                .send_control(rank, WireKind::CancelAck, header.op, wire::OK);
        }
        let Some(index) = self.messages.offer_of(rank, header.op) else {
            return self
                .common
                .send_control(rank, WireKind::CancelAck, header.op, wire::REFUSED);
        };
        let message = self.messages.get(index);
        let Some(place) = message.place else {
            message.withdrawn = true; // a probe holds it, and decides whether it is still received
            return;
        };
        self.matching.withdraw(place);
        let message = self.messages.take(index);
        self.common.note_left_store(message.envelope);
        self.drop_stored(message);
        self.common
            .send_control(rank, WireKind::CancelAck, header.op, wire::OK);
    }
}

/// Calls that concern the operations and the peers only.
impl EngineCommons {
    /// Sends the bytes of an offer of this rank in the way that the receiver chose: as a put or as fragments.
    pub(in crate::engine) fn handle_rtr(&mut self, rank: WorldRank, header: &RtrHeader) {
        let Some(slot) = self.sending_to(rank, header.sender) else {
            return;
        };
        match header.mode {
            MODE_PUT if header.key.len == slot.area.len as u64 && slot.is_packed() => {
                slot.state = OpState::Putting {
                    receiver: header.receiver,
                };
                self.commands.push(OneSidedCommand::Put {
                    op: header.sender,
                    key: header.key,
                    at: 0,
                });
            }
            MODE_FRAGMENTS => {
                slot.state = OpState::Fragmenting {
                    receiver: header.receiver,
                    sent: 0,
                };
                self.peers.peer_mut(rank).fragments.push_back(header.sender);
                self.peers.mark_to_flush(rank);
            }
            _ => self.refused += 1,
        }
    }

    pub(in crate::engine) fn handle_ats(&mut self, rank: WorldRank, header: &OpHeader) {
        let Some(slot) = self.sending_to(rank, header.op) else {
            return;
        };
        let bytes = slot.area.len;
        let outcome = match header.status {
            wire::OK => Ok(MessageStatus::sent(bytes)),
            wire::REVOKED => Err(ErrorKind::Revoked),
            _ => Err(ErrorKind::of_down(rank, DownCause::Finished)),
        };
        self.complete_op(header.op, outcome);
    }

    pub(in crate::engine) fn handle_cancel_ack(&mut self, rank: WorldRank, header: &OpHeader) {
        let Some(slot) = self.sending_to(rank, header.op) else {
            return;
        };
        let life = std::mem::replace(&mut slot.state, OpState::Offered); // if refused, the offer was matched and will complete
        let why = slot.take_why();
        if header.status == wire::OK
            && matches!(life, OpState::Withdrawing)
            && let Some(why) = why
        {
            self.handle_fetch_matched(rank, header.op); // in case it was offered out of order
            self.complete_op(header.op, Err(why));
        }
    }

    /// Sends a message as fragments after its put failed. Fragments always work.
    pub(in crate::engine) fn fall_back(&mut self, op: OpId, receiver: OpId) {
        let slot = self.ops.live(op);
        slot.state = OpState::Fragmenting { receiver, sent: 0 };
        if let Some(to) = slot.info.peer {
            self.peers.peer_mut(to).fragments.push_back(op);
            self.peers.mark_to_flush(to);
        }
    }

    /// Returns a send of this rank whose offer this peer has.
    pub(in crate::engine) fn sending_to(
        &mut self,
        rank: WorldRank,
        op: OpId,
    ) -> Option<&mut OpSlot> {
        let slot = self.ops.get(op)?;
        let offered = matches!(
            slot.state,
            OpState::Offered | OpState::Withdrawing | OpState::Claiming { .. }
        );
        (offered && slot.info.peer == Some(rank)).then_some(slot)
    }
}
