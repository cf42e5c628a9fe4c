//! Connections: performs the actions of the state machine in `connect`.

use std::{io, sync::Arc};

use super::{
    connect_wire::LaneEnds,
    connection_cache::ConnectionCache,
    core::{VerbsCore, index},
    datagrams::{DatagramDelivery, DeferredDatagram},
    diagnose::{unconnected, unlike, unmatched},
    lane::{PeerLane, RemotePort},
    link::{REQUESTS_MAX, VerbsLink},
    objects::{QpConnectParams, VerbsCq, VerbsQp},
    rail::{RailDevice, VerbsRail},
    srq_drain::HeldReceives,
};
use crate::{
    connect::{ConnectAction, ConnectContext, ConnectEvent, ConnectState, QpAddress},
    driver::{Sink, WorldRank},
    lanes::{LaneFences, LaneSet},
};

impl VerbsCore {
    /// Connects to a peer, if it is not connected.
    pub(super) fn ensure_connected(&mut self, peer: WorldRank) {
        if peer == self.me {
            self.open_self();
        } else {
            self.request_connection(peer);
        }
    }

    /// Connects to a peer without queue pairs, if no other connection has to be evicted for it.
    pub(super) fn connect(&mut self, peer: WorldRank) {
        let met = self.links.get_mut(peer).is_some_and(|link| link.is_made());
        if !met && self.has_spare() && index(peer) < self.peers.len() && self.closing.is_none() {
            self.ensure_connected(peer);
        }
    }

    /// Connects this rank's queue pairs to themselves. Commands of a rank to itself go by the same devices that peers use,
    /// because their atomics and the processor's are not atomic with respect to each other. If one device fails, the others go
    /// on.
    fn open_self(&mut self) {
        let me = self.me;
        if self
            .links
            .get_mut(me)
            .is_some_and(|link| link.is_made() || link.down.is_some())
        {
            return;
        }
        let made = self.create(me).and_then(|()| {
            let lanes = self.links.get_or_new(me).qp_addresses();
            let ends = LaneEnds::new(lanes, &self.ports);
            self.bind(me, &ends)
        });
        match made {
            Ok(()) => self.open(me),
            Err(why) => self.fail(me, why),
        }
    }

    /// Handles the datagrams that wait, each after everything that arrived from its sender before, by any device. Devices do not
    /// report arrivals in the order in which they came by different queue pairs, and arrivals of a destroyed queue pair cannot be
    /// attributed to a peer. Returns the number of events.
    pub(super) fn deliver_deferred(&mut self, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        for _ in 0..self.datagrams.deferred.len() {
            let Some((from, late)) = self.datagrams.deferred.pop() else {
                break;
            };
            if self.has_arrivals_from(from) {
                self.datagrams.deferred.push(from, late);
                continue;
            }
            match late {
                DeferredDatagram::Connect(message, ends) => {
                    self.handle_connect_message(from, message, ends)
                }
                DeferredDatagram::Message(bytes) => {
                    events += self.deliver_datagram(from, &bytes, sink);
                }
            }
        }
        events
    }

    /// Delivers a datagram message, if it is the next one. Returns the number of events.
    fn deliver_datagram(&mut self, from: WorldRank, bytes: &[u8], sink: &mut dyn Sink) -> u32 {
        match self.datagrams().deliver(from, bytes, sink) {
            DatagramDelivery::Nothing => {}
            DatagramDelivery::Message => return 1,
            DatagramDelivery::Goodbye(how) => self.report_peer_down(from, how),
            DatagramDelivery::Malformed => {
                let why = format!("rank {from} sent a malformed message");
                self.fail(from, io::Error::other(why));
            }
        }
        0
    }

    fn has_arrivals_from(&mut self, peer: WorldRank) -> bool {
        (0..self.rails.len()).any(|lane| self.has_arrivals_by(PeerLane { peer, lane }))
    }

    /// Repeats the connection messages that were not answered in time.
    pub(super) fn retry_connects(&mut self) {
        if self.connecting.is_empty() {
            return;
        }
        let now = self.sleep.timer.now();
        for peer in self.connecting.clone() {
            let due = self
                .links
                .get_mut(peer)
                .and_then(|link| link.connection.next_timeout());
            if due.is_some_and(|due| due <= now) {
                self.links.get_or_new(peer).uses_alternates = true;
                self.handle_connect_event(peer, ConnectEvent::Timeout, None);
            }
        }
    }

    /// Returns when a turn is due next: for a retry, an eviction, a datagram message, or a queue pair to destroy.
    pub(super) fn next_retry(&self) -> Option<u64> {
        let eviction = self
            .connection_cache
            .as_ref()
            .and_then(ConnectionCache::next_eviction);
        let links = self
            .connecting
            .iter()
            .filter_map(|peer| self.links.get(*peer));
        let retries = links.filter_map(|link| link.connection.next_timeout());
        let datagram_retry = self.datagrams.next_retry(&self.links);
        let late = self.next_drain_deadline();
        retries
            .chain(eviction)
            .chain(datagram_retry)
            .chain(late)
            .min()
    }

    /// Passes an event to the connection of a peer, and performs the actions that follow.
    pub(super) fn handle_connect_event(
        &mut self,
        peer: WorldRank,
        event: ConnectEvent,
        ends: Option<LaneEnds>,
    ) {
        let mut actions = std::mem::take(&mut self.actions);
        let (now, local) = (self.sleep.timer.now(), self.local);
        let link = self.links.get_or_new(peer);
        if link.down.is_some() {
            self.actions = actions;
            return;
        }
        let cx = &mut ConnectContext {
            local: &local,
            now,
            actions: &mut actions,
        };
        let before = link.connection.state();
        link.connection.handle(event, cx);
        let awaited = link.connection.next_timeout().is_some();
        self.note_state(peer, before);
        if awaited {
            self.connecting.insert(peer);
        } else {
            self.connecting.remove(&peer);
        }
        let mut next = None;
        let mut rest = actions.drain(..).peekable();
        while let Some(action) = rest.next() {
            let performed = match action {
                // A failure follows: requests in flight end one by one, so the queue pairs are destroyed later.
                ConnectAction::Destroy if matches!(rest.peek(), Some(ConnectAction::Fail(_))) => {
                    self.retire_qps(peer);
                    Ok(())
                }
                action => self.perform(peer, action, ends.as_ref()),
            };
            if let Err(event) = performed {
                next = Some(event);
                break;
            }
            // The state machine would answer a peer that was started again. Here it counts as failed, so skip the rest.
            if self.links.get_or_new(peer).down.is_some() {
                break;
            }
        }
        drop(rest);
        actions.clear();
        self.actions = actions;
        if let Some(event) = next {
            self.handle_connect_event(peer, event, None);
        } else {
            self.settle_connection(peer);
        }
    }

    /// Performs an action.
    ///
    /// # Errors
    /// The event that happened instead.
    fn perform(
        &mut self,
        peer: WorldRank,
        action: ConnectAction,
        ends: Option<&LaneEnds>,
    ) -> Result<(), ConnectEvent> {
        match action {
            ConnectAction::Create => {
                let made = self.create(peer);
                made.map_err(|why| self.handle_uncreated(peer, why))?;
            }
            ConnectAction::Bind => {
                let bound = ends.ok_or_else(|| io::ErrorKind::InvalidData.into());
                let bound = bound.and_then(|ends| self.bind(peer, ends));
                bound.map_err(|why| self.handle_unbound(peer, why))?;
            }
            ConnectAction::Send(message) => self.datagrams().send_word(peer, message),
            ConnectAction::Greet => self.sends().greet_again(peer),
            ConnectAction::Open => self.open(peer),
            ConnectAction::Quiesce => self.quiesce(peer),
            ConnectAction::Destroy => self.forget_connection(peer),
            ConnectAction::Fail(why) => self.fail(peer, unconnected(why)),
        }
        Ok(())
    }

    /// Makes a queue pair on each device that has not failed and has a counterpart at the peer, up to the first device that has
    /// none left. Fails if a device may go on with a queue pair of the connection before, because requests of that one would be
    /// taken for those of the new one.
    fn create(&mut self, peer: WorldRank) -> io::Result<()> {
        if self.links.get_or_new(peer).is_stuck() {
            let why = "a device may still use a queue pair of the previous connection";
            return Err(io::Error::other(why));
        }
        let behind = self.peer_ports.get(index(peer));
        let theirs = 1 + behind.map_or(0, |ports| ports.len());
        let mine = self.rails.len();
        let wanted = if peer == self.me {
            mine
        } else {
            mine.min(theirs)
        };
        let mut qps = Vec::new();
        let mut refused = None;
        for lane in 0..wanted {
            match self.make_pair(PeerLane { peer, lane }) {
                Ok(qp) => qps.push(Some(qp)),
                Err(why) => {
                    refused = Some(why);
                    if self.rails[lane].failed.is_none() {
                        break;
                    }
                    qps.push(None);
                }
            }
        }
        while qps.pop_if(|last| last.is_none()).is_some() {}
        if let Some(why) = refused.filter(|_| qps.is_empty()) {
            return Err(why);
        }
        let now = self.sleep.timer.now();
        let link = self.links.get_or_new(peer);
        link.set_lanes(qps, link.next_psn());
        link.made_at = now;
        Ok(())
    }

    fn make_pair(&mut self, PeerLane { peer, lane }: PeerLane) -> io::Result<VerbsQp> {
        let Self { rails, outbox, .. } = self;
        let rail = &mut rails[lane];
        if let Some(why) = rail.failed {
            return Err(io::Error::other(why));
        }
        rail.inbox.reserve()?;
        match rail.pair(&outbox.lanes[lane].cq) {
            Ok(qp) => {
                rail.by_qpn.insert(qp.number(), peer);
                Ok(qp)
            }
            Err(why) => {
                rail.inbox.release();
                Err(why)
            }
        }
    }

    /// Handles that there is no queue pair for a peer. If no other connection can be evicted, a peer with queued commands is
    /// marked as failed. That includes control words that nothing else carries, for which `settle_connection` would ask again and
    /// again. If only the peer asked, it is refused and may ask again.
    fn handle_uncreated(&mut self, peer: WorldRank, why: io::Error) -> ConnectEvent {
        if is_used_up(&why) && self.handle_exhausted(peer) {
            return ConnectEvent::CreateFailed;
        }
        let talks = self.datagrams().accepts(peer);
        let link = self.links.get_or_new(peer);
        let wanted = link.connection.state() == ConnectState::ReqSent && !talks;
        if wanted || link.has_queued() {
            self.fail(peer, why);
        }
        ConnectEvent::CreateFailed
    }

    fn handle_unbound(&mut self, peer: WorldRank, why: io::Error) -> ConnectEvent {
        self.links.get_or_new(peer).broken.get_or_insert(why);
        ConnectEvent::Broken
    }

    /// Connects the lanes that both ranks have; a device that has failed has none. A lane that cannot be connected is left when
    /// the connection is open, if there is another lane.
    fn bind(&mut self, peer: WorldRank, ends: &LaneEnds) -> io::Result<()> {
        let (me, Self { links, rails, .. }) = (self.me, self);
        let link = links.get_mut(peer);
        let link = link.ok_or(io::ErrorKind::NotConnected)?;
        let lanes = ends.iter().count().min(link.lanes.len());
        for (lane, rail) in link.lanes.drain(lanes..).zip(&mut rails[lanes..]) {
            rail.take_back(lane.qp);
        }
        let mut broken = None;
        for ((lane, rail), (end, remote)) in link.lanes.iter_mut().zip(rails).zip(ends.iter()) {
            let Some(qp) = &lane.qp else { continue };
            if end.qpn == 0 {
                rail.take_back(lane.qp.take());
                lane.broken = true;
            } else if let Err(why) = rail.device.join(qp, lane.psn, end, &remote) {
                lane.broken = true;
                broken.get_or_insert(why);
            } else {
                lane.held_receives = HeldReceives::Some;
            }
        }
        if link.lanes.iter().all(|lane| lane.broken) {
            return Err(broken.unwrap_or_else(unmatched));
        }
        link.set_ends(me, peer, ends);
        Ok(())
    }

    fn open(&mut self, peer: WorldRank) {
        let link = self.links.get_or_new(peer);
        (link.open, link.met, link.uses_alternates) = (true, true, false);
        self.links.note_broken_lanes(peer);
        self.protect_from_eviction(peer);
        self.links.mark_dirty(peer);
        self.flush(peer);
    }

    /// Notes that data or a greeting came from a peer whose connection was not known to be complete.
    pub(super) fn note_peer_data(&mut self, peer: WorldRank, data: ConnectEvent) {
        let half = self.links.get_mut(peer).is_some_and(|link| {
            matches!(
                link.connection.state(),
                ConnectState::RepSent | ConnectState::Bound
            )
        });
        if half {
            self.handle_connect_event(peer, data, None);
        }
    }
}

impl RailDevice {
    /// Connects a queue pair of this device to a peer's end.
    pub(super) fn join(
        &self,
        qp: &VerbsQp,
        psn: u32,
        lane: QpAddress,
        remote: &RemotePort,
    ) -> io::Result<()> {
        if remote.ethernet != self.ethernet {
            return Err(unlike());
        }
        qp.connect(&QpConnectParams {
            route: remote.route(self.port, self.gid_index, self.ethernet),
            qpn: lane.qpn,
            our_psn: psn,
            their_psn: lane.psn,
            mtu: remote.mtu.min(self.mtu),
            reads_out: self.reads_out.min(remote.reads),
            reads_in: self.reads_in,
            timeout: self.timeout,
        })
    }
}

impl VerbsLink {
    /// Sets the peer's ends of the lanes. All lanes with a queue pair work from now on.
    pub(super) fn set_ends(&mut self, me: WorldRank, peer: WorldRank, ends: &LaneEnds) {
        let lanes = self.lanes.len();
        self.remote_ports = ends.iter().map(|(_, remote)| remote).take(lanes).collect();
        let present = (0..).zip(&self.lanes).filter(|(_, lane)| lane.qp.is_some());
        let present = present.fold(LaneSet::EMPTY, |all, (lane, _)| all.with(lane));
        self.fences = LaneFences::new(present);
        self.left = LaneSet::EMPTY;
        self.home = self.home_of(me, peer);
        self.arrival_lane = self.home;
    }
}

/// Returns true if resources that another connection releases may help.
fn is_used_up(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock | io::ErrorKind::QuotaExceeded
    )
}

impl VerbsRail {
    /// Makes a queue pair on this device, whose requests complete in `sends`.
    pub(super) fn pair(&self, sends: &Arc<VerbsCq>) -> io::Result<VerbsQp> {
        let queues = [sends, &self.inbox.cq];
        let qp = VerbsQp::connected(&self.device.pd, queues, &self.inbox.srq, REQUESTS_MAX)?;
        qp.init(self.device.port)?;
        Ok(qp)
    }

    /// Drops a queue pair that is not needed. Nothing was posted to it.
    fn take_back(&mut self, qp: Option<VerbsQp>) {
        if let Some(qp) = qp {
            self.by_qpn.remove(&qp.number());
            self.inbox.release();
        }
    }

    /// Returns this device's port, as peers name it.
    pub(super) const fn port(&self, table: u32, words: u32) -> RemotePort {
        RemotePort {
            gid: self.device.gid,
            lid: self.device.lid,
            mtu: self.device.mtu,
            reads: self.device.reads_in,
            ethernet: self.device.ethernet,
            table,
            datagram_qpn: words,
        }
    }
}
