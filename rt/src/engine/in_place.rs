//! Messages in packing blocks, which their receiver reads in place: the calls of both sides.

use std::sync::Arc;

use super::{BlockReader, Engine, PackingBlock, SendStart};
use crate::{
    buffer::{RecvBuf, SendBuf},
    group::WorldRank,
    ops::{MessageStatus, OpInfo, OpState, OpTicket},
    proto::wire::{self, OpId, WireKind},
    trace::TracedKind,
};

impl Engine {
    /// Returns a block to pack a message of so many bytes into, if its receiver may read it there.
    pub(crate) fn take_packing_block(
        &mut self,
        to: WorldRank,
        bytes: usize,
    ) -> Option<Arc<PackingBlock>> {
        let common = &mut self.core.p2p.common;
        if to == common.me || bytes <= common.paths.to(to).eager_max() || common.closing {
            return None;
        }
        let blocks = &mut common.packing_blocks;
        blocks.take(&mut *self.driver, to, bytes)
    }

    /// Offers a message whose elements are packed meanwhile. [`note_packed`](Self::note_packed) must follow.
    pub(crate) fn offer_while_packing<B: SendBuf>(&mut self, info: OpInfo, buf: B) -> SendStart<B> {
        let to = info.peer.expect("a send has a peer");
        if let Some(kind) = self.core.p2p.common.unsendable(info.ctx, to) {
            return SendStart::Refused(kind, buf);
        }
        let ticket = self.core.p2p.common.ops.hold_unpacked_send(info, buf);
        self.core.p2p.common.trace_op(TracedKind::Send, ticket.op);
        self.transmitter().queue(ticket.op, to);
        self.flush();
        SendStart::InFlight(ticket)
    }

    /// Records that the message in a block is packed, and detaches its send. Notifies a receiver that waits for that. The
    /// receiver may not look for the message before this rank goes on, so nothing here may wait for it.
    pub(crate) fn note_packed(&mut self, op: OpId, block: &PackingBlock) {
        let common = &mut self.core.p2p.common;
        let Some(slot) = common.ops.get(op) else {
            return;
        };
        slot.note_packed();
        let to = slot.info.peer.expect("a send has a peer");
        // The receiver may have asked for fragments meanwhile.
        if matches!(slot.state, OpState::Fragmenting { .. }) {
            common.peers.mark_to_flush(to);
        }
        if let Some(receiver) = block.asker() {
            common.send_control(to, WireKind::Packed, receiver, wire::OK);
        }
        common.detach(op);
        self.flush();
    }

    /// Returns the bytes of a stored message, if it can be read in place.
    pub(crate) fn read_in_place(&mut self, landed: &MessageStatus) -> Option<BlockReader> {
        self.transmitter().read_in_place(landed.stored?)
    }

    /// Creates a receive that has a stored message, and waits until the sender has packed it into this block.
    pub(crate) fn await_packing<B: RecvBuf>(
        &mut self,
        info: OpInfo,
        landed: &MessageStatus,
        block: &BlockReader,
        buf: B,
    ) -> OpTicket<B> {
        let common = &mut self.core.p2p.common;
        let ticket = common.ops.hold_in_place_recv(info, buf);
        common.await_packing(ticket.op, landed, block);
        ticket
    }

    /// Takes a stored message that was read in place. Its sender may use the block again.
    pub(crate) fn take_in_place(&mut self, landed: &MessageStatus) {
        if let Some(stored) = landed.stored {
            self.core.p2p.take_in_place(stored);
            self.flush();
        }
    }
}
