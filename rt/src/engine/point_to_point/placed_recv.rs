//! Receives whose messages the driver writes straight to their buffers, because it asked for the place when the head of a message
//! had arrived.
//!
//! The message is matched then, as if all of it were there. Until the driver reports the rest, the receive is
//! [`Landing`](OpState::Landing) like that of an offered message: if its future is dropped, the message goes back to its place in
//! the queue, and its bytes still go to the buffer of the orphan. The buffer is lent meanwhile, so no other code releases it.

use ripstop_fabric::driver::{CommandToken, DownCause, MessagePlace, PayloadView};

use super::PointToPoint;
use crate::{
    engine::EngineCommons,
    error::ErrorKind,
    group::WorldRank,
    ops::{InboundTransfer, MessageStatus, OpState},
    proto::{
        matching::MessageEnvelope,
        wire::{self, EagerHeader, OpId, WireKind, read},
    },
};

impl PointToPoint {
    /// Lends the buffer of the receive that matches a message which has begun to arrive. The message waits until it is whole if
    /// there is no such receive, or if the receive would do anything else than take the bytes.
    pub(in crate::engine) fn lend_place(
        &mut self,
        rank: WorldRank,
        header: &[u8],
        len: usize,
    ) -> Option<MessagePlace> {
        let (WireKind::Eager, _) = wire::read_base(header)? else {
            return None;
        };
        let header: EagerHeader = read(header)?;
        // Receives of programs end with their programs, which do not wait for a driver to return their memory.
        let is_program = header.ctx & 1 == 1;
        let in_order = self.common.peers.reliable && !self.common.watches;
        if len == 0
            || is_program
            || self.common.closing
            || !in_order
            || self.common.peers.down(rank).is_some()
        {
            return None;
        }
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        let (earliest, op) = self.matching.earliest(envelope)?;
        if !self.common.ops.live(op).takes_later(header.sig, len) {
            return None;
        }
        let arrival = self.matching.give(earliest);
        let landed = MessageStatus::of(envelope, arrival, len);
        let slot = self.common.ops.live(op);
        slot.state = OpState::Landing(InboundTransfer::by_driver(landed));
        slot.lent = true;
        let into = slot.range(len);
        self.common.awaited_peers_changed = true;
        let token = CommandToken(op.pack());
        Some(MessagePlace { into, token })
    }

    /// Completes a receive whose message is in its place.
    pub(in crate::engine) fn end_arrival(
        &mut self,
        op: OpId,
        rank: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        self.common.take_over_buffer(op);
        if let Some((kind, base)) = wire::read_base(header) {
            // Messages of a driver that places them are in order, so this is the next one.
            self.handle_base(rank, kind, base, header, body);
        }
        self.pay_back(rank, body.len());
        self.complete_recv(op);
    }

    /// Fails a receive of which the rest of the message will never arrive.
    pub(in crate::engine) fn lose_arrival(&mut self, op: OpId) {
        let OpState::Landing(landing) = self.common.ops.live(op).state else {
            return;
        };
        let source = landing.landed.source;
        let down = self.common.peers.down(source).unwrap_or(DownCause::Failed);
        self.abandon(op, ErrorKind::of_down(source, down));
    }
}

impl EngineCommons {
    /// Returns true if the driver was writing the message of this receive to its place.
    pub(in crate::engine) fn is_arriving(&mut self, op: OpId) -> bool {
        let slot = self.ops.get(op);
        slot.is_some_and(
            |slot| matches!(slot.state, OpState::Landing(landing) if landing.by_driver),
        )
    }
}
