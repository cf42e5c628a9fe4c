//! Handles arrivals and completions from the driver, as its [`Sink`].
//!
//! All headers are checked. A message with a header of the wrong length, an unknown kind or a stale name is counted and dropped.

use ripstop_fabric::driver::{Down, Failure, Payload, Sink, Token};

use super::{
    Core, Wanted,
    message::{Message, Offered, Parcel},
    program,
    send::down_kind,
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    ops::{Landed, Life},
    proto::{
        channel::Verdict,
        matching::{Arrival, Arrived, Envelope, Unexpected},
        wire::{
            self, About, Accept, Base, Eager, Fragment, Kind, MODE_FRAGMENTS, MODE_PUT, Offer,
            OpId, Plain, read,
        },
    },
};

impl Sink for Core {
    #[inline]
    fn message(&mut self, rank: WorldRank, header: &[u8], body: Payload<'_>) {
        let Some((kind, base)) = wire::read_base(header) else {
            self.refused += 1;
            return;
        };
        if self.watches && !self.hear(rank, kind, header) {
            return;
        }
        if self.handle_base(rank, kind, base, header, body) {
            self.handle(rank, kind, header, body);
            self.handle_early(rank);
        }
    }

    fn placed(&mut self, token: Token, from: WorldRank, header: &[u8], body: Payload<'_>) {
        let op = OpId::unpack(token.0);
        // The driver placed the message into the buffer of `op`. If it matches `op`, it is received like any other message. If it
        // belongs to another receive, it is copied out before anything else is written to this buffer.
        self.take_over_buffer(op);
        self.message(from, header, body);
        self.settle(op);
    }

    fn returned(&mut self, token: Token) {
        let op = OpId::unpack(token.0);
        self.take_over_buffer(op);
        self.settle(op);
    }

    fn complete(&mut self, token: Token) {
        self.moving -= 1;
        let op = OpId::unpack(token.0);
        let Some(slot) = self.ops.get(op) else { return };
        match slot.life {
            Life::Landing(landing) if landing.shared => self.share_got(op),
            Life::Sharing { receiver } => self.rear_put(op, receiver, wire::OK),
            Life::Landing(landing) => {
                self.tell(landing.landed.source, Kind::Taken, landing.sender, wire::OK);
                self.landed(op);
            }
            Life::Putting { receiver } => {
                let (to, bytes) = (slot.about.peer, slot.area.len);
                if let Some(to) = to {
                    self.tell(to, Kind::Landed, receiver, wire::OK);
                }
                self.land(op, Ok(Landed::sent(bytes)));
            }
            Life::Remote { .. } => self.remote_part_over(op, Ok(())),
            _ => {}
        }
    }

    fn fetched(&mut self, token: Token, old: u64) {
        self.moving -= 1;
        self.claimed(OpId::unpack(token.0), old);
    }

    fn failed(&mut self, token: Token, why: Failure) {
        if program::is_token(token) {
            return self.programs.hear(token, program::Heard::Failed(why));
        }
        self.moving -= 1;
        let op = OpId::unpack(token.0);
        let Some(slot) = self.ops.get(op) else { return };
        let partner = slot.life.partner(&slot.about).unwrap_or(WorldRank(0));
        let way = match &slot.life {
            Life::Landing(landing) if landing.fragments => return,
            Life::Landing(landing) if landing.shared => Way::Share,
            Life::Landing(_) => Way::Get,
            Life::Claiming { .. } => {
                slot.life = Life::Offered; // the receiver gets all bytes itself, or has failed
                return;
            }
            Life::Sharing { receiver } => Way::Rear(*receiver),
            Life::Putting { receiver } => Way::Put(*receiver),
            Life::Remote { .. } => return self.remote_failed(op, partner, why),
            _ => return,
        };
        let down = self
            .peers
            .down(partner)
            .or_else(|| matches!(why, Failure::PeerDown).then_some(Down::Failed));
        match (way, down) {
            (_, Some(down)) => self.abandon(op, down_kind(partner, down)),
            // The fabric or the kernel refuses this transfer, as in a container without process_vm_readv. Use another way.
            (Way::Get, None) => self.ask_for_fragments(op),
            (Way::Put(receiver), None) => self.fall_back(op, receiver),
            (Way::Share, None) => self.share_broken(op),
            (Way::Rear(receiver), None) => self.rear_put(op, receiver, wire::REFUSED),
        }
    }

    fn reached(&mut self, token: Token) {
        if program::is_token(token) {
            self.programs.hear(token, program::Heard::Reached);
        } else {
            self.window_reached(token);
        }
    }

    fn triggered(&mut self, token: Token) {
        self.programs.hear(token, program::Heard::Triggered);
    }

    fn peer_down(&mut self, peer: WorldRank, why: Down) {
        if let Some(liveness) = self.liveness.as_mut().filter(|_| why == Down::Failed) {
            liveness.lost.push(peer);
        }
        self.hear_of_end(peer, why);
    }
}

/// Purpose of a one-sided command that failed.
enum Way {
    Get,
    Put(OpId),
    /// One of the gets of a shared message.
    Share,
    /// The put of a shared message.
    Rear(OpId),
}

impl Core {
    /// Handles credits and order. Returns true if the message is the next one and must be handled now.
    #[inline]
    fn handle_base(
        &mut self,
        rank: WorldRank,
        kind: Kind,
        base: Base,
        header: &[u8],
        body: Payload<'_>,
    ) -> bool {
        if base.credits > 0 {
            let peer = self.peers.contact(rank);
            peer.credits.refund(base.credits);
            if !peer.sends.is_empty() {
                self.peers.mark(rank);
            }
        }
        self.peers.reliable || self.handle_order(rank, kind, base, header, body)
    }

    fn handle_order(
        &mut self,
        rank: WorldRank,
        kind: Kind,
        base: Base,
        header: &[u8],
        body: Payload<'_>,
    ) -> bool {
        let now = self.now.nanos();
        let peer = self.peers.contact(rank);
        let Some(channel) = &mut peer.channel else {
            return false; // the peer is down, and its messages arrive too late
        };
        let was_full = channel.is_full();
        match kind {
            Kind::Nack => channel.handle_nack(base.ack, now),
            Kind::Ack => channel.handle_answer(base.ack, now),
            _ => channel.handle_ack(base.ack, now),
        }
        let verdict = match kind {
            Kind::Ack | Kind::Nack => None,
            _ => Some(channel.accept(base.seq, || (header.to_vec(), body.to_vec()))),
        };
        let opened = was_full && !channel.is_full(); // there is also room for messages that windows hold back
        self.peers.stir(rank);
        if opened || verdict.is_some() {
            self.peers.mark(rank); // its message must be acknowledged, or queued messages can leave
        }
        verdict == Some(Verdict::Deliver)
    }

    /// Handles messages that arrived out of order and whose turn has come.
    #[inline]
    fn handle_early(&mut self, rank: WorldRank) {
        if !self.peers.reliable {
            self.handle_all_early(rank);
        }
    }

    fn handle_all_early(&mut self, rank: WorldRank) {
        while let Some(frame) = self
            .peers
            .contact(rank)
            .channel
            .as_mut()
            .and_then(|channel| channel.pop_early())
        {
            if let Some((kind, _)) = wire::read_base(&frame.header) {
                self.handle_again(rank, kind, &frame.header, Payload::from_slice(&frame.body));
            }
        }
    }

    #[inline(always)]
    fn handle(&mut self, rank: WorldRank, kind: Kind, header: &[u8], body: Payload<'_>) {
        if kind == Kind::Eager
            && let Some(header) = read(header)
        {
            self.handle_eager(rank, &header, body);
        } else {
            self.handle_other(rank, kind, header, body);
        }
    }

    #[inline(never)]
    fn handle_again(&mut self, rank: WorldRank, kind: Kind, header: &[u8], body: Payload<'_>) {
        self.handle(rank, kind, header, body);
    }

    #[inline(never)]
    fn handle_other(&mut self, rank: WorldRank, kind: Kind, header: &[u8], body: Payload<'_>) {
        let understood = match kind {
            Kind::Eager => None,
            Kind::Offer => read(header).map(|header| self.handle_offer(rank, &header)),
            Kind::Accept => read(header).map(|header| self.handle_accept(rank, &header)),
            Kind::Fragment => read(header).map(|header| self.handle_fragment(rank, &header, body)),
            Kind::Landed => read(header).map(|header| self.handle_landed(rank, &header)),
            Kind::Taken => read(header).map(|header| self.handle_taken(rank, &header)),
            Kind::Withdraw => read(header).map(|header| self.handle_withdraw(rank, &header)),
            Kind::Withdrawn => read(header).map(|header| self.handle_withdrawn(rank, &header)),
            Kind::Share => read(header).map(|header| self.handle_share(rank, &header)),
            Kind::Abort => read(header).map(|header| self.handle_abort(rank, &header)),
            Kind::Ask => read(header).map(|header| self.handle_ask(rank, &header)),
            Kind::Over => read(header).map(|header| self.handle_over(rank, &header)),
            Kind::Halt => read(header).map(|header| self.handle_halt(rank, &header)),
            Kind::Halted => read(header).map(|header| self.handle_halted(rank, &header)),
            Kind::Revoke => read(header).map(|header| self.handle_revoke(rank, &header)),
            Kind::Words => read(header).map(|header| self.handle_words(rank, &header)),
            Kind::LastCalls => read(header).map(|header| self.handle_last_calls(rank, &header)),
            Kind::Agree => read(header).map(|header| self.handle_agree(rank, &header)),
            Kind::Credit | Kind::Ack | Kind::Nack => Some(()),
            Kind::Blocked => read(header).map(|header| self.handle_blocked(rank, &header)),
            Kind::Grant => read(header).map(|header| self.handle_grant(rank, &header)),
            Kind::Limit => read(header).map(|header| self.handle_limit(rank, &header)),
            Kind::Recall => read(header).map(|Plain { .. }| self.handle_recall(rank)),
            Kind::Seek => read(header).map(|header| self.handle_seek(rank, &header)),
            Kind::Held => read(header).map(|header| self.handle_held(rank, &header)),
            Kind::Sought => read(header).map(|header| self.handle_sought(rank, &header)),
            Kind::Met => read(header).map(|About { op, .. }| self.handle_met(rank, op)),
            Kind::First => read(header).map(|About { op, .. }| self.handle_first(rank, op)),
            Kind::Back => read(header).map(|About { op, .. }| self.handle_back(rank, op)),
            Kind::Hello => read(header).map(|header| self.handle_hello(rank, &header)),
            Kind::Note => read(header).map(|header| self.handle_note(rank, &header)),
            Kind::Tally => read(header).map(|header| self.handle_tally(rank, &header)),
            Kind::Gate => read(header).map(|header| self.handle_gate(rank, &header)),
            Kind::Update => read(header).map(|header| self.handle_update(rank, &header, body)),
            Kind::Updated => read(header).map(|header| self.handle_updated(rank, &header, body)),
            Kind::Lock => read(header).map(|header| self.handle_lock(rank, &header)),
            Kind::Locked => read(header).map(|header| self.handle_locked(rank, &header)),
            Kind::Unlock => read(header).map(|header| self.handle_unlock(rank, &header)),
            Kind::NoWindow => read(header).map(|header| self.handle_no_window(rank, &header)),
            Kind::Ping | Kind::Pong | Kind::Gone | Kind::Death => None, // only used where the engine watches peers
        };
        if understood.is_none() {
            self.refused += 1;
        }
    }

    /// Delivers a whole message to the receive that waits for it.
    ///
    /// The common path is inlined, because calls would add a tenth to its time.
    #[inline(always)]
    fn handle_eager(&mut self, rank: WorldRank, header: &Eager, body: Payload<'_>) {
        let envelope = Envelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        if self.closing {
            return self.refuse(envelope, header.sig, &Parcel::Bytes(body));
        }
        if header.ctx & 1 == 1 && self.take_directly(envelope, header.sig, body) {
            return;
        }
        let index = self.messages.next();
        match self.matching.arrive(envelope, index) {
            Arrived::Waits(place) => {
                self.store_early(envelope, header.sig, &Parcel::Bytes(body), place);
            }
            Arrived::Matched { recv, arrival } => {
                let delivered = self.deliver_bytes(recv, envelope, arrival, header.sig, body);
                if let Err(kind) = delivered {
                    let parcel = Parcel::Bytes(body);
                    self.reject(recv, kind, envelope, arrival, header.sig, &parcel);
                }
            }
        }
    }

    fn handle_offer(&mut self, rank: WorldRank, header: &Offer) {
        let envelope = Envelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        let offered = Offered {
            total: header.total,
            sender: header.sender,
            modes: header.modes,
            key: header.key,
            sought: false,
        };
        let parcel = Parcel::Offered(offered);
        if self.closing {
            return self.refuse(envelope, header.sig, &parcel);
        }
        if header.ctx & 1 == 1 {
            self.post_waits_for(envelope);
        }
        let index = self.messages.next();
        match self.matching.arrive(envelope, index) {
            Arrived::Waits(place) => {
                self.store_early(envelope, header.sig, &parcel, place);
            }
            Arrived::Matched { recv, arrival } => {
                if let Err(kind) = self.deliver(recv, envelope, arrival, header.sig, &parcel) {
                    self.reject(recv, kind, envelope, arrival, header.sig, &parcel);
                }
            }
        }
    }

    /// Turns away a message that arrives when this rank receives no more.
    #[cold]
    fn refuse(&mut self, envelope: Envelope, sig: u64, parcel: &Parcel<'_>) {
        self.note_unreceived(envelope, sig, parcel.bytes());
        self.turn_away(envelope.source, parcel);
    }

    /// Stores an unexpected message if its sender has credits for it. Returns true if it is stored.
    pub(super) fn wait(
        &mut self,
        envelope: Envelope,
        sig: u64,
        parcel: &Parcel<'_>,
        place: Unexpected,
    ) -> bool {
        if !self.charge(envelope.source, parcel) {
            self.matching.withdraw(place);
            self.refuse_overdraft(envelope.source, parcel);
            return false;
        }
        let body = self.messages.keep(parcel);
        self.messages.store(Message {
            envelope,
            sig,
            body,
            place: Some(place),
            recalled: false,
            charged: true,
        });
        true
    }

    /// Fails a receive that cannot take the message it matched. The message goes to the next matching receive, or is stored.
    #[cold]
    fn reject(
        &mut self,
        recv: OpId,
        kind: ErrorKind,
        envelope: Envelope,
        arrival: Arrival,
        sig: u64,
        parcel: &Parcel<'_>,
    ) {
        self.land(recv, Err(kind));
        if !self.charge(envelope.source, parcel) {
            return self.refuse_overdraft(envelope.source, parcel);
        }
        let message = Message {
            envelope,
            sig,
            body: self.messages.keep(parcel),
            place: None,
            recalled: false,
            charged: true,
        };
        self.put_back(message, arrival);
    }

    /// Sends the bytes of an offer of this rank in the way that the receiver chose: as a put or as fragments.
    fn handle_accept(&mut self, rank: WorldRank, header: &Accept) {
        let Some(slot) = self.sending_to(rank, header.sender) else {
            return;
        };
        match header.mode {
            MODE_PUT if header.key.len == slot.area.len as u64 => {
                slot.life = Life::Putting {
                    receiver: header.receiver,
                };
                self.wanted.push(Wanted::Put {
                    op: header.sender,
                    key: header.key,
                    at: 0,
                });
            }
            MODE_FRAGMENTS => {
                slot.life = Life::Fragmenting {
                    receiver: header.receiver,
                    sent: 0,
                };
                self.peers.contact(rank).fragments.push_back(header.sender);
                self.peers.mark(rank);
            }
            _ => self.refused += 1,
        }
    }

    fn handle_fragment(&mut self, rank: WorldRank, header: &Fragment, body: Payload<'_>) {
        let Some(slot) = self.ops.get(header.receiver) else {
            return;
        };
        let Life::Landing(mut landing) = slot.life else {
            return;
        };
        let offset = usize::try_from(header.offset).unwrap_or(usize::MAX);
        let expected = landing.landed.source == rank
            && (landing.fragments || landing.invited)
            && offset == landing.received;
        if !expected
            || body.len() > landing.landed.bytes - landing.received
            || !slot.fill(offset, body)
        {
            self.refused += 1;
            return;
        }
        landing.received += body.len();
        slot.life = Life::Landing(landing);
        if landing.received == landing.landed.bytes {
            self.landed(header.receiver);
        }
    }

    /// Completes a receive whose sender has put all bytes.
    fn handle_landed(&mut self, rank: WorldRank, header: &About) {
        let Some(slot) = self.ops.get(header.op) else {
            return;
        };
        let Life::Landing(landing) = slot.life else {
            return;
        };
        if landing.landed.source == rank && landing.shared {
            self.rear_landed(header.op, header);
        } else if landing.landed.source == rank && landing.invited && landing.received == 0 {
            self.landed(header.op);
        } else {
            self.refused += 1;
        }
    }

    fn handle_taken(&mut self, rank: WorldRank, header: &About) {
        let Some(slot) = self.sending_to(rank, header.op) else {
            return;
        };
        let bytes = slot.area.len;
        let outcome = match header.status {
            wire::OK => Ok(Landed::sent(bytes)),
            wire::REVOKED => Err(ErrorKind::Revoked),
            _ => Err(down_kind(rank, Down::Finished)),
        };
        self.land(header.op, outcome);
    }

    fn handle_withdraw(&mut self, rank: WorldRank, header: &About) {
        if self.withdraw_parked(rank, header.op) {
            return self.tell(rank, Kind::Withdrawn, header.op, wire::OK);
        }
        let Some(index) = self.messages.offer_of(rank, header.op) else {
            return self.tell(rank, Kind::Withdrawn, header.op, wire::REFUSED);
        };
        let message = self.messages.get(index);
        let Some(place) = message.place else {
            message.recalled = true; // a probe holds it, and decides whether it is still received
            return;
        };
        self.matching.withdraw(place);
        let message = self.messages.take(index);
        self.was_early(message.envelope);
        self.drop_stored(message);
        self.tell(rank, Kind::Withdrawn, header.op, wire::OK);
    }

    fn handle_withdrawn(&mut self, rank: WorldRank, header: &About) {
        let Some(slot) = self.sending_to(rank, header.op) else {
            return;
        };
        let life = std::mem::replace(&mut slot.life, Life::Offered); // if refused, the offer was matched and will complete
        let why = slot.take_why();
        if header.status == wire::OK
            && matches!(life, Life::Withdrawing)
            && let Some(why) = why
        {
            self.handle_met(rank, header.op); // in case it was offered out of turn
            self.land(header.op, Err(why));
        }
    }

    /// Sends a message as fragments after its put failed. Fragments always work.
    fn fall_back(&mut self, op: OpId, receiver: OpId) {
        let slot = self.ops.live(op);
        slot.life = Life::Fragmenting { receiver, sent: 0 };
        if let Some(to) = slot.about.peer {
            self.peers.contact(to).fragments.push_back(op);
            self.peers.mark(to);
        }
    }

    /// Returns a send of this rank whose offer this peer has.
    fn sending_to(&mut self, rank: WorldRank, op: OpId) -> Option<&mut crate::ops::Slot> {
        let slot = self.ops.get(op)?;
        let offered = matches!(
            slot.life,
            Life::Offered | Life::Withdrawing | Life::Claiming { .. }
        );
        (offered && slot.about.peer == Some(rank)).then_some(slot)
    }
}
