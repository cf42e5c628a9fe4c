//! Messages in packing blocks, at the receiver.

use super::{
    MessageTransmitter, PointToPoint,
    message::{OfferedMessage, StoredBody},
};
use crate::{
    engine::commons::BlockReader,
    proto::wire::{self, WireKind},
};

impl MessageTransmitter<'_> {
    /// Returns the bytes of a stored message, if it is in a packing block that this rank can read.
    pub(in crate::engine) fn read_in_place(&mut self, stored: u32) -> Option<BlockReader> {
        let message = self.p2p.messages.get(stored);
        let StoredBody::Offered(OfferedMessage {
            total,
            key,
            out_of_order: false,
            ..
        }) = message.body
        else {
            return None;
        };
        let source = message.envelope.source;
        if self.p2p.common.unreachable(source).is_some() || key.len != total {
            return None;
        }
        let node = self.driver.node_memory()?;
        let (region, at) = node.reach_on_node(source, key)?;
        let reader = BlockReader::new(region, usize::try_from(total).ok()?);
        reader.filter(|_| at == 0)
    }
}

impl PointToPoint {
    /// Takes a stored message that was read in place, and answers its offer.
    pub(in crate::engine) fn take_in_place(&mut self, stored: u32) {
        let mut message = self.messages.take(stored);
        let source = message.envelope.source;
        self.common.discharge(&mut message);
        self.note_message_taken(source);
        if let StoredBody::Offered(OfferedMessage { sender, .. }) = message.body {
            self.common
                .send_control(source, WireKind::Ats, sender, wire::OK);
        }
    }
}
