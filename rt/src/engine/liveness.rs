//! Watches the peers that this rank waits for, on drivers that do not say who has died.
//!
//! Pings, answers and the news that somebody counts as failed are outside of all order: they are lost when there is no room.

use std::collections::BTreeSet;

use ripstop_fabric::driver::{Command, Down, Peer as Rank};

use super::{Core, Engine};
use crate::{
    clock::Time,
    ops::Life,
    proto::{
        alive::Alive,
        wire::{Kind, Plain},
    },
};

/// Receives from anybody watch all members of a communicator up to this size; of a larger one, those in contact.
const MEMBERS_MAX: usize = 64;

/// What the engine keeps for it; nothing of it is used where the driver tells of deaths.
pub(super) struct Liveness {
    alive: Alive,
    /// This rank, which needs no watching.
    me: u32,
    /// What is said outside of all order.
    pub(super) asides: Vec<(u32, Kind)>,
    /// Who failed, by the driver's word, since the last turn.
    pub(super) lost: Vec<u32>,
    /// Who failed by ours, or has given us up.
    given_up: Vec<u32>,
}

impl Liveness {
    /// `interval` is in nanoseconds.
    pub(super) fn new(interval: u64, me: u32) -> Self {
        Self {
            alive: Alive::new(interval),
            me,
            asides: Vec::new(),
            lost: Vec::new(),
            given_up: Vec::new(),
        }
    }
}

impl Engine {
    /// Looks after those who are waited for, if it is time to.
    pub(super) fn tend_alive(&mut self, now: Time) {
        if self.core.ended {
            return;
        }
        let now = now.nanos();
        let Some(liveness) = &mut self.core.liveness else {
            return;
        };
        if !self.driver.knows_peers() {
            return;
        }
        for rank in std::mem::take(&mut liveness.lost) {
            if let Some(why) = self.driver.why_down(Rank(rank)) {
                tracing::warn!(rank, why, "this rank counts as failed");
            }
        }
        if std::mem::take(&mut self.core.waits) {
            liveness.alive.expect_wait(now);
        }
        if liveness.alive.next_look().is_some_and(|due| due <= now) {
            let answers = |rank| self.driver.answers(Rank(rank));
            self.core.look(now, answers);
        }
        self.say_asides();
    }

    /// Where the driver tells of deaths, it is told whom something waits for: who never comes does not die either.
    pub(super) fn expect(&mut self) {
        let core = &mut self.core;
        if !core.watches && std::mem::take(&mut core.waits) {
            self.driver
                .expect(&mut || core.waited_for(usize::MAX).into_iter().map(Rank).collect());
        }
    }

    /// Says what there is to say outside of all order, and lets go of those who are given up.
    fn say_asides(&mut self) {
        let Some(liveness) = &mut self.core.liveness else {
            return;
        };
        let given_up = std::mem::take(&mut liveness.given_up);
        for (rank, kind) in std::mem::take(&mut liveness.asides) {
            // No room is like a loss.
            let _ = self.driver.post(Command::Message {
                to: Rank(rank),
                header: bytemuck::bytes_of(&Plain::new(kind)),
                body: &[],
            });
        }
        for rank in given_up {
            let how = self.driver.give_up(Rank(rank), None);
            self.core.lose(rank, how);
        }
    }

    /// When to look next. What began to wait since the last turn counts from that on.
    pub(super) fn next_look(&self) -> Option<Time> {
        let liveness = self.core.liveness.as_ref()?;
        if !self.driver.knows_peers() {
            return None; // it wakes us when it does
        }
        let next = liveness.alive.next_look();
        let next = next.or_else(|| self.core.waits.then_some(self.core.now.nanos()));
        next.map(Time::from_nanos)
    }
}

impl Core {
    /// A peer said something, so it lives. Says whether that is to be handled as usual.
    pub(super) fn hear(&mut self, rank: u32, kind: Kind) -> bool {
        let Some(liveness) = self.liveness.as_deref_mut() else {
            return true;
        };
        if self.peers.down(rank) == Some(Down::Failed) {
            // We have given it up, and what waited for it has ended: it cannot come back.
            if kind != Kind::Gone {
                liveness.asides.push((rank, Kind::Gone));
            }
            return false;
        }
        liveness.alive.handle_heard(rank, self.now.nanos());
        match kind {
            Kind::Ping => liveness.asides.push((rank, Kind::Pong)),
            Kind::Pong => {}
            Kind::Gone => liveness.given_up.push(rank),
            _ => return true,
        }
        false
    }

    fn look(&mut self, now: u64, answers: impl Fn(u32) -> u64) {
        let mut waited = self.waited_for(MEMBERS_MAX);
        let Some(liveness) = &mut self.liveness else {
            return;
        };
        waited.remove(&liveness.me);
        let found = liveness.alive.look(now, &waited, answers);
        let pings = found.to_ping.into_iter().map(|rank| (rank, Kind::Ping));
        let gone = found.failed.iter().map(|&rank| (rank, Kind::Gone));
        liveness.asides.extend(pings.chain(gone));
        liveness.given_up.extend(&found.failed);
        for rank in found.failed {
            tracing::warn!(
                rank,
                "nothing was heard of this rank for two intervals: it counts as failed"
            );
        }
    }

    /// The peers whose death would leave something waiting for ever; where that is anybody of a communicator, all its members up
    /// to so many.
    fn waited_for(&self, members_max: usize) -> BTreeSet<u32> {
        let mut waited: BTreeSet<u32> = self.peers.unacked().collect();
        let mut from_anybody = BTreeSet::new();
        self.ops.which(|slot| {
            let about = &slot.about;
            match &slot.life {
                Life::Posted(_) if about.peer.is_none() => {
                    from_anybody.insert(about.ctx);
                }
                Life::Posted(_) => waited.extend(about.peer),
                Life::Landing(landing) => {
                    waited.insert(landing.landed.source);
                }
                Life::Following { landed, .. } => {
                    waited.insert(landed.source);
                }
                Life::Remote { .. } => waited.extend(about.peer),
                life if life.is_sending() => waited.extend(about.peer),
                _ => {}
            }
            false
        });
        from_anybody.extend(self.followed());
        for ctx in from_anybody {
            self.add_members(ctx, members_max, &mut waited);
        }
        waited.extend(self.windows.waited_for());
        waited.extend(self.awaited_still());
        waited.extend(self.awaited_listed());
        waited.extend(self.awaited_agreed());
        waited.retain(|&rank| self.peers.down(rank).is_none());
        waited
    }

    fn add_members(&self, ctx: u32, members_max: usize, waited: &mut BTreeSet<u32>) {
        let Some(group) = self.members(ctx) else {
            return;
        };
        if group.len() <= members_max {
            waited.extend(group.members());
        } else {
            waited.extend(self.peers.met().filter(|&rank| group.contains(rank)));
        }
    }
}
