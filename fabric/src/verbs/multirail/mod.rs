//! Several devices of a rank: which lane carries what, and what happens when a lane fails.
//!
//! * Messages and control words of two ranks go by one lane, the *home* of the pair, which both know without asking. So they stay
//!   in order, and different pairs use different devices.
//! * Puts and gets go by any lane (`stripes` of `onesided`), long ones in pieces by all.
//! * Counts, atomics and task lists go by the first lane, because the atomics of two devices are not atomic with respect to each
//!   other. A rank that has such a command for a peer that the first lane does not reach any more marks it as failed.
//!
//! **A lane that fails** is left by both ranks (`lane_failure`): each destroys its queue pair, delivers what came by it, and says
//! so. Once both have, nothing comes by it any more. Puts and gets that it did not complete then go by other lanes, and messages
//! go on with the first that has not arrived. A rank that closes says so by all lanes (`send_flow`).

mod lane_failure;

use super::{core::VerbsCore, lane::FIRST, link::VerbsLink};
use crate::{
    driver::WorldRank,
    lanes::{LaneSet, pair},
};

impl VerbsCore {
    /// Marks peers as failed that a command needs by the first lane: it does not reach them, or the command may or may not have
    /// been done.
    #[inline]
    pub(super) fn fail_lost_peers(&mut self) {
        if !self.links.has_lost() {
            return;
        }
        for peer in self.links.take_lost() {
            let why = "the path through the first device is lost: counters, atomics and task lists can only use that device, \
                       so the rank is considered failed";
            self.fail_and_notify(peer, why);
        }
    }
}

/// Returns the number of a lane, as sets of lanes name it.
pub(super) fn number(lane: usize) -> u32 {
    u32::try_from(lane).unwrap_or(u32::MAX)
}

impl VerbsLink {
    /// Returns the lanes that work.
    pub(super) const fn lanes_at_work(&self) -> LaneSet {
        self.fences.working()
    }

    /// Returns the lane of messages and control words, or the first one while none works. Messages to this rank itself go by the
    /// first lane that works, in order with its counts there.
    pub(super) fn home_of(&self, me: WorldRank, peer: WorldRank) -> usize {
        let home = if me == peer {
            self.lanes_at_work().iter().next()
        } else {
            self.fences.home(pair(me.0, peer.0))
        };
        home.map_or(FIRST, |lane| lane as usize)
    }
}
