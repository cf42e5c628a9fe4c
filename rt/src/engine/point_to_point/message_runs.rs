//! Short messages that follow each other and have the same header, as in a window of them.
//!
//! What is the same for all of them is checked once. What is left for each message is the next receive of its list, and a copy.

use ripstop_fabric::driver::PayloadRun;

use super::{PointToPoint, expected_recv::read_usual, recv::pay_back_due};
use crate::{
    engine::commons::{CalmState, EngineCommons},
    group::WorldRank,
    ops::MessageStatus,
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
        let (envelope, sig, credits) = read_usual(rank, header)?;
        let mut receives = Some(self.matching.exact_receives(envelope)?);
        let EngineCommons {
            ops,
            peers,
            recorders,
            wakers,
            ..
        } = &mut self.common;
        let peer = peers.peer_mut(rank);
        if !peer.take_credits(credits) {
            return None;
        }
        let (mut landed_messages, body_len) = (0, bodies.body_len());
        // A receive is asked only for a message that is there, because its buffer may grow for it.
        while let Some(line) = receives
            && !bodies.is_over()
        {
            let slot = ops.live(self.matching.first_of(line));
            if !slot.takes(sig, body_len) {
                break;
            }
            let body = bodies.next().expect("not over");
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
            landed_messages += 1;
            receives = others;
        }
        let due = peer.note_left(landed_messages, body_len);
        pay_back_due(self, rank, due);
        Some(())
    }
}
