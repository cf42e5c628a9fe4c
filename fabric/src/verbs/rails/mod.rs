//! Several devices of a rank: what goes by which lane, and what becomes of it when a lane fails.
//!
//! Messages and words of two ranks go by one lane, the *home* of the pair, which both find without a word; so they stay in
//! order, and different pairs use different devices. Puts and gets go by any lane (`stripes`), long ones in pieces by all. What
//! counts, atomics and task lists go by the first lane, because two devices do not heed each other's atomics; a peer that is not
//! reached by it any more is lost to whoever has such a command for it.
//!
//! **A lane that fails** is left by both ranks (`leaving`): each takes its queue pair down, hands out what came by it, and says
//! so. When both have, nothing comes by it any more: puts and gets that it did not finish go by others, and messages go on with
//! the first that has not come. Who closes says so by all lanes (`ending`).

mod ending;
mod leaving;
mod stripes;

pub(super) use self::stripes::Striped;
use super::{
    core::{Core, index},
    link::Link,
    onesided::Op,
    posting::Stall,
    way::FIRST,
    wire::Word,
};
use crate::{
    driver::Failure,
    lanes::{LaneSet, pair},
};

impl Core {
    /// Whether what is bound to the first lane can go. A peer without it is lost to it. Before a connection is open nobody knows
    /// what that will have, and it waits.
    pub(super) fn need_first(&mut self, peer: u32) -> Result<(), Stall> {
        let link = self.links[index(peer)].as_deref();
        let has_first = |link: &Link| !link.open || !link.is_wide() || link.lanes_at_work().has(0);
        if link.is_none_or(has_first) {
            return Ok(());
        }
        self.give_up(peer);
        Err(Failure::PeerDown.into())
    }

    /// Nobody knows whether a command that is bound to the first lane was done before that failed, so the peer is lost.
    pub(super) fn lose_if_unsure(&mut self, peer: u32) {
        if self.link(peer).is_some_and(|link| link.is_wide()) {
            self.give_up(peer);
        }
    }

    /// A peer is needed that the first lane does not reach.
    fn give_up(&mut self, peer: u32) {
        let why = "counts, atomics and task lists go by the first of several devices, and it does not reach this rank any more";
        self.lose_for(peer, why);
    }

    /// Commands that may touch memory of a peer when a word comes there that is posted behind them. One lane keeps its order,
    /// but for messages behind reads and atomics that are not fenced.
    pub(super) fn touching(&mut self, peer: u32) -> Vec<u32> {
        let is_wide = self.link_or_new(peer).is_wide();
        // One that waits for a lane to be fenced knows where its memory is, and has nothing under way.
        let touches = |op: &Op| {
            let flies = op.flights > 0 && (is_wide || op.wish.asks());
            op.peer == peer && (flies || op.striped.is_some())
        };
        self.ops.all(touches)
    }

    /// Says that regions are forgotten, once nothing of them is under way.
    pub(super) fn say_forgot(&mut self, peer: u32) {
        while let Some(name) = self.link(peer).and_then(|link| link.forgetting.poll_over()) {
            self.say(peer, Word::Forgot(name));
        }
    }
}

/// As sets of lanes name it.
pub(super) fn number(lane: usize) -> u32 {
    u32::try_from(lane).unwrap_or(u32::MAX)
}

impl Link {
    /// The lanes that work.
    pub(super) const fn lanes_at_work(&self) -> LaneSet {
        self.fences.working()
    }

    /// The lane of messages and words. The first one while none works. What a rank says to itself goes by the first that works,
    /// in order with what it counts there.
    pub(super) fn home_of(&self, me: u32, peer: u32) -> usize {
        let home = if me == peer {
            self.lanes_at_work().iter().next()
        } else {
            self.fences.home(pair(me, peer))
        };
        home.map_or(FIRST, |lane| lane as usize)
    }
}
