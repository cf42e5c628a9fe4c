//! Messages from peers, taken from the slabs that the adapter has filled.

use super::{
    event::{End, Got, Kind},
    posted_recvs,
    peer::{Label, Life},
    send_pool::HEADER_MAX,
    driver_state::Portals,
};
use crate::driver::{self, Down, Sink};

impl Portals {
    /// Handles an event of the queue of arrivals.
    pub(super) fn handle_arrival(&mut self, got: Got, sink: &mut dyn Sink) {
        match got.event.kind {
            Kind::PtDisabled if self.fragile => self.handle_no_blocks(),
            Kind::PtDisabled => self.disabled = self.disabled.with(got.rail),
            Kind::Put if self.buffers.is_some() => self.handle_piece(&got, sink),
            Kind::Put if posted_recvs::is_lent(got.event.user) => self.handle_placed(&got, sink),
            Kind::Put => self.handle_message(&got, sink),
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
        self.ground.counters.lost.add(1);
        if let Some(lent) = &mut self.lent {
            lent.lose_events();
        }
        for rank in (0..).take(self.peers.len()) {
            if rank != self.me {
                self.lose(rank, Down::Failed);
            }
        }
    }

    fn handle_message(&mut self, got: &Got, sink: &mut dyn Sink) {
        let (event, rail) = (&got.event, got.rail);
        if event.end != End::Well {
            return self.lose_message(got);
        }
        self.take_message(got, sink);
        let slabs = &mut self.ground.rails[rail as usize].slabs;
        let place = slabs.place(event.start, event.mlength);
        let Some(place) = place.filter(|_| event.mlength > 0) else {
            return;
        };
        if slabs.done(place) {
            slabs.keep(place.slab);
            self.give_slabs(rail);
        }
    }

    /// Accounts for a message that broke off in transit.
    ///
    /// The adapter has reserved room for the whole message, because slabs take only whole messages. The received length in the
    /// event says nothing about that.
    #[cold]
    fn lose_message(&mut self, got: &Got) {
        let slabs = &mut self.ground.rails[got.rail as usize].slabs;
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
            .take(self.ground.rails.len())
            .for_each(|rail| self.give_slabs(rail));
    }

    fn give_slabs(&mut self, rail: u32) {
        while let Some(slab) = self.ground.rails[rail as usize].slabs.take_kept() {
            let given = self.ground.give_slab(rail, self.address.tables.eager, slab);
            if given.is_err() {
                return self.ground.rails[rail as usize].slabs.keep(slab);
            }
        }
    }

    /// Returns true if no message can arrive by a rail, because its adapter has no slab.
    pub(super) fn is_starved(&self, rail: u32) -> bool {
        self.ground.rails[rail as usize].slabs.are_all_kept()
    }

    fn take_message(&mut self, got: &Got, sink: &mut dyn Sink) {
        let event = &got.event;
        let [_, bits] = bytemuck::cast::<u64, [u32; 2]>(event.header);
        match self.next_message(got) {
            None => {}
            Some((rank, Label::Bye(how))) => self.lose(rank, how),
            Some((rank, Label::Message(header))) => {
                let len = event.mlength.saturating_sub(Label::padding(bits).into());
                self.hand_over(rank, got, usize::from(header), len, sink);
            }
        }
    }

    /// Returns sender and label of an arrived message, if it is the next one in order from that sender.
    pub(super) fn next_message(&mut self, got: &Got) -> Option<(u32, Label)> {
        let event = &got.event;
        let [number, bits] = bytemuck::cast::<u64, [u32; 2]>(event.header);
        let sender = if self.address.is_tagged(event.match_bits) {
            let lent = self.lent.as_ref();
            lent.and_then(|lent| lent.rank_of(event.initiator))
        } else {
            let sender = self.sender(got);
            sender.filter(|rank| event.match_bits == self.address.message_bits(*rank))
        };
        let (Some(rank), Some(label)) = (sender, Label::of(bits)) else {
            self.ground.counters.nonsense.add(1);
            return None;
        };
        let peer = &mut self.peers[rank as usize];
        peer.met = true;
        peer.heard = true;
        if number != peer.expected || peer.life == Life::Down {
            // An earlier message was refused, so the sender resends this one after it.
            self.ground.counters.repeated.add(1);
            return None;
        }
        peer.expected = number.wrapping_add(1);
        Some((rank, label))
    }

    /// Passes a message to the sink. `len` is the length of header and body together.
    fn hand_over(&self, from: u32, got: &Got, header_len: usize, len: u64, sink: &mut dyn Sink) {
        let (event, slabs) = (&got.event, &self.ground.rails[got.rail as usize].slabs);
        let from = driver::Peer(from);
        self.ground.counters.all.messages_received.add(1);
        if len == 0 {
            return sink.message(from, &[], driver::Payload::from_slice(&[]));
        }
        let place = slabs.place(event.start, len);
        let fits = header_len as u64 <= len && header_len <= HEADER_MAX;
        let Some(place) = place.filter(|_| fits) else {
            return self.ground.counters.nonsense.add(1);
        };
        let mut header = [0; HEADER_MAX];
        slabs.read(place, &mut header[..header_len]);
        let body = slabs.payload(place, header_len);
        sink.message(from, &header[..header_len], body);
    }

    /// Returns the rank that a message names as its sender, if the message comes from that rank's process.
    pub(super) fn sender(&self, got: &Got) -> Option<u32> {
        let event = &got.event;
        let rank = u32::try_from(event.match_bits & u64::from(u32::MAX)).ok()?;
        self.peers.get(rank as usize)?;
        let (process, _) = self.place(rank, got.rail)?;
        (process == event.initiator).then_some(rank)
    }
}
