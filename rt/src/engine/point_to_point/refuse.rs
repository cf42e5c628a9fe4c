//! Messages that this rank will not receive: their senders get their credits back, or an answer to their offer.

use super::{
    PointToPoint,
    message::{MessageBody, OfferedMessage, StoredBody},
};
use crate::{
    engine::{EngineCommons, LibraryEvent},
    error::ErrorKind,
    group::WorldRank,
    ops::OpInfo,
    proto::{
        matching::{MessageEnvelope, RecvPattern, UnexpectedHandle},
        wire::{self, OpId, WireKind},
    },
};

impl PointToPoint {
    /// Drops unexpected messages that no receive will ever match.
    pub(in crate::engine) fn forget_messages(
        &mut self,
        is_it: impl Fn(&MessageEnvelope, &StoredBody) -> bool,
    ) {
        let (matching, messages) = (&mut self.matching, &mut self.messages);
        let is_it = |envelope: &MessageEnvelope, index| is_it(envelope, &messages.get(index).body);
        for index in matching.drain_unexpected(is_it) {
            let mut message = self.messages.take(index);
            self.common.note_left_store(message.envelope);
            self.common.discharge(&mut message);
            let bytes = message.body.as_message_body().bytes();
            self.note_unreceived(message.envelope, message.sig, bytes);
            self.refuse_revoked(message.envelope, &message.body.as_message_body());
        }
    }

    /// Fails the posted receives that `which` selects, each with its error.
    pub(in crate::engine) fn fail_posted(
        &mut self,
        which: impl Fn(&RecvPattern) -> bool,
        error: impl Fn(&OpInfo) -> ErrorKind,
    ) {
        for op in self.matching.drain_posted(which) {
            let kind = error(&self.common.ops.live(op).info);
            self.common.complete_op(op, Err(kind));
        }
    }

    /// Refuses a message of a collective that will not begin, or of a communicator that is revoked or was dropped here.
    ///
    /// Notifies the sender, and returns its credits or its buffer.
    pub(in crate::engine) fn refuse_revoked(
        &mut self,
        envelope: MessageEnvelope,
        content: &MessageBody<'_>,
    ) {
        let source = envelope.source;
        if let Some(bytes) = content.uninvited() {
            self.pay_back(source, bytes);
        }
        if let MessageBody::InOp { op, .. } = content {
            self.release_void(*op);
        }
        if self.common.peers.down(source).is_some() {
            return;
        }
        self.common.tell_revoked(source, envelope.ctx);
        if let MessageBody::Offered(OfferedMessage { sender, .. }) = content {
            self.note_message_taken(source);
            let is_left = self.common.has_left(envelope.ctx) && !self.common.is_void(envelope.ctx);
            let why = if is_left {
                wire::REFUSED
            } else {
                wire::REVOKED
            };
            self.common
                .send_control(source, WireKind::Ats, *sender, why);
        }
    }

    /// Turns away a message that will not be received: refuses an offer, or returns the credits of an eager message.
    pub(in crate::engine) fn refuse_message(
        &mut self,
        source: WorldRank,
        content: &MessageBody<'_>,
    ) {
        if let Some(bytes) = content.uninvited() {
            self.pay_back(source, bytes);
        }
        if let MessageBody::Offered(offered) = content {
            self.note_message_taken(source);
            self.common
                .send_control(source, WireKind::Ats, offered.sender, wire::REFUSED);
        }
    }

    /// Stops receiving: posted receives fail, and unexpected messages are refused.
    pub(in crate::engine) fn stop_receiving(&mut self) {
        self.fail_posted(|_| true, |_| ErrorKind::Closed);
        self.common.end_packing_waits(None);
        for index in self.matching.drain_unexpected(|_, _| true) {
            let mut message = self.messages.take(index);
            self.common.discharge(&mut message);
            let bytes = message.body.as_message_body().bytes();
            self.note_unreceived(message.envelope, message.sig, bytes);
            self.refuse_message(message.envelope.source, &message.body.as_message_body());
        }
        // Probes hold the other offers. Their senders may wait for an answer before they leave, while this rank waits for them.
        for index in self.messages.offers(|_| true) {
            let message = self.messages.get(index);
            let source = message.envelope.source;
            if let MessageBody::Offered(OfferedMessage { sender, .. }) =
                message.body.as_message_body()
            {
                self.common
                    .send_control(source, WireKind::Ats, sender, wire::REFUSED);
            }
        }
        self.unpark_any();
    }

    /// [Refuses](Self::refuse_revoked) a message that has been given a place among the unexpected ones.
    pub(in crate::engine) fn refuse_at(
        &mut self,
        place: UnexpectedHandle,
        envelope: MessageEnvelope,
        content: &MessageBody<'_>,
    ) {
        self.matching.withdraw(place);
        self.refuse_revoked(envelope, content);
    }

    /// Turns away a message that arrives when this rank receives no more.
    #[cold]
    pub(in crate::engine) fn refuse_closing(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
    ) {
        self.note_unreceived(envelope, sig, content.bytes());
        self.refuse_message(envelope.source, content);
    }

    /// Releases the buffer of an operation without a future, once no stored message is in it. A transfer into the buffer that is
    /// in flight completes first.
    pub(in crate::engine) fn release_void(&mut self, orphan: OpId) {
        let is_in =
            |body: &StoredBody| matches!(body, StoredBody::InOp { op, .. } if *op == orphan);
        let done = self.common.ops.live(orphan).state.is_done();
        if done && self.messages.find(is_in).is_none() {
            self.common.release(orphan);
        }
    }
}

impl EngineCommons {
    /// Drops a message that the peer was not allowed to send. The peer violates the protocol or has other settings.
    pub(in crate::engine) fn drop_over_quota(
        &mut self,
        rank: WorldRank,
        content: &MessageBody<'_>,
    ) {
        self.refused += 1;
        let (me, peer) = (self.me, rank);
        self.report(LibraryEvent::OverQuota { rank: me, peer });
        if let MessageBody::Offered(offered) = content {
            self.send_control(rank, WireKind::Ats, offered.sender, wire::REFUSED);
        }
    }
}
