//! The pscom baseline: messages by buffers for each peer, with one appended entry and one acknowledgment per message,
//! and resends when a message is dropped.

use super::{
    super::{
        driver_state::Portals,
        event::{PortalsOutcome, RailEvent},
        match_entries::{EntryKind, MatchEntry},
        onesided::RESERVED,
        peer::{MessageLabel, PortalsPeerState, UserPtr},
        rma_calls::RemoteTarget,
        send_pool::HEADER_MAX,
    },
    buffers::{ArrivedPiece, BaselineBuffers, JoinedMessage},
};
use crate::driver::{self, DownCause, PayloadView, Sink};

impl Portals {
    /// Appends an entry for every buffer.
    pub(in super::super) fn lay_out_buffers(
        &self,
        buffers: &BaselineBuffers,
    ) -> std::io::Result<()> {
        let ranks = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        for from in 0..ranks {
            (0..buffers.receives()).try_for_each(|nth| self.append_buffer(buffers, from, nth))?;
        }
        Ok(())
    }

    fn append_buffer(&self, buffers: &BaselineBuffers, from: u32, nth: u32) -> std::io::Result<()> {
        let entry = MatchEntry {
            memory: Some(buffers.inbox(from, nth)),
            kind: EntryKind::Once {
                from: self.peer(from).address.process,
            },
            match_bits: self.own_address().message_bits(from),
            ignore_bits: 0,
        };
        let user = u64::from(from) << 32 | u64::from(nth);
        self.resources
            .append(self.own_address().tables.eager, &entry, user)
    }

    /// Queues a message. Returns true if there was room.
    pub(in super::super) fn send_by_buffers(
        &mut self,
        to: u32,
        label: MessageLabel,
        parts: [&[u8]; 2],
    ) -> bool {
        let credits = (self.credits - RESERVED.min(self.credits)) as usize;
        let Some(buffers) = &mut self.buffers else {
            return false;
        };
        let len = parts[0].len() + parts[1].len();
        let pieces = buffers.pieces(len);
        if pieces > buffers.room(to) || pieces > credits {
            return false;
        }
        let slots = buffers.fill(to, label.bits(), parts);
        let all = &self.resources.counters.all;
        all.messages_sent.add(1);
        all.copies.add(u64::from(len > 0));
        all.bytes_copied.add(len as u64);
        self.peer_mut(to).met = true;
        slots.into_iter().for_each(|slot| self.put_buffer(to, slot));
        true
    }

    fn put_buffer(&mut self, to: u32, slot: u32) {
        let Some(buffers) = &mut self.buffers else {
            return;
        };
        let Some(piece) = buffers.piece(to, slot) else {
            return;
        };
        let range = buffers.outbox(to, slot, piece.len);
        let peer = self.peer(to);
        let near = self
            .resources
            .local_span(range, UserPtr::Message(to, slot).bits());
        let far = RemoteTarget {
            process: peer.address.process,
            pt: peer.address.tables.eager,
            match_bits: peer.address.message_bits(self.me),
            offset: 0,
        };
        let header = u64::from(piece.label) << 32 | u64::from(piece.number);
        let later = if self.credits == 0 {
            true
        } else if let Err(refused) = self.resources.ni.put(near, far, header, true) {
            self.is_for_later(&refused)
        } else {
            return self.spend_credit(to);
        };
        if later && let Some(buffers) = &mut self.buffers {
            buffers.unsent.push_back((to, slot));
        } else {
            self.handle_buffer_end(to, slot, PortalsOutcome::Undeliverable);
        }
    }

    /// Puts the pieces that the library has refused so far.
    pub(in super::super) fn transmit_buffers(&mut self) {
        let unsent = self
            .buffers
            .as_ref()
            .map_or(0, |buffers| buffers.unsent.len());
        for _ in 0..unsent {
            let next = self
                .buffers
                .as_mut()
                .and_then(|buffers| buffers.unsent.pop_front());
            let Some((to, slot)) = next else { return };
            self.put_buffer(to, slot);
        }
    }

    /// Handles the completion of a put. A dropped piece is put again immediately, without limit.
    pub(in super::super) fn handle_buffer_end(&mut self, to: u32, slot: u32, end: PortalsOutcome) {
        let refused = matches!(end, PortalsOutcome::PtDisabled | PortalsOutcome::Dropped);
        self.resources.counters.refused.add(u64::from(refused));
        if !refused && end != PortalsOutcome::Success {
            self.suspect(to);
        }
        let again = refused
            && self
                .peers
                .get(to as usize)
                .is_some_and(|peer| peer.state != PortalsPeerState::Down);
        if again {
            return self.put_buffer(to, slot);
        }
        if let Some(buffers) = &mut self.buffers
            && (to as usize) < self.peers.len()
        {
            buffers.taken(to, slot);
        }
    }

    /// Handles an arrived piece. Its buffer is appended again afterwards.
    pub(in super::super) fn handle_piece(&mut self, got: &RailEvent, sink: &mut dyn Sink) {
        let event = &got.event;
        let [nth, rank] = bytemuck::cast::<u64, [u32; 2]>(event.user);
        let from = self.sender(got).filter(|from| {
            *from == rank && event.match_bits == self.own_address().message_bits(rank)
        });
        let Some(mut buffers) = self.buffers.take() else {
            return;
        };
        let place = from.and_then(|from| buffers.place(from, nth, event.mlength));
        match place {
            Some(place) if event.end == PortalsOutcome::Success => {
                self.take_piece(&mut buffers, place, event.header, sink);
            }
            _ => self.resources.counters.nonsense.add(1),
        }
        if (rank as usize) < self.peers.len() && nth < buffers.receives() {
            buffers.missing.push((rank, nth));
            self.append_missing(&mut buffers);
        }
        self.buffers = Some(buffers);
    }

    /// Appends the buffers for which the library had no entry before.
    pub(in super::super) fn give_missing_buffers(&mut self) {
        if let Some(mut buffers) = self.buffers.take() {
            self.append_missing(&mut buffers);
            self.buffers = Some(buffers);
        }
    }

    fn append_missing(&self, buffers: &mut BaselineBuffers) {
        while let Some((from, nth)) = buffers.missing.pop() {
            if self.append_buffer(buffers, from, nth).is_err() {
                return buffers.missing.push((from, nth));
            }
        }
    }

    fn take_piece(
        &mut self,
        buffers: &mut BaselineBuffers,
        place: ArrivedPiece,
        header: u64,
        sink: &mut dyn Sink,
    ) {
        let [number, label] = bytemuck::cast::<u64, [u32; 2]>(header);
        let from = place.from;
        self.peer_mut(from).met = true;
        let expected = self.peer(from).expected;
        if number != expected {
            if number.wrapping_sub(expected) < u32::MAX / 2 {
                buffers.keep(from, number, label, buffers.read(place));
            }
            return self.resources.counters.repeated.add(1);
        }
        self.peer_mut(from).expected = expected.wrapping_add(1);
        if buffers.is_whole(from, label) {
            self.take_whole(
                from,
                label,
                place.len,
                &BaselineMessage::InPlace(buffers, place),
                sink,
            );
        } else if let Some(whole) = buffers.join(from, label, buffers.read(place)) {
            self.take_whole(
                from,
                whole.label,
                whole.bytes.len(),
                &BaselineMessage::Joined(&whole),
                sink,
            );
        }
        while let Some((label, bytes)) = buffers.kept(from, self.peer(from).expected) {
            let next = self.peer(from).expected.wrapping_add(1);
            self.peer_mut(from).expected = next;
            if let Some(whole) = buffers.join(from, label, bytes) {
                self.take_whole(
                    from,
                    whole.label,
                    whole.bytes.len(),
                    &BaselineMessage::Joined(&whole),
                    sink,
                );
            }
        }
    }

    fn take_whole(
        &mut self,
        from: u32,
        label: u32,
        len: usize,
        lent: &BaselineMessage<'_>,
        sink: &mut dyn Sink,
    ) {
        if self.peer(from).state == PortalsPeerState::Down {
            return;
        }
        match MessageLabel::of(label) {
            Some(MessageLabel::Bye(how)) => self.report_peer_down(from, how),
            Some(MessageLabel::Message(header_len))
                if usize::from(header_len) <= len.min(HEADER_MAX) =>
            {
                self.resources.counters.all.messages_received.add(1);
                let header_len = usize::from(header_len);
                let mut header = [0; HEADER_MAX];
                lent.read(&mut header[..header_len]);
                sink.message(
                    driver::WorldRank(from),
                    &header[..header_len],
                    lent.body(header_len),
                );
            }
            _ => self.resources.counters.nonsense.add(1),
        }
    }

    /// Handles a disabled portal table entry, which is fatal in MPC's layout: every peer is lost.
    pub(in super::super) fn handle_no_blocks(&mut self) {
        let me = self.me;
        let ranks = 0..u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        for rank in ranks.filter(|rank| *rank != me) {
            self.report_peer_down(rank, DownCause::Failed);
        }
    }
}

/// Bytes of a whole message.
enum BaselineMessage<'a> {
    /// In its receive buffer.
    InPlace(&'a BaselineBuffers, ArrivedPiece),
    /// Joined from pieces.
    Joined(&'a JoinedMessage),
}

impl BaselineMessage<'_> {
    fn read(&self, into: &mut [u8]) {
        match self {
            Self::InPlace(buffers, place) => buffers.read_start(*place, into),
            Self::Joined(whole) => into.copy_from_slice(&whole.bytes[..into.len()]),
        }
    }

    fn body(&self, after: usize) -> PayloadView<'_> {
        match self {
            Self::InPlace(buffers, place) => buffers.payload(*place, after),
            Self::Joined(whole) => PayloadView::from_slice(&whole.bytes[after..]),
        }
    }
}
