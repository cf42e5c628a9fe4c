//! Messages that are out of the queue and stay in the store: those of probes, and those of receives that read in place.

use super::{
    PointToPoint,
    message::{MessageBody, StoredMessage},
};
use crate::{
    ops::{MessageStatus, OpInfo},
    proto::{
        matching::{ArrivalNumber, MessageEnvelope},
        wire::OpId,
    },
};

impl PointToPoint {
    /// Stores a message that is not in the queue any more, or never was. Returns its index.
    pub(super) fn store_unqueued(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
    ) -> u32 {
        let body = self.messages.keep(content);
        let charged = content.counts() && self.common.charge(envelope.source, content);
        self.messages.store(StoredMessage {
            envelope,
            sig,
            body,
            place: None,
            withdrawn: false,
            charged,
        })
    }

    /// Gives a probe the message itself, or a receive that reads it in place.
    pub(super) fn give_to_probe(
        &mut self,
        op: OpId,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        sig: u64,
        content: &MessageBody<'_>,
    ) {
        let stored = Some(self.store_unqueued(envelope, sig, content));
        let bytes = usize::try_from(content.bytes()).unwrap_or(usize::MAX);
        self.common.complete_op(
            op,
            Ok(MessageStatus {
                source: envelope.source,
                tag: envelope.tag,
                bytes,
                arrival,
                stored,
            }),
        );
    }

    /// Takes the earliest message that a probe matches out of the queue.
    pub(crate) fn try_probe(&mut self, info: &OpInfo) -> Option<MessageStatus> {
        let Some(found) = self.matching.peek(info.want()) else {
            let seeks = self.fetches.is_active();
            return seeks.then(|| self.fetch_for_probe(info)).flatten();
        };
        let taken = self.matching.take(found.at)?;
        let message = self.messages.get(taken.message);
        message.place = None;
        let MessageEnvelope { source, tag, .. } = taken.envelope;
        let bytes = usize::try_from(message.body.as_message_body().bytes()).unwrap_or(usize::MAX);
        let (arrival, stored) = (taken.arrival, Some(taken.message));
        Some(MessageStatus {
            source,
            tag,
            bytes,
            arrival,
            stored,
        })
    }

    /// Receives a probed message.
    pub(crate) fn recv_probed(&mut self, op: OpId, stored: u32, arrival: ArrivalNumber) {
        let message = self.messages.take(stored);
        self.deliver_stored(op, message, arrival);
    }

    /// Puts a probed message that will not be received back in its place.
    pub(crate) fn return_probed(&mut self, stored: u32, arrival: ArrivalNumber) {
        let message = self.messages.take(stored);
        self.put_back(message, arrival);
    }
}
