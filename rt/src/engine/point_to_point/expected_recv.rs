//! Messages of other ranks that go straight into the expected receive (rt/src/engine/calm.rs).

use ripstop_fabric::driver::PayloadView;

use super::{PointToPoint, own_messages::land_expected_message, recv::pay_back_due};
use crate::{
    engine::commons::CalmState,
    group::WorldRank,
    proto::{
        matching::MessageEnvelope,
        wire::{EagerHeader, WireKind, read, read_base},
    },
};

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
