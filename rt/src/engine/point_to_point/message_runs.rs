//! Short messages that follow each other and have the same header, as in a window of them.
//!
//! What is the same for all of them is checked once. What is left for each message is the next receive of its list, and a copy.

use ripstop_fabric::driver::PayloadRun;

use super::{PointToPoint, recv::pay_back_due};
use crate::{
    engine::commons::{CalmState, EngineCommons, peer::RoomDue},
    group::WorldRank,
    ops::MessageStatus,
    proto::{
        matching::MessageEnvelope,
        wire::{EagerHeader, WireKind, read, read_base},
    },
};

impl PointToPoint {
    /// Copies messages of another rank into the receives that were posted for exactly these. Leaves the rest in `bodies`: from
    /// the first message on that has no such receive, or needs anything else.
    #[inline]
    pub(in crate::engine) fn land_run(
        &mut self,
        rank: WorldRank,
        header: &[u8],
        bodies: &mut PayloadRun<'_>,
    ) {
        let is_usual = self.common.calm != CalmState::Expecting
            && self.common.peers.reliable
            && !(self.common.watches | self.common.closing)
            && rank != self.common.me;
        if is_usual {
            self.land_usual_run(rank, header, bodies);
        }
    }

    #[inline(always)]
    fn land_usual_run(
        &mut self,
        rank: WorldRank,
        header: &[u8],
        bodies: &mut PayloadRun<'_>,
    ) -> Option<()> {
        let (WireKind::Eager, base) = read_base(header)? else {
            return None;
        };
        let EagerHeader { ctx, tag, sig, .. } = read(header)?;
        let envelope = MessageEnvelope {
            ctx,
            source: rank,
            tag,
        };
        let mut receives = self.matching.exact_receives(envelope);
        let EngineCommons {
            ops,
            peers,
            recorders,
            wakers,
            ..
        } = &mut self.common;
        let peer = peers.peer_mut(rank);
        let is_of_collective = ctx & 1 == 1;
        if is_of_collective || !peer.sends.is_empty() {
            return None; // credits that come with the messages may let these sends leave
        }
        if base.credits > 0 {
            peer.credits.refund(base.credits);
        }
        let mut due = RoomDue::NOTHING;
        while let Some(line) = receives {
            let slot = ops.live(self.matching.first_of(line));
            if !slot.takes(sig, bodies.body_len()) {
                break;
            }
            let Some(body) = bodies.next() else {
                break;
            };
            let filled = slot.fill(0, body);
            assert!(filled, "`takes` said so");
            let (arrival, others) = self.matching.give_first(line);
            let landed = MessageStatus::of(envelope, arrival, body.len());
            if slot.waker.is_some() {
                recorders.note_end(slot, Some(&landed));
                wakers.extend(slot.land(landed));
            } else {
                slot.land_unawaited(landed);
            }
            due |= peer.note_left(body.len());
            receives = others;
        }
        pay_back_due(self, rank, due);
        Some(())
    }
}
