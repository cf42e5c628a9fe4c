//! Several devices of a rank: which lane carries what, and what happens when a lane fails.
//!
//! * Messages and control words of two ranks go by one lane, the *home* of the pair, which both know without asking. So they stay
//!   in order, and different pairs use different devices.
//! * Puts and gets go by any lane (`stripes`), long ones in pieces by all.
//! * Counts, atomics and task lists go by the first lane, because the atomics of two devices are not atomic with respect to each
//!   other. A rank that has such a command for a peer that the first lane does not reach any more marks it as failed.
//!
//! **A lane that fails** is left by both ranks (`lane_failure`): each destroys its queue pair, delivers what came by it, and says
//! so. Once both have, nothing comes by it any more. Puts and gets that it did not complete then go by other lanes, and messages
//! go on with the first that has not arrived. A rank that closes says so by all lanes (`goodbye`).

mod goodbye;
mod lane_failure;
mod stripes;

pub(super) use self::stripes::VerbsStripe;
use super::{
    core::VerbsCore, lane::FIRST, link::VerbsLink, onesided::VerbsCommand, posting::PostStall,
};
use crate::{
    driver::{CommandFailure, WorldRank},
    lanes::{LaneSet, pair},
};

impl VerbsCore {
    /// Checks that a command for the first lane can go. A peer that has only others is marked as failed. Before a connection is
    /// open its lanes are not known, and the command waits.
    pub(super) fn require_first_lane(&mut self, peer: WorldRank) -> Result<(), PostStall> {
        let link = self.links.get(peer);
        let has_first =
            |link: &VerbsLink| !link.open || !link.is_wide() || link.lanes_at_work().has(0);
        if link.is_none_or(has_first) {
            return Ok(());
        }
        self.give_up(peer);
        Err(CommandFailure::PeerDown.into())
    }

    /// Marks a peer with several lanes as failed, since a command on the first lane may or may not have been done.
    pub(super) fn fail_if_uncertain(&mut self, peer: WorldRank) {
        if self.links.get_mut(peer).is_some_and(|link| link.is_wide()) {
            self.give_up(peer);
        }
    }

    /// Marks a peer as failed that is needed and that the first lane does not reach.
    fn give_up(&mut self, peer: WorldRank) {
        let why = "the path through the first device is lost: counters, atomics and task lists can only use that device, \
                   so the rank is considered failed";
        self.fail_and_notify(peer, why);
    }

    /// Returns the commands that may still touch memory of a peer when it gets a control word that is posted now. A single lane
    /// keeps its order, except that messages may overtake reads and atomics, which are not fenced.
    pub(super) fn touching(&mut self, peer: WorldRank) -> Vec<u32> {
        let is_wide = self.links.get_or_new(peer).is_wide();
        // A command that waits for a lane to be fenced knows where its memory is, although it has nothing in flight.
        let touches = |op: &VerbsCommand| {
            let flies = op.flights > 0 && (is_wide || op.rma.asks());
            op.peer == peer && (flies || op.striped.is_some())
        };
        self.ops.all(touches)
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
