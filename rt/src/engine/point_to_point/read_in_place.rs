//! Messages in packing blocks, at the receiver.

use super::{
    MessageTransmitter, PointToPoint,
    message::{OfferedMessage, StoredBody},
};
use crate::{
    engine::{EngineCommons, commons::BlockReader},
    group::WorldRank,
    ops::{MessageStatus, OpState},
    proto::wire::{self, OpHeader, OpId, WireKind},
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

impl EngineCommons {
    /// Lets a receive wait until the sender of its stored message has packed it. It then completes without the bytes once more.
    pub(in crate::engine) fn await_packing(
        &mut self,
        op: OpId,
        landed: &MessageStatus,
        block: &BlockReader,
    ) {
        self.ops.live(op).state = OpState::AwaitsPacking(*landed);
        self.awaited_peers_changed = true;
        if !block.ask(op) || self.unreachable(landed.source).is_some() {
            self.complete_op(op, Ok(*landed));
        }
    }

    /// Completes a receive whose message is packed.
    pub(in crate::engine) fn handle_packed(&mut self, rank: WorldRank, header: &OpHeader) {
        let Some(slot) = self.ops.get(header.op) else {
            return; // it has given up
        };
        match slot.state {
            OpState::AwaitsPacking(landed) if landed.source == rank => {
                self.complete_op(header.op, Ok(landed));
            }
            // The receiver has seen that it is packed when it asked, or has given up.
            OpState::Done(_) | OpState::Failed => {}
            _ => self.refused += 1,
        }
    }

    /// Completes the receives that wait until this rank has packed, or any rank if that is `None`. Their futures look again at
    /// how much is packed, and whether its sender is there.
    pub(in crate::engine) fn end_packing_waits(&mut self, of: Option<WorldRank>) {
        let waiting = |state: &OpState| matches!(state, OpState::AwaitsPacking(_));
        for op in self.ops.select(|slot| waiting(&slot.state)) {
            if let OpState::AwaitsPacking(landed) = self.ops.live(op).state
                && of.is_none_or(|of| of == landed.source)
            {
                self.complete_op(op, Ok(landed));
            }
        }
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
