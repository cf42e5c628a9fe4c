//! Connection cache, used when a rank has fewer queue pairs than peers.

use super::{
    ArbiterStep, ConnectEvent, ConnectKind, ConnectMessage, ConnectRequest, ConnectState,
    QpArbiter, SimConnections, SimWorld, index,
};

impl SimWorld {
    pub(super) fn connect_side(&mut self, slot: u32) {
        let dial = self.dial();
        if dial.shares.is_empty() {
            return self.handle_connection_event(slot, ConnectEvent::Connect, 0);
        }
        let rank = dial.sides[slot].rank;
        dial.shares[index(rank)].wait(slot);
        self.share_out(rank);
    }

    /// Handles a message about a connection. A request may have to wait for a queue pair.
    pub(super) fn admit_connection_message(
        &mut self,
        slot: u32,
        message: ConnectMessage,
        lane: u32,
    ) {
        let dial = self.dial();
        let side = &dial.sides[slot];
        let new = matches!(side.connection.state(), ConnectState::Idle);
        if new && message.kind == ConnectKind::Request && !dial.shares.is_empty() {
            let (rank, max) = (side.rank, dial.connections_max);
            let share = &mut dial.shares[index(rank)];
            if !share.has_room(max) {
                share.queue_request(ConnectRequest {
                    side: slot,
                    message,
                    lane,
                });
                return self.share_out(rank);
            }
        }
        self.handle_connection_event(slot, ConnectEvent::Message(message), lane);
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
        let dial = self
            .wire
            .as_ref()
            .and_then(|wire| wire.connections.as_ref());
        dial.is_some_and(|dial| !dial.shares.is_empty())
    }

    /// Acts on a side's new state. If a connection was evicted before a get's answer, the answer waits for the next connection.
    pub(super) fn settle_side(&mut self, slot: u32) {
        let side = &mut self.dial().sides[slot];
        let rank = side.rank;
        let state = side.connection.state();
        if side.draining && (side.flying == 0 || state != ConnectState::Draining) {
            side.draining = false;
            self.handle_connection_event(slot, ConnectEvent::Quiesced, 0);
        } else if state == ConnectState::Idle && !side.pending.is_empty() {
            self.connect_side(slot);
        } else {
            self.share_out(rank);
        }
    }

    /// Gives queue pairs to the sides that wait, as far as there are any.
    fn share_out(&mut self, rank: u32) {
        if self.hosts.is_killed(rank) {
            return; // its sides handle no events, so the loop below would never end
        }
        let max = self.dial().connections_max;
        if !self.dial().shares[index(rank)].begin() {
            return; // the outer call handles what this step leads to
        }
        loop {
            match self.dial().shares[index(rank)].next(max) {
                ArbiterStep::HandleRequest(caller) => {
                    self.handle_connection_event(
                        caller.side,
                        ConnectEvent::Message(caller.message),
                        caller.lane,
                    );
                }
                ArbiterStep::Connect(slot) => {
                    self.handle_connection_event(slot, ConnectEvent::Connect, 0)
                }
                ArbiterStep::Evict(slot) => {
                    self.stats.evictions += 1;
                    self.handle_connection_event(slot, ConnectEvent::Evict, 0);
                }
                ArbiterStep::Idle => break,
            }
        }
        self.dial().shares[index(rank)].end();
    }
}

impl SimConnections {
    pub(super) fn check_share(&self, slot: u32) {
        let rank = self.sides[slot].rank;
        let (share, max) = (self.shares.get(index(rank)), self.connections_max);
        let used = share.map_or(0, QpArbiter::used);
        assert!(
            used <= max,
            "rank {rank} has {used} connections, but may have {max}"
        );
    }
}
