//! Messages that arrive before a receive takes them.

use ripstop_fabric::driver::PayloadView;

use super::{
    PointToPoint,
    message::{MessageBody, StoredMessage},
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    proto::{
        collective_id::CollectiveId,
        matching::{ArrivalNumber, MessageEnvelope, RecvPattern, UnexpectedHandle},
        wire::OpId,
    },
};

/// Message found for a receive that begins.
pub(in crate::engine) enum StoredMatch {
    Taken,
    Nothing,
    /// A stored message that the receive cannot take directly.
    Unfit,
}

impl PointToPoint {
    /// Stores an unexpected message of the application, or turns it away if this rank receives none on that communicator any
    /// more.
    #[inline]
    pub(in crate::engine) fn store_or_refuse(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
        place: UnexpectedHandle,
    ) {
        if self.common.has_stopped_receiving(envelope.ctx) {
            self.matching.withdraw(place);
            self.note_unreceived(envelope, sig, content.bytes());
            self.refuse_revoked(envelope, content);
        } else {
            let _stored = self.store_unexpected(envelope, sig, content, place);
        }
    }

    /// Stores an unexpected message if its sender has credits for it. Returns true if it is stored.
    pub(in crate::engine) fn store_unexpected(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
        place: UnexpectedHandle,
    ) -> bool {
        if !self.common.charge(envelope.source, content) {
            self.matching.withdraw(place);
            self.common.drop_over_quota(envelope.source, content);
            return false;
        }
        let body = self.messages.keep(content);
        self.messages.store(StoredMessage {
            envelope,
            sig,
            body,
            place: Some(place),
            withdrawn: false,
            charged: true,
        });
        true
    }

    /// Fails a receive that cannot take the message it matched. The message goes to the next matching receive, or is stored.
    #[cold]
    pub(in crate::engine) fn fail_recv_and_requeue(
        &mut self,
        recv: OpId,
        kind: ErrorKind,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        sig: u64,
        content: &MessageBody<'_>,
    ) {
        self.common.complete_op(recv, Err(kind));
        if !self.common.charge(envelope.source, content) {
            return self.common.drop_over_quota(envelope.source, content);
        }
        let message = StoredMessage {
            envelope,
            sig,
            body: self.messages.keep(content),
            place: None,
            withdrawn: false,
            charged: true,
        };
        self.put_back(message, arrival);
    }

    /// Returns true if everything that a peer sends arrives in the order in which it was sent.
    pub(in crate::engine) fn hears_in_order(&self) -> bool {
        self.common.peers.reliable && !self.fetches.is_active()
    }

    /// Returns true if messages need no more than matching.
    pub(in crate::engine) fn is_plain(&self) -> bool {
        // Lost and reordered messages set clocks, and an adapter that matches tags borrows buffers.
        self.hears_in_order() && self.hw_matching_min.is_none()
    }

    /// Takes the earliest message stored for a receive, if it came whole and `take` takes its signature and its bytes.
    pub(in crate::engine) fn take_stored_if(
        &mut self,
        want: RecvPattern,
        take: impl FnOnce(u64, PayloadView<'_>) -> bool,
    ) -> StoredMatch {
        let Some(found) = self.matching.peek(want) else {
            return StoredMatch::Nothing;
        };
        let message = self.messages.get(found.message);
        let bytes = match message.body.as_message_body() {
            MessageBody::Bytes(body) if take(message.sig, body) => body.len(),
            _ => return StoredMatch::Unfit,
        };
        self.matching.withdraw(found.at);
        self.common.note_left_store(found.envelope);
        let mut message = self.messages.take(found.message);
        self.common.discharge(&mut message);
        self.messages.recycle(message.body);
        self.pay_back(found.envelope.source, bytes);
        StoredMatch::Taken
    }

    /// Returns the sender of a message for this collective that was not received, if there is one.
    pub(in crate::engine) fn left_over(&mut self, id: CollectiveId) -> Option<WorldRank> {
        if !self.common.calls.early.may_have(id) {
            return None;
        }
        let any = RecvPattern {
            ctx: id.context,
            source: None,
            tag: Some(id.sequence),
        };
        self.matching.peek(any).map(|found| found.envelope.source)
    }
}
