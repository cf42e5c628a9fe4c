//! Posts what point-to-point has queued: envelopes, fragments, and the commands of long messages.

use ripstop_fabric::driver::Driver;

use super::PointToPoint;
use crate::{
    engine::{
        OneSidedCommand,
        commons::transmit::{FlushResult, transmit, transmit_tagged},
    },
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpState},
    proto::wire::{
        FragmentHeader, HeaderBase, MODE_FRAGMENTS, MODE_GET, MODE_IN_PLACE, MODE_PUT, OpId,
        RtrHeader, RtsHeader, WireKind,
    },
};

/// Point-to-point with the driver.
pub(in crate::engine) struct MessageTransmitter<'a> {
    pub(in crate::engine) driver: &'a mut dyn Driver,
    pub(in crate::engine) p2p: &'a mut PointToPoint,
}

impl MessageTransmitter<'_> {
    /// Sends the envelope of an operation, for which the peer has room. Returns false if the driver has none.
    ///
    /// If credits for its bytes are missing, the message is offered instead, which costs the receiver only a header.
    pub(in crate::engine) fn send_envelope(&mut self, op: OpId, rank: WorldRank) -> bool {
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return true;
        };
        let bytes = slot.area.len;
        let whole = bytes <= self.p2p.common.paths.to(rank).eager_max() && !slot.info.synchronous;
        let peer = self.p2p.common.peers.peer_mut(rank);
        if whole && peer.credits.spend(bytes) {
            peer.header_quota.spend();
            let slot = self.p2p.common.ops.live(op);
            let mut header = slot.info.eager();
            let tag = header.tag_for(self.p2p.hw_matching_min, bytes);
            if !transmit_tagged(
                &mut *self.driver,
                peer,
                rank,
                tag,
                bytemuck::bytes_of_mut(&mut header),
                slot.bytes(0, bytes),
            ) {
                peer.credits.unspend(bytes);
                peer.header_quota.unspend();
                return false;
            }
            self.p2p
                .common
                .complete_op(op, Ok(MessageStatus::sent(bytes)));
            return true;
        }
        self.offer(op, rank)
    }

    fn offer(&mut self, op: OpId, rank: WorldRank) -> bool {
        let mut header = self.offer_header(op);
        let peer = self.p2p.common.peers.peer_mut(rank);
        let sent = transmit(
            &mut *self.driver,
            peer,
            rank,
            bytemuck::bytes_of_mut(&mut header),
            &[],
        );
        if sent {
            peer.header_quota.spend();
            let slot = self.p2p.common.ops.live(op);
            slot.state = OpState::Offered;
            let is_busy = slot.is_busy_offer();
            self.p2p.common.offers += u32::from(is_busy);
        } else if header.modes & (MODE_GET | MODE_IN_PLACE) != 0 {
            self.p2p.common.exposed.keep(op, rank, header.key);
        }
        sent
    }

    pub(in crate::engine) fn offer_header(&mut self, op: OpId) -> RtsHeader {
        let slot = self.p2p.common.ops.live(op);
        let range = slot.range(slot.area.len);
        let to = slot.info.peer;
        let key = to.and_then(|to| {
            self.p2p
                .common
                .exposed
                .expose_once(&mut *self.driver, op, to, range)
        });
        let slot = self.p2p.common.ops.live(op);
        let put = if self.driver.caps().one_sided {
            MODE_PUT
        } else {
            0
        };
        let get = if key.is_some() { MODE_GET } else { 0 };
        let in_block = key.is_some() && self.p2p.common.packing_blocks.has(slot.area);
        let in_place = if in_block { MODE_IN_PLACE } else { 0 };
        // Fragments can wait until the message is packed, as the sender posts them.
        let direct = if slot.is_packed() { get | put } else { 0 };
        let info = slot.info;
        RtsHeader {
            base: HeaderBase::new(WireKind::Rts),
            ctx: info.ctx,
            tag: info.tag.unwrap_or(0),
            sig: info.sig,
            total: slot.area.len as u64,
            sender: op,
            modes: direct | in_place | MODE_FRAGMENTS,
            key: key.unwrap_or_else(bytemuck::Zeroable::zeroed),
        }
    }

    pub(in crate::engine) fn flush_fragments(&mut self, rank: WorldRank) -> FlushResult {
        while let Some(&op) = self.p2p.common.peers.peer_mut(rank).fragments.front() {
            if self.send_fragments(op, rank) == FlushResult::Stuck {
                return FlushResult::Stuck;
            }
            self.p2p.common.peers.peer_mut(rank).fragments.pop_front();
        }
        FlushResult::All
    }

    fn send_fragments(&mut self, op: OpId, rank: WorldRank) -> FlushResult {
        let body_max = self.driver.caps_to(rank).body_max;
        loop {
            let Some(slot) = self.p2p.common.ops.get(op) else {
                return FlushResult::All;
            };
            let OpState::Fragmenting { receiver, sent } = slot.state else {
                return FlushResult::All;
            };
            if !slot.is_packed() {
                return FlushResult::Stuck; // `note_packed` flushes again
            }
            let left = slot.area.len - sent;
            if left == 0 {
                let bytes = slot.area.len;
                self.p2p
                    .common
                    .complete_op(op, Ok(MessageStatus::sent(bytes)));
                return FlushResult::All;
            }
            let piece = left.min(body_max);
            let mut header = FragmentHeader {
                base: HeaderBase::new(WireKind::Fragment),
                receiver,
                offset: sent as u64,
            };
            let peer = self.p2p.common.peers.peer_mut(rank);
            let body = slot.bytes(sent, piece);
            if !transmit(
                &mut *self.driver,
                peer,
                rank,
                bytemuck::bytes_of_mut(&mut header),
                body,
            ) {
                return FlushResult::Stuck;
            }
            slot.state = OpState::Fragmenting {
                receiver,
                sent: sent + piece,
            };
        }
    }

    /// Posts a command of a message, or one that any part of the engine may give. Returns true if it is posted or no longer
    /// needed.
    pub(in crate::engine) fn post(&mut self, one_sided: OneSidedCommand) -> bool {
        match one_sided {
            OneSidedCommand::Claim {
                op,
                claim,
                receiver,
            } => return self.post_claim(op, claim, receiver),
            OneSidedCommand::Invite { op } => self.invite(op),
            OneSidedCommand::TakeBackTagBuffer { op } => self.recall_tag_buffer(op),
            OneSidedCommand::Answer { op, first } => self.answer(op, first),
            of_any_part => {
                let common = &mut self.p2p.common;
                return common.post_one_sided(&mut *self.driver, of_any_part);
            }
        }
        true
    }

    /// Asks the sender to put, or to send fragments if it cannot reach this receive's buffer.
    fn invite(&mut self, op: OpId) {
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return;
        };
        let OpState::Landing(mut landing) = slot.state else {
            return;
        };
        if let Some(down) = self.p2p.common.peers.down(landing.landed.source) {
            return self
                .p2p
                .abandon(op, ErrorKind::of_down(landing.landed.source, down));
        }
        slot.blank(0..landing.landed.bytes);
        let range = slot.range(landing.landed.bytes);
        let Some(key) =
            self.p2p
                .common
                .exposed
                .expose(&mut *self.driver, op, landing.landed.source, range)
        else {
            self.p2p.ask_for_fragments(op);
            return;
        };
        let slot = self.p2p.common.ops.live(op);
        landing.sender_moves_rest = true;
        slot.state = OpState::Landing(landing);
        self.p2p.common.peers.control(
            landing.landed.source,
            &RtrHeader::put(landing.sender, op, key),
        );
    }
}
