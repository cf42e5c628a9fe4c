//! Connections: performs the actions of the state machine in `connect`.

use std::{io, sync::Arc};

use super::{
    abi::Completion,
    address::Address,
    core::{Core, index},
    connect_wire::{self, Ends},
    srq_drain::Holds,
    link::{Link, REQUESTS_MAX},
    objects::{Connect, Cq, Qp},
    datagram_messages::is_parcel,
    rail::{Own, Rail},
    connection_cache::Scarce,
    deferred_datagrams::Late,
    lane::{FIRST, Far, To},
    diagnose::{unconnected, unlike, unmatched},
};
use crate::{
    connect::{Action, CAPS_NONE, Context, Event, Frame, Kind, Lane, Message, State},
    driver::Sink,
    lanes::{Fences, LaneSet},
};

impl Core {
    /// Connects to a peer, if it is not connected.
    pub(super) fn dial(&mut self, peer: u32) {
        if peer == self.me {
            self.open_self();
        } else {
            self.want(peer);
        }
    }

    /// Connects to a peer without queue pairs, if no other connection has to be evicted for it.
    pub(super) fn connect(&mut self, peer: u32) {
        let met = self.link(peer).is_some_and(|link| link.is_made());
        if !met && self.has_spare() && index(peer) < self.peers.len() && self.closing.is_none() {
            self.dial(peer);
        }
    }

    /// Connects this rank's queue pairs to themselves. Commands of a rank to itself go by the same devices that peers use,
    /// because their atomics and the processor's are not atomic with respect to each other. If one device fails, the others go
    /// on.
    fn open_self(&mut self) {
        let me = self.me;
        if self
            .link(me)
            .is_some_and(|link| link.is_made() || link.gone.is_some())
        {
            return;
        }
        let made = self.create(me).and_then(|()| {
            let lanes = self.link_or_new(me).lanes();
            let ends = Ends::new(lanes, &self.ports);
            self.bind(me, &ends)
        });
        match made {
            Ok(()) => self.open(me),
            Err(why) => self.fail(me, why),
        }
    }

    /// Handles a datagram that arrived by a device.
    pub(super) fn handle_datagram(&mut self, lane: usize, came: &Completion) {
        let Some(datagrams) = self.words_by(lane) else {
            return;
        };
        let bytes = datagrams.take(came);
        if is_parcel(&bytes) && lane == FIRST {
            return self.handle_parcel(bytes, came.src_qp);
        }
        let first = |rank| self.peers.get(index(rank)).map(Address::first);
        let Some((frame, ends)) = connect_wire::parse(&bytes, first) else {
            return;
        };
        let from = frame.message.from.rank;
        if self.speaks_by(from, lane, came.src_qp) && from != self.me {
            if lane != FIRST {
                let link = self.link_or_new(from);
                (link.goes_around, link.detour) = (true, lane);
            }
            let ends = (!frame.lanes.as_slice().is_empty()).then_some(ends);
            if let Some(ends) = &ends {
                self.hear_of_port(from, &ends.far[FIRST]);
            }
            self.unheard.push(from, Late::Word(frame.message, ends));
        }
    }

    /// Handles the datagrams that wait, each after everything that arrived from its sender before, by any device. Devices do not
    /// report arrivals in the order in which they came by different queue pairs, and arrivals of a destroyed queue pair cannot be
    /// attributed to a peer. Returns the number of events.
    pub(super) fn hear_late(&mut self, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        for _ in 0..self.unheard.len() {
            let Some((from, late)) = self.unheard.pop() else {
                break;
            };
            if self.has_arrivals_from(from) {
                self.unheard.push(from, late);
                continue;
            }
            match late {
                Late::Word(message, ends) => self.hear_word(from, message, ends),
                Late::Parcel(bytes) => events += self.hear_parcel(from, &bytes, sink),
            }
        }
        events
    }

    fn has_arrivals_from(&mut self, peer: u32) -> bool {
        (0..self.rails.len()).any(|lane| self.has_arrivals_by(To { peer, lane }))
    }

    /// Repeats the connection messages that were not answered in time.
    pub(super) fn redial(&mut self) {
        if self.dialling.is_empty() {
            return;
        }
        let now = self.sleep.timer.now();
        for peer in self.dialling.clone() {
            let due = self.link(peer).and_then(|link| link.dial.next_timeout());
            if due.is_some_and(|due| due <= now) {
                self.link_or_new(peer).goes_around = true;
                self.tell_dial(peer, Event::Timeout, None);
            }
        }
    }

    /// Returns when a turn is due next: for a retry, an eviction, a parcel, or a queue pair to destroy.
    pub(super) fn next_retry(&self) -> Option<u64> {
        let eviction = self.scarce.as_ref().and_then(Scarce::next_eviction);
        let links = self
            .dialling
            .iter()
            .filter_map(|peer| self.links[index(*peer)].as_ref());
        let retries = links.filter_map(|link| link.dial.next_timeout());
        let parcel = self.next_parcel();
        let late = self.next_late();
        retries.chain(eviction).chain(parcel).chain(late).min()
    }

    /// Passes an event to the connection of a peer, and performs the actions that follow.
    pub(super) fn tell_dial(&mut self, peer: u32, event: Event, ends: Option<Ends>) {
        let mut actions = std::mem::take(&mut self.actions);
        let (now, local) = (self.sleep.timer.now(), self.local);
        let link = self.link_or_new(peer);
        if link.gone.is_some() {
            self.actions = actions;
            return;
        }
        let cx = &mut Context {
            local: &local,
            now,
            actions: &mut actions,
        };
        let before = link.dial.state();
        link.dial.handle(event, cx);
        let awaited = link.dial.next_timeout().is_some();
        self.note_state(peer, before);
        if awaited {
            self.dialling.insert(peer);
        } else {
            self.dialling.remove(&peer);
        }
        let mut next = None;
        let mut rest = actions.drain(..).peekable();
        while let Some(action) = rest.next() {
            let performed = match action {
                // A failure follows: requests in flight end one by one, so the queue pairs are destroyed later.
                Action::Destroy if matches!(rest.peek(), Some(Action::Fail(_))) => {
                    self.doom(peer);
                    Ok(())
                }
                action => self.perform(peer, action, ends.as_ref()),
            };
            if let Err(event) = performed {
                next = Some(event);
                break;
            }
            // The state machine would answer a peer that was started again. Here it counts as failed, so skip the rest.
            if self.link_or_new(peer).gone.is_some() {
                break;
            }
        }
        drop(rest);
        actions.clear();
        self.actions = actions;
        if let Some(event) = next {
            self.tell_dial(peer, event, None);
        } else {
            self.settle_dial(peer);
        }
    }

    /// Performs an action.
    ///
    /// # Errors
    /// The event that happened instead.
    fn perform(&mut self, peer: u32, action: Action, ends: Option<&Ends>) -> Result<(), Event> {
        match action {
            Action::Create => {
                let made = self.create(peer);
                made.map_err(|why| self.handle_uncreated(peer, why))?;
            }
            Action::Bind => {
                let bound = ends.ok_or_else(|| io::ErrorKind::InvalidData.into());
                let bound = bound.and_then(|ends| self.bind(peer, ends));
                bound.map_err(|why| self.handle_unbound(peer, why))?;
            }
            Action::Send(message) => self.send_word(peer, message),
            Action::Greet => self.greet_again(peer),
            Action::Open => self.open(peer),
            Action::Quiesce => self.quiesce(peer),
            Action::Destroy => self.forget_connection(peer),
            Action::Fail(why) => self.fail(peer, unconnected(why)),
        }
        Ok(())
    }

    /// Makes a queue pair on each device that has not failed and has a counterpart at the peer, up to the first device that has
    /// none left. Fails if a device may go on with a queue pair of the connection before, because requests of that one would be
    /// taken for those of the new one.
    fn create(&mut self, peer: u32) -> io::Result<()> {
        if self.link_or_new(peer).is_stuck() {
            let why = "a device may go on with a queue pair of the connection before";
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
            match self.make_pair(To { peer, lane }) {
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
        let link = self.link_or_new(peer);
        link.set_ways(qps, link.next_psn());
        link.made_at = now;
        Ok(())
    }

    fn make_pair(&mut self, To { peer, lane }: To) -> io::Result<Qp> {
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
    /// marked as failed. That includes control words that nothing else carries, for which `settle_dial` would ask again and
    /// again. If only the peer asked, it is refused and may ask again.
    fn handle_uncreated(&mut self, peer: u32, why: io::Error) -> Event {
        if is_used_up(&why) && self.make_do(peer) {
            return Event::CreateFailed;
        }
        let talks = self.talks_to(peer);
        let link = self.link_or_new(peer);
        let wanted = link.dial.state() == State::ReqSent && !talks;
        if wanted || link.has_something() {
            self.fail(peer, why);
        }
        Event::CreateFailed
    }

    fn handle_unbound(&mut self, peer: u32, why: io::Error) -> Event {
        self.link_or_new(peer).broken.get_or_insert(why);
        Event::Broken
    }

    /// Connects the lanes that both ranks have; a device that has failed has none. A lane that cannot be connected is left when
    /// the connection is open, if there is another lane.
    fn bind(&mut self, peer: u32, ends: &Ends) -> io::Result<()> {
        let (me, Self { links, rails, .. }) = (self.me, self);
        let link = links[index(peer)].as_deref_mut();
        let link = link.ok_or(io::ErrorKind::NotConnected)?;
        let lanes = ends.iter().count().min(link.ways.len());
        for (way, rail) in link.ways.drain(lanes..).zip(&mut rails[lanes..]) {
            rail.take_back(way.qp);
        }
        let mut broken = None;
        for ((way, rail), (lane, far)) in link.ways.iter_mut().zip(rails).zip(ends.iter()) {
            let Some(qp) = &way.qp else { continue };
            if lane.qpn == 0 {
                rail.take_back(way.qp.take());
                way.broken = true;
            } else if let Err(why) = rail.own.join(qp, way.psn, lane, &far) {
                way.broken = true;
                broken.get_or_insert(why);
            } else {
                way.holds = Holds::Some;
            }
        }
        if link.ways.iter().all(|way| way.broken) {
            return Err(broken.unwrap_or_else(unmatched));
        }
        link.set_ends(me, peer, ends);
        Ok(())
    }

    fn open(&mut self, peer: u32) {
        let link = self.link_or_new(peer);
        (link.open, link.met, link.goes_around) = (true, true, false);
        self.leave_broken(peer);
        self.stay(peer);
        self.stir(peer);
        self.flush(peer);
    }

    /// Sends the connection messages that found no room, as when many connections are made at the same time.
    pub(super) fn speak_up(&mut self) {
        while self.has_room_for_words()
            && let Some((peer, message)) = self.unsaid.pop_front()
        {
            self.send_word(peer, message);
        }
    }

    fn send_word(&mut self, peer: u32, message: Message) {
        if !self.has_room_for_words() && !self.goes_around(peer) {
            return self.unsaid.push_back((peer, message));
        }
        let mut frame = Frame::bare(message);
        if matches!(message.kind, Kind::Request | Kind::Reply) {
            frame.caps = CAPS_NONE;
            frame.lanes = self.link_or_new(peer).lanes();
        }
        self.counters.connecting.add(1);
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        connect_wire::encode(&frame, &self.ports, self.moved, &mut bytes);
        let to = self.destination(peer);
        if let Some(to) = to.filter(|_| self.rails[FIRST].failed.is_none()) {
            // Errors are ignored: the message counts as lost, and is repeated until the peer counts as unreachable.
            let _lost = self.datagrams.send(&self.rails[FIRST].own.pd, &to, &bytes);
        }
        let once = matches!(message.kind, Kind::Reject(_));
        self.send_around(peer, &bytes, once);
        self.scratch = bytes;
    }

    /// Notes that data or a greeting came from a peer whose connection was not known to be complete.
    pub(super) fn hear_data(&mut self, peer: u32, data: Event) {
        let half = self
            .link(peer)
            .is_some_and(|link| matches!(link.dial.state(), State::RepSent | State::Bound));
        if half {
            self.tell_dial(peer, data, None);
        }
    }
}

impl Own {
    /// Connects a queue pair of this device to a peer's end.
    pub(super) fn join(&self, qp: &Qp, psn: u32, lane: Lane, far: &Far) -> io::Result<()> {
        if far.ethernet != self.ethernet {
            return Err(unlike());
        }
        qp.connect(&Connect {
            route: far.route(self.port, self.gid_index, self.ethernet),
            qpn: lane.qpn,
            our_psn: psn,
            their_psn: lane.psn,
            mtu: far.mtu.min(self.mtu),
            reads_out: self.reads_out.min(far.reads),
            reads_in: self.reads_in,
            timeout: self.timeout,
        })
    }
}

impl Link {
    /// Sets the peer's ends of the lanes. All lanes with a queue pair work from now on.
    pub(super) fn set_ends(&mut self, me: u32, peer: u32, ends: &Ends) {
        let lanes = self.ways.len();
        self.far = ends.iter().map(|(_, far)| far).take(lanes).collect();
        let present = (0..).zip(&self.ways).filter(|(_, way)| way.qp.is_some());
        let present = present.fold(LaneSet::EMPTY, |all, (lane, _)| all.with(lane));
        self.fences = Fences::new(present);
        self.left = LaneSet::EMPTY;
        self.home = self.home_of(me, peer);
        self.heard_by = self.home;
    }
}

/// Returns true if resources that another connection releases may help.
fn is_used_up(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock | io::ErrorKind::QuotaExceeded
    )
}

impl Rail {
    /// Makes a queue pair on this device, whose requests complete in `sends`.
    pub(super) fn pair(&self, sends: &Arc<Cq>) -> io::Result<Qp> {
        let queues = [sends, &self.inbox.cq];
        let qp = Qp::connected(&self.own.pd, queues, &self.inbox.srq, REQUESTS_MAX)?;
        qp.init(self.own.port)?;
        Ok(qp)
    }

    /// Drops a queue pair that is not needed. Nothing was posted to it.
    fn take_back(&mut self, qp: Option<Qp>) {
        if let Some(qp) = qp {
            self.by_qpn.remove(&qp.number());
            self.inbox.release();
        }
    }

    /// Returns this device's port, as peers name it.
    pub(super) const fn port(&self, table: u32, words: u32) -> Far {
        Far {
            gid: self.own.gid,
            lid: self.own.lid,
            mtu: self.own.mtu,
            reads: self.own.reads_in,
            ethernet: self.own.ethernet,
            table,
            words,
        }
    }
}
