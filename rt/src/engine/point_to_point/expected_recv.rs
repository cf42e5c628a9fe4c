//! Messages of other ranks that go straight into the expected receive (rt/src/engine/calm.rs).

use ripstop_fabric::driver::{AwaitedHeader, PayloadView};

use super::{
    PointToPoint, order::take_credits_of, own_messages::land_expected_message, recv::pay_back_due,
};
use crate::{
    engine::commons::CalmState,
    group::WorldRank,
    ops::MessageStatus,
    proto::{
        matching::MessageEnvelope,
        wire::{EagerHeader, HeaderBase, WireKind, read, read_base},
    },
};

/// Longest message in bytes that a driver is asked for by its header.
const AWAITED_MAX: usize = 64;

/// Returns the header of the message that fills the expected receive, whose peer this is, if that message changes nothing else.
#[inline(always)]
pub(in crate::engine) fn awaited_header(
    p2p: &mut PointToPoint,
    from: WorldRank,
) -> Option<AwaitedHeader> {
    let is_usual = p2p.common.peers.reliable && !p2p.common.watches && from != p2p.common.me;
    let slot = p2p.common.ops.expected();
    let has_header = slot.info.tag.is_some() && slot.area.len <= AWAITED_MAX;
    let is_of_collective = slot.info.ctx & 1 == 1;
    let header = bytemuck::cast(slot.info.eager());
    (is_usual && has_header && !is_of_collective)
        .then(|| AwaitedHeader::new(header, HeaderBase::KNOWN))
}

/// Completes the expected receive, whose buffer the driver has filled with a message of its peer. Keeps the calm, unless
/// something must be sent now. `base` is the first word of the message's header.
#[inline(always)]
pub(in crate::engine) fn complete_awaited(p2p: &mut PointToPoint, from: WorldRank, base: u64) {
    let HeaderBase { credits, .. } = bytemuck::cast(base);
    let slot = p2p.common.ops.expected();
    let envelope = MessageEnvelope {
        ctx: slot.info.ctx,
        source: from,
        tag: slot.info.tag.unwrap_or(0),
    };
    let (arrival, len) = (p2p.matching.number_arrival(), slot.area.len);
    slot.land_unawaited(MessageStatus::of(envelope, arrival, len));
    p2p.common.calm = CalmState::Calm;
    let peer = p2p.common.peers.peer_mut(from);
    let due = peer.note_left(1, len);
    if !peer.take_credits(credits) {
        p2p.disturb(); // queued sends may leave now
        take_credits_of(p2p, from, credits);
    }
    pay_back_due(p2p, from, due);
}

/// Copies a message of another rank into the expected receive, and keeps the calm. Returns false, and changes nothing, if
/// there is no expected receive, if the receive does not take this message as it is, or if the message changes anything else.
#[inline(always)]
pub(in crate::engine) fn land_expected(
    p2p: &mut PointToPoint,
    rank: WorldRank,
    header: &[u8],
    body: PayloadView<'_>,
) -> bool {
    p2p.common.calm == CalmState::Expecting
        && !p2p.common.watches
        && rank != p2p.common.me
        && land_of_peer(p2p, rank, header, body).is_some()
}

#[inline(always)]
fn land_of_peer(
    p2p: &mut PointToPoint,
    rank: WorldRank,
    header: &[u8],
    body: PayloadView<'_>,
) -> Option<()> {
    let (envelope, sig, credits) = read_usual(rank, header)?;
    let slot = p2p.common.ops.expected();
    if !slot.info.wants(&envelope) || !slot.admits(sig, body.len()) {
        return None;
    }
    let peer = p2p.common.peers.peer_mut(rank);
    if !peer.take_credits(credits) {
        return None;
    }
    let due = peer.note_left(1, body.len());
    let slot = p2p.common.ops.expected();
    land_expected_message(slot, &mut p2p.matching, envelope, body);
    p2p.common.calm = CalmState::Calm;
    pay_back_due(p2p, rank, due);
    Some(())
}

/// Reads the header of a short message that concerns no collective: its envelope, its type, and the credits in it.
#[inline(always)]
pub(super) fn read_usual(rank: WorldRank, header: &[u8]) -> Option<(MessageEnvelope, u64, u16)> {
    let (WireKind::Eager, base) = read_base(header)? else {
        return None;
    };
    let EagerHeader { ctx, tag, sig, .. } = read(header)?;
    let envelope = MessageEnvelope {
        ctx,
        source: rank,
        tag,
    };
    let is_of_collective = ctx & 1 == 1;
    (!is_of_collective).then_some((envelope, sig, base.credits))
}
