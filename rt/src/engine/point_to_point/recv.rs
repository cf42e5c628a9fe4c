//! Receives, from posting to completion.

use ripstop_fabric::driver::PayloadView;

use super::{
    PointToPoint,
    message::{MessageBody, OfferedMessage, StoredBody, StoredMessage},
};
use crate::{
    engine::{
        OneSidedCommand,
        commons::{EngineCommons, peer::RoomDue, program_events::ProgramEvent},
    },
    error::ErrorKind,
    group::WorldRank,
    ops::{InboundTransfer, MessageStatus, OpState, ReservedMessage},
    proto::{
        matching::{ArrivalNumber, ArrivalOutcome, MessageEnvelope, PostOutcome, RecvPattern},
        path::MessagePath,
        wire::{self, MODE_GET, MODE_IN_PLACE, MODE_PUT, OpId, WireKind},
    },
};

impl EngineCommons {
    /// Copies the message of a dropped receive to the receive that took it over.
    fn copy_from_orphan(&mut self, op: OpId, landed: MessageStatus, orphan: OpId) {
        let copy = self.ops.live(orphan).content(landed.bytes).to_vec();
        let filled = self.ops.live(op).fill(0, PayloadView::from_slice(&copy));
        assert!(filled, "`admit` said so");
        self.release(orphan);
        self.complete_op(op, Ok(landed));
    }

    /// Returns true if an offer that comes back must be dropped, because its sender is down or has withdrawn it.
    fn is_void_offer(&mut self, message: &StoredMessage) -> bool {
        let (source, StoredBody::Offered(offered)) = (message.envelope.source, &message.body)
        else {
            return false;
        };
        if message.withdrawn {
            self.send_control(source, WireKind::CancelAck, offered.sender, wire::OK);
        }
        message.withdrawn || self.peers.down(source).is_some()
    }
}

impl PointToPoint {
    /// Posts a receive that already owns its buffer.
    #[inline]
    pub(crate) fn recv(&mut self, op: OpId) {
        let slot = self.common.ops.live(op);
        let want = slot.info.want();
        match self.matching.post(want, op) {
            PostOutcome::Taken(taken) => {
                self.common.note_left_store(taken.envelope);
                let message = self.messages.take(taken.message);
                self.deliver_stored(op, message, taken.arrival);
            }
            PostOutcome::Waits(posted) => {
                slot.state = OpState::Posted(posted);
                self.common.awaited_peers_changed = true;
                // The sender is checked only now, because a message that has arrived is received even if its sender is down.
                if let Some(kind) = self.unmatchable_reason(&want) {
                    self.matching.unpost(posted);
                    self.common.complete_op(op, Err(kind));
                } else if self.fetches.is_active() {
                    self.fetch_for_recv(want);
                }
            }
        }
    }

    /// Does the same as [`recv`](Self::recv) where no message waits and nothing unusual is known. Returns false, and changes
    /// nothing, if a message waits.
    #[inline(always)]
    pub(in crate::engine) fn wait_for_message(&mut self, op: OpId) -> bool {
        let slot = self.common.ops.live(op);
        let Some(posted) = self.matching.post_waiting(slot.info.want(), op) else {
            return false;
        };
        slot.state = OpState::Posted(posted);
        self.common.awaited_peers_changed = true;
        true
    }

    /// Gives a stored message to the receive that matched it. If the receive refuses it, the message goes back to its place.
    pub(in crate::engine) fn deliver_stored(
        &mut self,
        op: OpId,
        mut message: StoredMessage,
        arrival: ArrivalNumber,
    ) {
        match self.deliver_message(op, &mut message, arrival) {
            Ok(()) => self.messages.recycle(message.body),
            Err(kind) => {
                self.common.complete_op(op, Err(kind));
                self.put_back(message, arrival);
            }
        }
    }

    /// Does the same as [`deliver`](Self::deliver). The message is charged to its sender only while it is stored.
    fn deliver_message(
        &mut self,
        op: OpId,
        message: &mut StoredMessage,
        arrival: ArrivalNumber,
    ) -> Result<(), ErrorKind> {
        let charged = self.common.discharge(message);
        let (envelope, content) = (message.envelope, message.body.as_message_body());
        let outcome = self.deliver(op, envelope, arrival, message.sig, &content);
        if outcome.is_err() {
            message.charged = charged && self.common.charge(envelope.source, &content);
        }
        outcome
    }

    /// Puts a message back in its place, or gives it to the first receive that matches it now and can take it.
    pub(in crate::engine) fn put_back(
        &mut self,
        mut message: StoredMessage,
        arrival: ArrivalNumber,
    ) {
        if self.common.is_void_offer(&message) {
            return self.drop_stored(message);
        }
        if self.common.closing {
            return self.drop_at_close(message);
        }
        if self.common.has_stopped_receiving(message.envelope.ctx) && !message.is_out_of_order() {
            self.common.discharge(&mut message);
            return self.refuse_revoked(message.envelope, &message.body.as_message_body());
        }
        if message.is_out_of_order() {
            return self.deliver_fetched(message, arrival);
        }
        // A loop instead of recursion, because any number of posted receives may have another type.
        while let Some(recv) = self.store_at(&mut message, arrival) {
            match self.deliver_message(recv, &mut message, arrival) {
                Ok(()) => return self.messages.recycle(message.body),
                Err(kind) => self.common.complete_op(recv, Err(kind)),
            }
        }
    }

    /// Drops a message that comes back when nothing is received any more.
    fn drop_at_close(&mut self, mut message: StoredMessage) {
        let (source, sought) = (message.envelope.source, message.is_out_of_order());
        let bytes = message.body.as_message_body().bytes();
        self.note_unreceived(message.envelope, message.sig, bytes);
        match message.body.as_message_body() {
            MessageBody::Offered(offered) if sought => {
                self.confirm_fetched(source, offered.sender);
                self.common
                    .send_control(source, WireKind::Ats, offered.sender, wire::REFUSED);
            }
            _ => {
                self.common.discharge(&mut message);
                self.refuse_message(source, &message.body.as_message_body());
            }
        }
    }

    /// Stores a message in its place. If a receive matches it, returns that receive and leaves the message with the caller.
    fn store_at(&mut self, message: &mut StoredMessage, arrival: ArrivalNumber) -> Option<OpId> {
        let index = self.messages.next();
        match self.matching.restore(message.envelope, arrival, index) {
            ArrivalOutcome::Matched { recv, .. } => Some(recv),
            ArrivalOutcome::Waits(place) => {
                self.common.note_stored(message.envelope, message.sig);
                let body = std::mem::replace(&mut message.body, StoredBody::NOTHING);
                let stored = self.messages.store(StoredMessage {
                    body,
                    place: Some(place),
                    ..*message
                });
                debug_assert_eq!(stored, index, "the next place is where it is stored");
                None
            }
        }
    }

    /// Copies a message to the receive's buffer, or returns the reason why the receive cannot take it.
    #[inline(always)]
    pub(in crate::engine) fn deliver_bytes(
        &mut self,
        op: OpId,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        sig: u64,
        body: PayloadView<'_>,
    ) -> Result<(), ErrorKind> {
        let slot = self.common.ops.live(op);
        if slot.info.probe | slot.lent {
            return self.store_or_give_to_probe(
                op,
                envelope,
                arrival,
                sig,
                &MessageBody::Bytes(body),
            );
        }
        let bytes = slot.admit(&envelope, sig, body.len() as u64)?;
        let filled = slot.fill(0, body);
        assert!(filled, "`admit` said so");
        let landed = MessageStatus::of(envelope, arrival, bytes);
        if slot.is_in_program() {
            self.common.program_events.push(ProgramEvent::Part(op));
        } else if slot.marks != 0
            && let Some(trace) = self.common.recorders.trace()
        {
            let reports = trace.ended(op, Some(&landed));
            self.common.wakers.extend(reports);
        }
        if slot.waker.is_none() {
            slot.land_unawaited(landed);
        } else {
            self.common.land_awaited(op, landed);
        }
        self.pay_back(envelope.source, bytes);
        Ok(())
    }

    /// Moves a message toward the receive's buffer, or returns the reason why the receive cannot take it.
    pub(in crate::engine) fn deliver(
        &mut self,
        op: OpId,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        sig: u64,
        content: &MessageBody<'_>,
    ) -> Result<(), ErrorKind> {
        if let MessageBody::Bytes(body) = *content {
            return self.deliver_bytes(op, envelope, arrival, sig, body);
        }
        let slot = self.common.ops.live(op);
        if slot.info.probe | slot.lent {
            return self.store_or_give_to_probe(op, envelope, arrival, sig, content);
        }
        let bytes = slot.admit(&envelope, sig, content.bytes())?;
        if let MessageBody::Offered(offered) = *content
            && slot.reads_in_place()
            && offered.modes & MODE_IN_PLACE != 0
        {
            self.give_to_probe(op, envelope, arrival, sig, content);
            return Ok(());
        }
        let landed = MessageStatus::of(envelope, arrival, bytes);
        match *content {
            MessageBody::Bytes(_) => unreachable!("delivered above"),
            MessageBody::Offered(offered) => {
                if offered.out_of_order {
                    self.confirm_fetched(envelope.source, offered.sender);
                } else {
                    self.note_message_taken(envelope.source);
                }
                self.start_transfer(op, landed, &offered);
            }
            MessageBody::InOp { op: orphan, .. } => self.follow_orphan(op, landed, orphan),
        }
        Ok(())
    }

    /// Stores a message whose receive does not take the bytes now: a probe never does, and another receive has lent its buffer.
    #[cold]
    fn store_or_give_to_probe(
        &mut self,
        op: OpId,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        sig: u64,
        content: &MessageBody<'_>,
    ) -> Result<(), ErrorKind> {
        if self.common.ops.live(op).info.probe {
            self.give_to_probe(op, envelope, arrival, sig, content);
        } else {
            let slot = self.common.ops.live(op);
            slot.admit(&envelope, sig, content.bytes())?;
            let stored = self.store_unqueued(envelope, sig, content);
            self.common
                .recall_buffer(op, Some(ReservedMessage { stored, arrival }));
        }
        Ok(())
    }

    /// Chooses how the bytes of an offer travel, and requests them.
    fn start_transfer(&mut self, op: OpId, landed: MessageStatus, offered: &OfferedMessage) {
        let refused = self.common.closing.then_some(ErrorKind::Closed);
        if let Some(kind) = refused.or_else(|| self.common.unreachable(landed.source)) {
            self.common
                .send_control(landed.source, WireKind::Ats, offered.sender, wire::REFUSED);
            return self.common.complete_op(op, Err(kind));
        }
        let landing = InboundTransfer {
            sender: offered.sender,
            landed,
            received: 0,
            fragments: false,
            sender_moves_rest: false,
            is_split: false,
            by_driver: false,
            follower: None,
        };
        self.common.ops.live(op).state = OpState::Landing(landing);
        self.common.awaited_peers_changed = true;
        if landed.bytes == 0 {
            self.common
                .send_control(landed.source, WireKind::Ats, offered.sender, wire::OK);
            self.complete_recv(op);
            return;
        }
        let get = offered.modes & MODE_GET != 0 && offered.key.len == offered.total;
        let put = offered.modes & MODE_PUT != 0;
        // A message may be shorter than those that the table says to offer: the sender lacked credits, the send is synchronous,
        // or the message was fetched. The arms for any path take such a message.
        let path = self
            .common
            .paths
            .to(landed.source)
            .choose(landed.bytes, offered.key.whole > 0);
        match path {
            MessagePath::RendezvousPut if put => {
                self.common.commands.push(OneSidedCommand::Invite { op })
            }
            MessagePath::Fragments => self.ask_for_fragments(op),
            _ if get && put && self.may_split(landed.bytes) => {
                self.common.commands.push(OneSidedCommand::Split {
                    op,
                    key: offered.key,
                });
            }
            _ if get => self.common.commands.push(OneSidedCommand::Get {
                op,
                key: offered.key,
                at: 0,
            }),
            _ if put => self.common.commands.push(OneSidedCommand::Invite { op }),
            _ => self.ask_for_fragments(op),
        }
    }

    /// Requests fragments, which always work.
    pub(in crate::engine) fn ask_for_fragments(&mut self, op: OpId) {
        let OpState::Landing(landing) = &mut self.common.ops.live(op).state else {
            return;
        };
        let source = landing.landed.source;
        if let Some(down) = self.common.peers.down(source) {
            return self.abandon(op, ErrorKind::of_down(source, down));
        }
        landing.fragments = true;
        let header = wire::RtrHeader::fragments(landing.sender, op);
        self.common.peers.control(source, &header);
    }

    /// Gives a receive the message that is in the buffer of a dropped receive: now, or when all bytes have arrived there.
    fn follow_orphan(&mut self, op: OpId, landed: MessageStatus, orphan: OpId) {
        let slot = self.common.ops.live(orphan);
        if let OpState::Landing(landing) = &mut slot.state {
            landing.follower = Some(op);
            self.common.ops.live(op).state = OpState::Following { orphan, landed };
        } else {
            self.common.copy_from_orphan(op, landed, orphan);
        }
    }

    /// Completes a receive, because all bytes of its message are in its buffer.
    pub(in crate::engine) fn complete_recv(&mut self, op: OpId) {
        let slot = self.common.ops.live(op);
        let OpState::Landing(landing) = slot.state else {
            return;
        };
        if !slot.orphan {
            self.common.complete_op(op, Ok(landing.landed));
            return;
        }
        slot.state = OpState::Done(landing.landed); // an orphan that is a message's body stays until the message is taken
        if let Some(follower) = landing.follower {
            let OpState::Following { landed, .. } = self.common.ops.live(follower).state else {
                return;
            };
            self.common.copy_from_orphan(follower, landed, op);
        } else {
            self.release_void(op);
        }
    }

    /// Drops the future of a receive. If the receive had a message, it goes back to its place in the queue.
    pub(crate) fn drop_recv(&mut self, op: OpId) {
        let Some(slot) = self.common.ops.get(op) else {
            return;
        };
        slot.orphan = true;
        let waker = slot.waker.take();
        self.common.let_go(waker);
        match &self.common.ops.live(op).state {
            _ if self.common.ended => self.common.release(op),
            OpState::Posted(posted) => {
                self.matching.unpost(*posted);
                // An orphan now, so it is released as soon as its buffer is back.
                self.common.complete_op(op, Err(ErrorKind::Cancelled));
            }
            OpState::Recalled(kept) => {
                if let Some(ReservedMessage { stored, arrival }) = *kept {
                    self.common.ops.live(op).state = OpState::Recalled(None);
                    self.common.ops.live(op).blame(ErrorKind::Cancelled);
                    self.return_probed(stored, arrival);
                }
            }
            OpState::Landing(landing) => {
                let landed = landing.landed;
                self.return_message(op, landed);
            }
            OpState::Following { orphan, landed } => {
                let (orphan, landed) = (*orphan, *landed);
                if let OpState::Landing(landing) = &mut self.common.ops.live(orphan).state {
                    landing.follower = None;
                }
                self.put_back_in_op(op, landed, orphan);
                self.common.release(op);
            }
            OpState::Done(landed) | OpState::AwaitsPacking(landed) => {
                let landed = *landed;
                match landed.stored {
                    Some(stored) => {
                        self.return_probed(stored, landed.arrival);
                        self.common.release(op);
                    }
                    None => self.return_message(op, landed),
                }
            }
            _ => self.common.release(op),
        }
    }

    fn return_message(&mut self, op: OpId, landed: MessageStatus) {
        self.put_back_in_op(op, landed, op);
    }

    /// Puts the message of the receive `op` back. It is in the buffer of `orphan`, or on its way there.
    fn put_back_in_op(&mut self, op: OpId, landed: MessageStatus, orphan: OpId) {
        let info = self.common.ops.live(op).info;
        let envelope = MessageEnvelope {
            ctx: info.ctx,
            source: landed.source,
            tag: landed.tag,
        };
        let body = StoredBody::InOp {
            op: orphan,
            bytes: landed.bytes,
        };
        self.put_back(
            StoredMessage {
                envelope,
                sig: info.sig,
                body,
                place: None,
                withdrawn: false,
                charged: false,
            },
            landed.arrival,
        );
    }

    /// Cancels a receive. Returns true if it had matched no message, or waited until its message is packed. Otherwise it
    /// completes as usual.
    pub(crate) fn unpost(&mut self, op: OpId, why: ErrorKind) -> bool {
        let Some(slot) = self.common.ops.get(op) else {
            return false;
        };
        let mut returned = None;
        match slot.state {
            OpState::Posted(posted) => drop(self.matching.unpost(posted)),
            OpState::AwaitsPacking(landed) => returned = landed.stored.zip(Some(landed.arrival)),
            _ => return false,
        }
        self.common.complete_op(op, Err(why));
        if let Some((stored, arrival)) = returned {
            self.return_probed(stored, arrival);
        }
        true
    }

    /// Ends a posted receive of a collective whose message came in another way.
    pub(in crate::engine) fn unpost_filled(&mut self, op: OpId) {
        if let OpState::Posted(posted) = self.common.ops.live(op).state {
            self.matching.unpost(posted);
        }
        self.common.release(op);
    }

    /// Returns the reason why a receive that found nothing will never get a message, if there is one.
    pub(crate) fn unmatchable_reason(&mut self, want: &RecvPattern) -> Option<ErrorKind> {
        if self.common.closing {
            return Some(ErrorKind::Closed);
        }
        if self.common.any_revoked()
            && let Some(kind) = self.common.revoked_kind(want.ctx, want.tag)
        {
            return Some(kind);
        }
        if self.common.peers.downs() == 0 {
            return None;
        }
        match want.source {
            Some(source) => self
                .common
                .peers
                .down(source)
                .map(|down| ErrorKind::of_down(source, down)),
            None => self.unreported_failures.take(want.ctx),
        }
    }

    /// Returns credits to the sender, because its message has left the store.
    #[inline(always)]
    pub(in crate::engine) fn pay_back(&mut self, rank: WorldRank, bytes: usize) {
        let due = self.common.peers.peer_mut(rank).note_left(1, bytes);
        pay_back_due(self, rank, due);
    }
}

/// Tells a sender that there is room again, if that is due. A message to it then waits to be posted.
#[inline(always)]
pub(super) fn pay_back_due(p2p: &mut PointToPoint, rank: WorldRank, due: RoomDue) {
    let scarce = p2p.common.peers.grants().is_scarce();
    if due.credits | due.quota | scarce {
        p2p.disturb();
        if due.credits && p2p.common.peers.down(rank).is_none() {
            p2p.common.say_credits(rank);
        }
        if due.quota || scarce {
            p2p.replenish(rank);
        }
    }
}
