//! Messages from peers that point-to-point handles without the other parts, and the ends of its commands.

use ripstop_fabric::driver::{CommandFailure, DownCause, PayloadView};

use super::{PointToPoint, message::MessageBody};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpState},
    proto::{
        matching::{ArrivalOutcome, MessageEnvelope, UnexpectedHandle},
        wire::{self, BareHeader, OpHeader, OpId, WireKind, read},
    },
};

/// Purpose of a one-sided command that failed.
enum CommandPurpose {
    Get,
    Put(OpId),
    /// One of the gets of a shared message.
    Split,
    /// The put of a shared message.
    Rear(OpId),
}

impl PointToPoint {
    /// Delivers a whole message to the receive that waits for it. If there is none, returns the message's place among the
    /// unexpected ones: the caller stores it there or refuses it.
    ///
    /// The common path is inlined, because calls would add a tenth to its time.
    #[inline(always)]
    pub(in crate::engine) fn arrive_whole(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        body: PayloadView<'_>,
    ) -> Option<UnexpectedHandle> {
        match self.matching.arrive(envelope, self.messages.next()) {
            ArrivalOutcome::Waits(place) => Some(place),
            ArrivalOutcome::Matched { recv, arrival } => {
                if let Err(kind) = self.deliver_bytes(recv, envelope, arrival, sig, body) {
                    let content = MessageBody::Bytes(body);
                    self.fail_recv_and_requeue(recv, kind, envelope, arrival, sig, &content);
                }
                None
            }
        }
    }

    /// Does the same as [`arrive_whole`](Self::arrive_whole) with an offer.
    pub(in crate::engine) fn arrive_offer(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
    ) -> Option<UnexpectedHandle> {
        match self.matching.arrive(envelope, self.messages.next()) {
            ArrivalOutcome::Waits(place) => Some(place),
            ArrivalOutcome::Matched { recv, arrival } => {
                if let Err(kind) = self.deliver(recv, envelope, arrival, sig, content) {
                    self.fail_recv_and_requeue(recv, kind, envelope, arrival, sig, content);
                }
                None
            }
        }
    }

    /// Handles a message that concerns no other part. Returns `None` if it is malformed or of a kind that does.
    pub(in crate::engine) fn handle_kind(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        header: &[u8],
        body: PayloadView<'_>,
    ) -> Option<()> {
        match kind {
            WireKind::Rtr => read(header).map(|header| self.common.handle_rtr(rank, &header)),
            WireKind::Fragment => {
                read(header).map(|header| self.handle_fragment(rank, &header, body))
            }
            WireKind::Atp => read(header).map(|header| self.handle_atp(rank, &header)),
            WireKind::Ats => read(header).map(|header| self.common.handle_ats(rank, &header)),
            WireKind::Cancel => read(header).map(|header| self.handle_cancel(rank, &header)),
            WireKind::CancelAck => {
                read(header).map(|header| self.common.handle_cancel_ack(rank, &header))
            }
            WireKind::SplitRtr => read(header).map(|header| self.handle_split_rtr(rank, &header)),
            WireKind::Packed => read(header).map(|header| self.common.handle_packed(rank, &header)),
            WireKind::Credit | WireKind::Ack | WireKind::Nack => Some(()),
            WireKind::Grant => {
                read(header).map(|header| self.common.peers.handle_grant(rank, &header))
            }
            WireKind::Limit => read(header).map(|header| self.handle_limit(rank, &header)),
            WireKind::QuotaRecall => {
                read(header).map(|BareHeader { .. }| self.common.peers.handle_recall(rank))
            }
            WireKind::FetchRequest => {
                read(header).map(|header| self.common.handle_fetch_request(rank, &header))
            }
            WireKind::FetchCandidate => {
                read(header).map(|header| self.handle_fetch_candidate(rank, &header))
            }
            WireKind::FetchMatched => {
                read(header).map(|OpHeader { op, .. }| self.common.handle_fetch_matched(rank, op))
            }
            WireKind::FetchIsFirst => {
                read(header).map(|OpHeader { op, .. }| self.handle_fetch_is_first(rank, op))
            }
            WireKind::FetchReturned => {
                read(header).map(|OpHeader { op, .. }| self.common.handle_fetch_returned(rank, op))
            }
            _ => None,
        }
    }

    /// Handles the completion of a command of a message.
    pub(in crate::engine) fn handle_completion(&mut self, op: OpId) {
        let slot = self.common.ops.live(op);
        match slot.state {
            OpState::Landing(landing) if landing.is_split => self.split_got(op),
            OpState::PuttingRear { receiver } => self.rear_put(op, receiver, wire::OK),
            OpState::Landing(landing) => {
                let (source, sender) = (landing.landed.source, landing.sender);
                self.common
                    .send_control(source, WireKind::Ats, sender, wire::OK);
                self.complete_recv(op);
            }
            OpState::Putting { receiver } => {
                let (to, bytes) = (slot.info.peer, slot.area.len);
                if let Some(to) = to {
                    self.common
                        .send_control(to, WireKind::Atp, receiver, wire::OK);
                }
                self.common.complete_op(op, Ok(MessageStatus::sent(bytes)));
            }
            _ => {}
        }
    }

    /// Handles the failure of a command of a message: the message takes another way, or its operation fails.
    pub(in crate::engine) fn handle_command_failure(&mut self, op: OpId, why: CommandFailure) {
        let slot = self.common.ops.live(op);
        let partner = slot.state.partner(&slot.info).unwrap_or(WorldRank(0));
        let purpose = match &slot.state {
            OpState::Landing(landing) if landing.fragments => return,
            OpState::Landing(landing) if landing.is_split => CommandPurpose::Split,
            OpState::Landing(_) => CommandPurpose::Get,
            OpState::Claiming { .. } => {
                slot.state = OpState::Offered; // the receiver gets all bytes itself, or has failed
                return;
            }
            OpState::PuttingRear { receiver } => CommandPurpose::Rear(*receiver),
            OpState::Putting { receiver } => CommandPurpose::Put(*receiver),
            _ => return,
        };
        let down = self
            .common
            .peers
            .down(partner)
            .or_else(|| matches!(why, CommandFailure::PeerDown).then_some(DownCause::Failed));
        match (purpose, down) {
            (_, Some(down)) => self.abandon(op, ErrorKind::of_down(partner, down)),
            // The fabric or the kernel refuses this transfer, as in a container without process_vm_readv. Use another way.
            (CommandPurpose::Get, None) => self.ask_for_fragments(op),
            (CommandPurpose::Put(receiver), None) => self.common.fall_back(op, receiver),
            (CommandPurpose::Split, None) => self.split_broken(op),
            (CommandPurpose::Rear(receiver), None) => self.rear_put(op, receiver, wire::REFUSED),
        }
    }
}
