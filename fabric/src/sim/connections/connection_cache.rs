//! Connection cache, used when a rank has fewer queue pairs than peers.

use super::{Caller, Dial, Event, Kind, Message, Next, Share, State, World, index};

impl World {
    pub(super) fn connect_side(&mut self, slot: u32) {
        let dial = self.dial();
        if dial.shares.is_empty() {
            return self.tell_side(slot, Event::Connect, 0);
        }
        let rank = dial.sides[slot].rank;
        dial.shares[index(rank)].wait(slot);
        self.share_out(rank);
    }

    /// Handles a message about a connection. A request may have to wait for a queue pair.
    pub(super) fn hear_word(&mut self, slot: u32, message: Message, lane: u32) {
        let dial = self.dial();
        let side = &dial.sides[slot];
        let new = matches!(side.connection.state(), State::Idle);
        if new && message.kind == Kind::Request && !dial.shares.is_empty() {
            let (rank, max) = (side.rank, dial.connections_max);
            let share = &mut dial.shares[index(rank)];
            if !share.has_room(max) {
                share.call(Caller {
                    side: slot,
                    message,
                    lane,
                });
                return self.share_out(rank);
            }
        }
        self.tell_side(slot, Event::Message(message), lane);
    }

    /// Records that a packet leaves through a connection.
    pub(in crate::sim) fn use_connection(&mut self, from: u32, to: u32) {
        if !self.has_shares() || self.network.is_inside(from, to) {
            return;
        }
        let slot = self.side(from, to);
        let dial = self.dial();
        dial.uses += 1;
        let side = &mut dial.sides[slot];
        side.flying += 1;
        let before = std::mem::replace(&mut side.used_at, dial.uses);
        dial.shares[index(from)].touch(slot, before, dial.uses);
    }

    /// Records that a packet has arrived through a connection.
    pub(in crate::sim) fn leave_connection(&mut self, from: u32, to: u32) {
        if self.network.is_inside(from, to) || !self.has_shares() {
            return;
        }
        let slot = self.side(from, to);
        self.dial().sides[slot].flying -= 1;
        self.settle_side(slot);
    }

    fn has_shares(&self) -> bool {
        let dial = self.wire.as_ref().and_then(|wire| wire.dial.as_ref());
        dial.is_some_and(|dial| !dial.shares.is_empty())
    }

    /// Acts on a side's new state. If a connection was evicted before a get's answer, the answer waits for the next connection.
    pub(super) fn settle_side(&mut self, slot: u32) {
        let side = &mut self.dial().sides[slot];
        let rank = side.rank;
        let state = side.connection.state();
        if side.draining && (side.flying == 0 || state != State::Draining) {
            side.draining = false;
            self.tell_side(slot, Event::Quiet, 0);
        } else if state == State::Idle && !side.pending.is_empty() {
            self.connect_side(slot);
        } else {
            self.share_out(rank);
        }
    }

    /// Gives queue pairs to the sides that wait, as far as there are any.
    fn share_out(&mut self, rank: u32) {
        if self.is_killed(rank) {
            return; // its sides handle no events, so the loop below would never end
        }
        let max = self.dial().connections_max;
        if !self.dial().shares[index(rank)].begin() {
            return; // the outer call handles what this step leads to
        }
        loop {
            match self.dial().shares[index(rank)].next(max) {
                Next::Hear(caller) => {
                    self.tell_side(caller.side, Event::Message(caller.message), caller.lane);
                }
                Next::Connect(slot) => self.tell_side(slot, Event::Connect, 0),
                Next::Evict(slot) => {
                    self.stats.evictions += 1;
                    self.tell_side(slot, Event::Evict, 0);
                }
                Next::Rest => break,
            }
        }
        self.dial().shares[index(rank)].end();
    }
}

impl Dial {
    pub(super) fn check_share(&self, slot: u32) {
        let rank = self.sides[slot].rank;
        let (share, max) = (self.shares.get(index(rank)), self.connections_max);
        let used = share.map_or(0, Share::used);
        assert!(
            used <= max,
            "rank {rank} has {used} connections and may have {max}"
        );
    }
}
