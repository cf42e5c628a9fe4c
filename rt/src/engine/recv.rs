//! Receives, from posting to completion.

use ripstop_fabric::driver::Payload;

use super::{
    Core, Wanted,
    message::{Body, Message, Offered, Parcel},
    send::down_kind,
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    ops::{About, Kept, Landed, Landing, Life},
    proto::{
        matching::{Arrival, Arrived, Envelope, Received, Want},
        path::Path,
        wire::{self, Kind, MODE_GET, MODE_PUT, OpId},
    },
};

impl Core {
    /// Posts a receive that already owns its buffer.
    #[inline]
    pub(crate) fn recv(&mut self, op: OpId) {
        let slot = self.ops.live(op);
        let want = slot.about.want();
        match self.matching.post(want, op) {
            Received::Taken(taken) => {
                self.was_early(taken.envelope);
                let message = self.messages.take(taken.message);
                self.deliver_stored(op, message, taken.arrival);
            }
            Received::Waits(posted) => {
                slot.life = Life::Posted(posted);
                self.waits = true;
                // Checked only now, because a message that has arrived is received even if its sender is down.
                if let Some(kind) = self.hopeless(&want) {
                    self.matching.unpost(posted);
                    self.land(op, Err(kind));
                } else if self.seeker.is_active() {
                    self.seek_for(want);
                }
            }
        }
    }

    /// Gives a stored message to the receive that matched it. If the receive refuses it, the message goes back to its place.
    pub(super) fn deliver_stored(&mut self, op: OpId, mut message: Message, arrival: Arrival) {
        match self.deliver_message(op, &mut message, arrival) {
            Ok(()) => self.messages.recycle(message.body),
            Err(kind) => {
                self.land(op, Err(kind));
                self.put_back(message, arrival);
            }
        }
    }

    /// Does the same as [`deliver`](Self::deliver). The message is charged to its sender only while it is stored.
    fn deliver_message(
        &mut self,
        op: OpId,
        message: &mut Message,
        arrival: Arrival,
    ) -> Result<(), ErrorKind> {
        let charged = self.discharge(message);
        let (envelope, parcel) = (message.envelope, message.body.parcel());
        let outcome = self.deliver(op, envelope, arrival, message.sig, &parcel);
        if outcome.is_err() {
            message.charged = charged && self.charge(envelope.source, &parcel);
        }
        outcome
    }

    /// Puts a message back in its place, or gives it to the first receive that matches it now and can take it.
    pub(super) fn put_back(&mut self, mut message: Message, arrival: Arrival) {
        if self.is_void(&message) {
            return self.drop_stored(message);
        }
        if self.closing {
            return self.give_up(message);
        }
        if self.is_deaf(message.envelope.ctx) && !message.is_sought() {
            self.discharge(&mut message);
            return self.turn_off(message.envelope, &message.body.parcel());
        }
        if message.is_sought() {
            return self.give_sought(message, arrival);
        }
        // A loop instead of recursion, because any number of posted receives may have another type.
        while let Some(recv) = self.store_at(&mut message, arrival) {
            match self.deliver_message(recv, &mut message, arrival) {
                Ok(()) => return self.messages.recycle(message.body),
                Err(kind) => self.land(recv, Err(kind)),
            }
        }
    }

    /// Drops a message that comes back when nothing is received any more.
    fn give_up(&mut self, mut message: Message) {
        let (source, sought) = (message.envelope.source, message.is_sought());
        let bytes = message.body.parcel().bytes();
        self.note_unreceived(message.envelope, message.sig, bytes);
        match message.body.parcel() {
            Parcel::Offered(offered) if sought => {
                self.meet(source, offered.sender);
                self.tell(source, Kind::Taken, offered.sender, wire::REFUSED);
            }
            _ => {
                self.discharge(&mut message);
                self.turn_away(source, &message.body.parcel());
            }
        }
    }

    /// Stores a message in its place. If a receive matches it, returns that receive and leaves the message with the caller.
    fn store_at(&mut self, message: &mut Message, arrival: Arrival) -> Option<OpId> {
        let index = self.messages.next();
        match self.matching.restore(message.envelope, arrival, index) {
            Arrived::Matched { recv, .. } => Some(recv),
            Arrived::Waits(place) => {
                self.is_early(message.envelope, message.sig);
                let body = std::mem::replace(&mut message.body, Body::NOTHING);
                let stored = self.messages.store(Message {
                    body,
                    place: Some(place),
                    ..*message
                });
                debug_assert_eq!(stored, index, "the next place is where it is stored");
                None
            }
        }
    }

    /// Returns true if an offer that comes back must be dropped, because its sender is down or has withdrawn it.
    fn is_void(&mut self, message: &Message) -> bool {
        let (source, Body::Offered(offered)) = (message.envelope.source, &message.body) else {
            return false;
        };
        if message.recalled {
            self.tell(source, Kind::Withdrawn, offered.sender, wire::OK);
        }
        message.recalled || self.peers.down(source).is_some()
    }

    /// Copies a message to the receive's buffer, or returns the reason why the receive cannot take it.
    #[inline(always)]
    pub(super) fn deliver_bytes(
        &mut self,
        op: OpId,
        envelope: Envelope,
        arrival: Arrival,
        sig: u64,
        body: Payload<'_>,
    ) -> Result<(), ErrorKind> {
        let slot = self.ops.live(op);
        if slot.about.probe | slot.lent {
            return self.set_aside(op, envelope, arrival, sig, &Parcel::Bytes(body));
        }
        let bytes = slot.admit(sig, body.len() as u64)?;
        let filled = slot.fill(0, body);
        assert!(filled, "`admit` said so");
        if slot.part {
            self.programs.tell(op);
        }
        let waker = slot.land(Landed {
            source: envelope.source,
            tag: envelope.tag,
            bytes,
            arrival,
            stored: None,
        });
        if let Some(waker) = waker {
            self.wakers.push(waker);
        }
        self.pay_back(envelope.source, bytes);
        Ok(())
    }

    /// Moves a message towards the receive's buffer, or returns the reason why the receive cannot take it.
    pub(super) fn deliver(
        &mut self,
        op: OpId,
        envelope: Envelope,
        arrival: Arrival,
        sig: u64,
        parcel: &Parcel<'_>,
    ) -> Result<(), ErrorKind> {
        if let Parcel::Bytes(body) = *parcel {
            return self.deliver_bytes(op, envelope, arrival, sig, body);
        }
        let slot = self.ops.live(op);
        if slot.about.probe | slot.lent {
            return self.set_aside(op, envelope, arrival, sig, parcel);
        }
        let bytes = slot.admit(sig, parcel.bytes())?;
        let landed = Landed {
            source: envelope.source,
            tag: envelope.tag,
            bytes,
            arrival,
            stored: None,
        };
        match *parcel {
            Parcel::Bytes(_) => unreachable!("delivered above"),
            Parcel::Offered(offered) => {
                if offered.sought {
                    self.meet(envelope.source, offered.sender);
                } else {
                    self.leave(envelope.source);
                }
                self.take_up(op, landed, &offered);
            }
            Parcel::InOp { op: orphan, .. } => self.follow(op, landed, orphan),
        }
        Ok(())
    }

    /// Stores a message whose receive does not take the bytes now: a probe never does, and another receive has lent its buffer.
    #[cold]
    fn set_aside(
        &mut self,
        op: OpId,
        envelope: Envelope,
        arrival: Arrival,
        sig: u64,
        parcel: &Parcel<'_>,
    ) -> Result<(), ErrorKind> {
        if self.ops.live(op).about.probe {
            self.hand_over(op, envelope, arrival, sig, parcel);
        } else {
            self.ops.live(op).admit(sig, parcel.bytes())?;
            let stored = self.set_apart(envelope, sig, parcel);
            self.recall_buffer(op, Some(Kept { stored, arrival }));
        }
        Ok(())
    }

    /// Stores a message that is not in the queue any more, or never was. Returns its index.
    fn set_apart(&mut self, envelope: Envelope, sig: u64, parcel: &Parcel<'_>) -> u32 {
        let body = self.messages.keep(parcel);
        let charged = parcel.counts() && self.charge(envelope.source, parcel);
        self.messages.store(Message {
            envelope,
            sig,
            body,
            place: None,
            recalled: false,
            charged,
        })
    }

    /// Gives a probe the message itself.
    fn hand_over(
        &mut self,
        op: OpId,
        envelope: Envelope,
        arrival: Arrival,
        sig: u64,
        parcel: &Parcel<'_>,
    ) {
        let stored = Some(self.set_apart(envelope, sig, parcel));
        let bytes = usize::try_from(parcel.bytes()).unwrap_or(usize::MAX);
        self.land(
            op,
            Ok(Landed {
                source: envelope.source,
                tag: envelope.tag,
                bytes,
                arrival,
                stored,
            }),
        );
    }

    /// Takes the earliest message that a probe matches out of the queue.
    pub(crate) fn try_probe(&mut self, about: &About) -> Option<Landed> {
        let Some(found) = self.matching.peek(about.want()) else {
            let seeks = self.seeker.is_active();
            return seeks.then(|| self.seek_for_probe(about)).flatten();
        };
        let taken = self.matching.take(found.at)?;
        let message = self.messages.get(taken.message);
        message.place = None;
        let Envelope { source, tag, .. } = taken.envelope;
        let bytes = usize::try_from(message.body.parcel().bytes()).unwrap_or(usize::MAX);
        let (arrival, stored) = (taken.arrival, Some(taken.message));
        Some(Landed {
            source,
            tag,
            bytes,
            arrival,
            stored,
        })
    }

    /// Receives a probed message.
    pub(crate) fn recv_probed(&mut self, op: OpId, stored: u32, arrival: Arrival) {
        let message = self.messages.take(stored);
        self.deliver_stored(op, message, arrival);
    }

    /// Puts a probed message that will not be received back in its place.
    pub(crate) fn return_probed(&mut self, stored: u32, arrival: Arrival) {
        let message = self.messages.take(stored);
        self.put_back(message, arrival);
    }

    /// Chooses how the bytes of an offer travel, and requests them.
    fn take_up(&mut self, op: OpId, landed: Landed, offered: &Offered) {
        let refused = self.closing.then_some(ErrorKind::Closed);
        if let Some(kind) = refused.or_else(|| self.unreachable(landed.source)) {
            self.tell(landed.source, Kind::Taken, offered.sender, wire::REFUSED);
            return self.land(op, Err(kind));
        }
        let landing = Landing {
            sender: offered.sender,
            landed,
            received: 0,
            fragments: false,
            invited: false,
            shared: false,
            follower: None,
        };
        self.ops.live(op).life = Life::Landing(landing);
        self.waits = true;
        if landed.bytes == 0 {
            self.tell(landed.source, Kind::Taken, offered.sender, wire::OK);
            self.landed(op);
            return;
        }
        let get = offered.modes & MODE_GET != 0 && offered.key.len == offered.total;
        let put = offered.modes & MODE_PUT != 0;
        // Only lack of credits lets a sender offer a message that is shorter than the table says.
        let path = self
            .paths
            .to(landed.source)
            .choose(landed.bytes, offered.key.whole > 0);
        match path {
            Path::RendezvousPut if put => self.wanted.push(Wanted::Invite { op }),
            Path::Fragments => self.ask_for_fragments(op),
            _ if get && put && self.shares(landed.bytes) => {
                self.wanted.push(Wanted::Share {
                    op,
                    key: offered.key,
                });
            }
            _ if get => self.wanted.push(Wanted::Get {
                op,
                key: offered.key,
                at: 0,
            }),
            _ if put => self.wanted.push(Wanted::Invite { op }),
            _ => self.ask_for_fragments(op),
        }
    }

    /// Requests fragments, which always work.
    pub(super) fn ask_for_fragments(&mut self, op: OpId) {
        let Life::Landing(landing) = &mut self.ops.live(op).life else {
            return;
        };
        let source = landing.landed.source;
        if let Some(down) = self.peers.down(source) {
            return self.abandon(op, down_kind(source, down));
        }
        landing.fragments = true;
        let header = wire::Accept::fragments(landing.sender, op);
        self.peers.control(source, &header);
    }

    /// Gives a receive the message that is in the buffer of a dropped receive: now, or when all bytes have arrived there.
    fn follow(&mut self, op: OpId, landed: Landed, orphan: OpId) {
        let slot = self.ops.live(orphan);
        if let Life::Landing(landing) = &mut slot.life {
            landing.follower = Some(op);
            self.ops.live(op).life = Life::Following { orphan, landed };
        } else {
            self.take_over(op, landed, orphan);
        }
    }

    /// Copies the message of a dropped receive to the receive that took it over.
    fn take_over(&mut self, op: OpId, landed: Landed, orphan: OpId) {
        let copy = self.ops.live(orphan).content(landed.bytes).to_vec();
        let filled = self.ops.live(op).fill(0, Payload::from_slice(&copy));
        assert!(filled, "`fits` said so");
        self.release(orphan);
        self.land(op, Ok(landed));
    }

    /// Completes a receive, because all bytes of its message are in its buffer.
    pub(super) fn landed(&mut self, op: OpId) {
        let slot = self.ops.live(op);
        let Life::Landing(landing) = slot.life else {
            return;
        };
        if !slot.orphan {
            self.land(op, Ok(landing.landed));
            return;
        }
        slot.life = Life::Done(landing.landed); // an orphan that is a message's body stays until the message is taken
        if let Some(follower) = landing.follower {
            let Life::Following { landed, .. } = self.ops.live(follower).life else {
                return;
            };
            self.take_over(follower, landed, op);
        } else {
            self.release_void(op);
        }
    }

    /// Drops the future of a receive. If the receive had a message, it goes back to its place in the queue.
    pub(crate) fn forsake(&mut self, op: OpId) {
        let Some(slot) = self.ops.get(op) else { return };
        slot.orphan = true;
        let waker = slot.waker.take();
        self.let_go(waker);
        match &self.ops.live(op).life {
            _ if self.ended => self.release(op),
            Life::Posted(posted) => {
                self.matching.unpost(*posted);
                // An orphan now, so it is released as soon as its buffer is back.
                self.land(op, Err(ErrorKind::Cancelled));
            }
            Life::Recalled(kept) => {
                if let Some(Kept { stored, arrival }) = *kept {
                    self.ops.live(op).life = Life::Recalled(None);
                    self.ops.live(op).blame(ErrorKind::Cancelled);
                    self.return_probed(stored, arrival);
                }
            }
            Life::Landing(landing) => {
                let landed = landing.landed;
                self.return_message(op, landed);
            }
            Life::Following { orphan, landed } => {
                let (orphan, landed) = (*orphan, *landed);
                if let Life::Landing(landing) = &mut self.ops.live(orphan).life {
                    landing.follower = None;
                }
                self.put_back_in_op(op, landed, orphan);
                self.release(op);
            }
            Life::Done(landed) => {
                let landed = *landed;
                match landed.stored {
                    Some(stored) => {
                        self.return_probed(stored, landed.arrival);
                        self.release(op);
                    }
                    None => self.return_message(op, landed),
                }
            }
            _ => self.release(op),
        }
    }

    fn return_message(&mut self, op: OpId, landed: Landed) {
        self.put_back_in_op(op, landed, op);
    }

    /// Puts the message of the receive `op` back. It is in the buffer of `orphan`, or on its way there.
    fn put_back_in_op(&mut self, op: OpId, landed: Landed, orphan: OpId) {
        let about = self.ops.live(op).about;
        let envelope = Envelope {
            ctx: about.ctx,
            source: landed.source,
            tag: landed.tag,
        };
        let body = Body::InOp {
            op: orphan,
            bytes: landed.bytes,
        };
        self.put_back(
            Message {
                envelope,
                sig: about.sig,
                body,
                place: None,
                recalled: false,
                charged: false,
            },
            landed.arrival,
        );
    }

    /// Cancels a receive. Returns true if it had matched no message; otherwise it completes as usual.
    pub(crate) fn unpost(&mut self, op: OpId, why: ErrorKind) -> bool {
        let Some(slot) = self.ops.get(op) else {
            return false;
        };
        let Life::Posted(posted) = slot.life else {
            return false;
        };
        self.matching.unpost(posted);
        self.land(op, Err(why));
        true
    }

    /// Returns the reason why a receive that found nothing will never get a message, if there is one.
    pub(crate) fn hopeless(&mut self, want: &Want) -> Option<ErrorKind> {
        if self.closing {
            return Some(ErrorKind::Closed);
        }
        if self.programs.any_revoked()
            && let Some(kind) = self.programs.revoked_kind(want.ctx, want.tag)
        {
            return Some(kind);
        }
        if self.peers.downs() == 0 {
            return None;
        }
        match want.source {
            Some(source) => self.peers.down(source).map(|down| down_kind(source, down)),
            None => self.hopeless_any(want.ctx),
        }
    }

    /// Returns credits to the sender, because its message has left the store.
    #[inline(always)]
    pub(super) fn pay_back(&mut self, rank: WorldRank, bytes: usize) {
        let scarce = self.peers.grants().is_scarce();
        let peer = self.peers.contact(rank);
        let raise = peer.granted.leave();
        if peer.credits.owe(bytes) && self.peers.down(rank).is_none() {
            self.say_credits(rank);
        }
        if raise || scarce {
            self.replenish(rank);
        }
    }

    #[cold]
    fn say_credits(&mut self, rank: WorldRank) {
        self.peers.control(rank, &wire::Plain::new(Kind::Credit));
    }

    pub(super) fn tell(&mut self, rank: WorldRank, kind: Kind, op: OpId, status: u64) {
        self.peers
            .control(rank, &wire::About::new(kind, op, status));
    }
}
