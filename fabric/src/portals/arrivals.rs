//! Messages from peers, taken from the slabs that the adapter has filled.

use super::{
    driver_state::Portals,
    event::{PortalsEventKind, PortalsOutcome, RailEvent},
    peer::{MessageLabel, PortalsPeerState},
    posted_recvs,
    send_pool::HEADER_MAX,
    transport::PortalsTransport,
};
use crate::driver::{self, DownCause, Sink};

impl Portals {
    /// Handles an event of the queue of arrivals.
    pub(super) fn handle_arrival(&mut self, got: RailEvent, sink: &mut dyn Sink) {
        match got.event.kind {
            PortalsEventKind::PtDisabled => self.transport.note_disabled(got.rail),
            PortalsEventKind::Put if posted_recvs::is_posted_recv(got.event.user) => {
                self.handle_recv_event(&got, sink)
            }
            PortalsEventKind::Put => self.handle_message(&got, sink),
            _ => {}
        }
        if got.dropped {
            self.handle_loss();
        }
    }

    /// Handles lost events: the queue of arrivals overflowed although flow control should prevent that, or the completion queue
    /// did.
    ///
    /// The senders of lost messages are unknown, and count their messages as delivered. So no peer can be waited for any more,
    /// nor can operations whose completion was lost. All peers are reported as failed.
    pub(super) fn handle_loss(&mut self) {
        self.transport.resources.counters.lost.add(1);
        if let Some(lent) = &mut self.posted_recvs {
            lent.lose_events();
        }
        for rank in (0..).take(self.transport.peers.len()) {
            if rank != self.transport.me {
                self.report_peer_down(rank, DownCause::Failed);
            }
        }
    }

    fn handle_message(&mut self, got: &RailEvent, sink: &mut dyn Sink) {
        let (event, rail) = (&got.event, got.rail);
        if event.end != PortalsOutcome::Success {
            return self.transport.lose_message(got);
        }
        self.take_message(got, sink);
        let slabs = &mut self.transport.resources.rails[rail as usize].slabs;
        let place = slabs.place(event.start, event.mlength);
        let Some(place) = place.filter(|_| event.mlength > 0) else {
            return;
        };
        if slabs.done(place) {
            slabs.keep(place.slab);
            self.transport.give_slabs(rail);
        }
    }

    fn take_message(&mut self, got: &RailEvent, sink: &mut dyn Sink) {
        let event = &got.event;
        let [_, bits] = bytemuck::cast::<u64, [u32; 2]>(event.header);
        match self.next_message(got) {
            None => {}
            Some((rank, MessageLabel::Bye(how))) => self.report_peer_down(rank, how),
            Some((rank, MessageLabel::Message(header))) => {
                let len = event
                    .mlength
                    .saturating_sub(MessageLabel::padding(bits).into());
                self.transport
                    .hand_over(rank, got, usize::from(header), len, sink);
            }
        }
    }

    /// Handles the event of a message in a posted receive.
    fn handle_recv_event(&mut self, got: &RailEvent, sink: &mut dyn Sink) {
        let event = &got.event;
        let arrived = (self.posted_recvs.as_mut()).and_then(|lent| lent.take_arrived(event.user));
        let Some((offer, header)) = arrived else {
            return self.transport.resources.counters.nonsense.add(1);
        };
        let next = (event.end == PortalsOutcome::Success).then(|| self.next_message(got));
        let header_len = offer.header_len;
        let body_len = usize::try_from(event.mlength).unwrap_or(usize::MAX);
        let body_len = body_len.checked_sub(header_len);
        let body_len = body_len.filter(|len| *len <= offer.into.len());
        match (next.flatten(), body_len) {
            (Some((rank, MessageLabel::Message(label))), Some(len))
                if usize::from(label) == header_len =>
            {
                let header = &header[..header_len];
                self.transport
                    .resources
                    .counters
                    .all
                    .messages_received
                    .add(1);
                self.transport.resources.counters.all.placed.add(1);
                let body = offer.into.as_payload().first(len);
                sink.placed(offer.token, driver::WorldRank(rank), header, body);
            }
            (None, _) => sink.returned(offer.token),
            // No correct peer sends such a message with these bits.
            (Some((rank, _)), _) => {
                self.transport.resources.counters.nonsense.add(1);
                sink.returned(offer.token);
                self.report_peer_down(rank, DownCause::Failed);
            }
        }
    }

    /// Returns sender and label of an arrived message, if it is the next one in order from that sender.
    fn next_message(&mut self, got: &RailEvent) -> Option<(u32, MessageLabel)> {
        let event = &got.event;
        let [number, bits] = bytemuck::cast::<u64, [u32; 2]>(event.header);
        let sender = if self.transport.address.is_tagged(event.match_bits) {
            let lent = self.posted_recvs.as_ref();
            lent.and_then(|lent| lent.rank_of(event.initiator))
        } else {
            let sender = self.transport.sender(got);
            sender.filter(|rank| event.match_bits == self.transport.address.message_bits(*rank))
        };
        let (Some(rank), Some(label)) = (sender, MessageLabel::of(bits)) else {
            self.transport.resources.counters.nonsense.add(1);
            return None;
        };
        let peer = &mut self.transport.peers[rank as usize];
        peer.met = true;
        peer.heard = true;
        if number != peer.expected || peer.state == PortalsPeerState::Down {
            // An earlier message was refused, so the sender resends this one after it.
            self.transport.resources.counters.repeated.add(1);
            return None;
        }
        peer.expected = number.wrapping_add(1);
        Some((rank, label))
    }

    /// Handles a hint that words on this rank's board have changed.
    pub(super) fn handle_hint(&mut self, got: RailEvent) {
        let RailEvent { event, dropped, .. } = got;
        if dropped {
            self.transport.resources.counters.lost.add(1);
            let size = u32::try_from(self.transport.peers.len()).unwrap_or(u32::MAX);
            return (0..size).for_each(|rank| self.look_at(rank));
        }
        let Some(rank) = self.transport.sender(&got) else {
            return;
        };
        self.transport.peers[rank as usize].heard = true;
        if event.mlength > 0 {
            self.look_at(rank);
        }
    }

    fn look_at(&mut self, rank: u32) {
        if self.transport.look_at(rank) {
            self.commands.continue_stripes_to(&mut self.transport, rank);
        }
    }
}

impl PortalsTransport {
    /// Accounts for a message that broke off in transit.
    ///
    /// The adapter has reserved room for the whole message, because slabs take only whole messages. The received length in the
    /// event says nothing about that.
    #[cold]
    fn lose_message(&mut self, got: &RailEvent) {
        let slabs = &mut self.resources.rails[got.rail as usize].slabs;
        let slab = usize::try_from(got.event.user).unwrap_or(usize::MAX);
        if slabs.lost(slab, got.event.rlength.max(got.event.mlength)) {
            slabs.keep(slab);
            self.give_slabs(got.rail);
        }
    }

    /// Returns to the adapters the slabs that they did not take back before.
    ///
    /// The library does not signal when entries become available, so this is tried in each turn.
    pub(super) fn give_kept_slabs(&mut self) {
        (0..)
            .take(self.resources.rails.len())
            .for_each(|rail| self.give_slabs(rail));
    }

    fn give_slabs(&mut self, rail: u32) {
        while let Some(slab) = self.resources.rails[rail as usize].slabs.take_kept() {
            let given = self
                .resources
                .give_slab(rail, self.address.tables.eager, slab);
            if given.is_err() {
                return self.resources.rails[rail as usize].slabs.keep(slab);
            }
        }
    }

    /// Returns true if no message can arrive by a rail, because its adapter has no slab.
    pub(super) fn is_starved(&self, rail: u32) -> bool {
        self.resources.rails[rail as usize].slabs.are_all_kept()
    }

    /// Passes a message to the sink. `len` is the length of header and body together.
    fn hand_over(
        &self,
        from: u32,
        got: &RailEvent,
        header_len: usize,
        len: u64,
        sink: &mut dyn Sink,
    ) {
        let (event, slabs) = (&got.event, &self.resources.rails[got.rail as usize].slabs);
        let from = driver::WorldRank(from);
        self.resources.counters.all.messages_received.add(1);
        if len == 0 {
            return sink.message(from, &[], driver::PayloadView::from_slice(&[]));
        }
        let place = slabs.place(event.start, len);
        let fits = header_len as u64 <= len && header_len <= HEADER_MAX;
        let Some(place) = place.filter(|_| fits) else {
            return self.resources.counters.nonsense.add(1);
        };
        let mut header = [0; HEADER_MAX];
        slabs.read(place, &mut header[..header_len]);
        let body = slabs.payload(place, header_len);
        sink.message(from, &header[..header_len], body);
    }

    /// Returns the rank that a message names as its sender, if the message comes from that rank's process.
    pub(super) fn sender(&self, got: &RailEvent) -> Option<u32> {
        let event = &got.event;
        let rank = u32::try_from(event.match_bits & u64::from(u32::MAX)).ok()?;
        self.peers.get(rank as usize)?;
        let (process, _) = self.place(rank, got.rail)?;
        (process == event.initiator).then_some(rank)
    }
}
