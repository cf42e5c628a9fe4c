//! Room for messages that nobody has asked for yet: what peers may send, and what we may. The numbers are those of
//! [`proto::headers`](crate::proto::headers), the bytes those of [`Credits`](crate::proto::channel::Credits).

use super::{
    Core, Engine,
    flush::Flushed,
    message::{Message, Parcel},
};
use crate::{
    ops::Life,
    proto::{
        headers::Front,
        wire::{self, Blocked, Kind, Limit, OpId, Plain},
    },
};

/// At the receiver.
impl Core {
    /// A message of this peer is to be stored. `false`: the peer has sent more than it may, and nothing is stored.
    pub(super) fn charge(&mut self, rank: u32, parcel: &Parcel<'_>) -> bool {
        let peer = self.peers.contact(rank);
        if !peer.granted.store() {
            return false;
        }
        let room = parcel
            .uninvited()
            .is_none_or(|bytes| peer.credits.store(bytes));
        if !room {
            peer.granted.unstore();
        }
        room
    }

    /// A stored message is taken out. Whether it counted.
    pub(super) fn discharge(&mut self, message: &mut Message) -> bool {
        let charged = std::mem::take(&mut message.charged);
        if charged {
            let peer = self.peers.contact(message.envelope.source);
            peer.granted.unstore();
            if let Some(bytes) = message.body.parcel().uninvited() {
                peer.credits.unstore(bytes);
            }
        }
        charged
    }

    /// An offer that was stored does not exist any more.
    pub(super) fn drop_stored(&mut self, mut message: Message) {
        let source = message.envelope.source;
        if message.is_sought() {
            self.seeker.resolved(source);
        } else if self.discharge(&mut message) {
            self.leave(source);
        }
    }

    /// Drops what a peer has sent without being allowed to: it does not follow the protocol, or has other settings.
    pub(super) fn refuse_overdraft(&mut self, rank: u32, parcel: &Parcel<'_>) {
        self.refused += 1;
        tracing::warn!(
            rank,
            "dropped a message that this rank was not allowed to send: do all ranks have the same RIPSTOP_UNEXPECTED_*?"
        );
        if let Parcel::Offered(offered) = parcel {
            self.tell(rank, Kind::Taken, offered.sender, wire::REFUSED);
        }
    }

    /// A message of the peer has come to its receive, or nobody wants it: room for another.
    pub(super) fn leave(&mut self, rank: u32) {
        let scarce = self.peers.grants().is_scarce();
        if self.peers.contact(rank).granted.leave() || scarce {
            self.replenish(rank);
        }
    }

    #[cold]
    pub(super) fn replenish(&mut self, rank: u32) {
        let (grants, peer) = self.peers.granting(rank);
        if let Some(limit) = grants.replenish(peer) {
            self.grant(rank, limit);
        }
        self.serve();
    }

    /// What is free goes round among those that wait.
    pub(super) fn serve(&mut self) {
        let mut waiting = self.peers.grants().take_waiting();
        for _ in 0..waiting.len() {
            if self.peers.grants().free() == 0 {
                break;
            }
            let Some(rank) = waiting.pop_front() else {
                break;
            };
            let (grants, peer) = self.peers.granting(rank);
            match grants.serve(peer, waiting.len()) {
                Some(limit) => self.grant(rank, limit),
                None => waiting.push_back(rank),
            }
        }
        self.peers.grants().put_back(waiting);
    }

    fn grant(&mut self, rank: u32, limit: u32) {
        self.seeker.handle_granted(rank);
        self.unpark(rank); // it comes in its turn now
        if self.peers.down(rank).is_none() {
            self.peers.control(rank, &Limit::new(Kind::Grant, limit));
        }
    }

    /// The peer can send no more.
    pub(super) fn handle_blocked(&mut self, rank: u32, header: &Blocked) {
        let (grants, peer) = self.peers.granting(rank);
        if let Some(limit) = grants.handle_blocked(rank, peer, header.at, header.held) {
            return self.grant(rank, limit);
        }
        if self.peers.contact(rank).granted.waits() {
            self.recall();
            self.serve();
        }
        if self.peers.contact(rank).granted.waits() {
            self.seeker.handle_blocked(rank);
            self.seek_at(rank, header.tells == 1);
        }
    }

    /// Asks everybody for what they have and do not use. O(peers in contact), when room becomes scarce.
    fn recall(&mut self) {
        if !self.peers.grants().has_become_scarce() {
            return;
        }
        let met: Vec<u32> = self.peers.met().collect();
        for rank in met {
            let (grants, peer) = self.peers.granting(rank);
            if grants.recall(peer) {
                self.peers.control(rank, &Plain::new(Kind::Recall));
            }
        }
    }

    /// The peer has given back what it does not need.
    pub(super) fn handle_limit(&mut self, rank: u32, header: &Limit) {
        let (grants, peer) = self.peers.granting(rank);
        let limit = header.messages();
        if limit.is_some_and(|limit| grants.handle_limit(peer, limit)) {
            self.serve();
        } else {
            self.refused += 1;
        }
    }
}

/// At the sender.
impl Core {
    /// The peer has raised our limit.
    pub(super) fn handle_grant(&mut self, rank: u32, header: &Limit) {
        let peer = self.peers.contact(rank);
        let limit = header.messages();
        let more = limit.is_some_and(|limit| peer.allowance.handle_grant(limit));
        if more && !peer.sends.is_empty() {
            self.peers.mark(rank);
        }
    }

    pub(super) fn handle_recall(&mut self, rank: u32) {
        let first = self.peers.first;
        let peer = self.peers.contact(rank);
        let limit = peer.allowance.handle_recall(first);
        let waits = !peer.sends.is_empty();
        self.peers.control(rank, &Limit::new(Kind::Limit, limit));
        if waits {
            self.peers.mark(rank);
        }
    }
}

impl Engine {
    /// Sends from the front of the line, as far as there is room at the driver and at the peer.
    pub(super) fn flush_sends(&mut self, rank: u32) -> Flushed {
        loop {
            let peer = self.core.peers.contact(rank);
            let op = match peer.sends.front() {
                Front::Nothing => return Flushed::All,
                // The peer says when it is met, or sends it back.
                Front::Out(op) if self.core.ops.get(op).is_some() => return Flushed::All,
                Front::Out(op) | Front::Waiting(op) => op,
            };
            if self.is_queued(op) {
                let peer = self.core.peers.contact(rank);
                if peer.allowance.is_spent() {
                    return self.say_blocked(rank);
                }
                if !self.start(op, rank) {
                    return Flushed::Stuck;
                }
            }
            self.core.peers.contact(rank).sends.pop();
        }
    }

    fn is_queued(&mut self, op: OpId) -> bool {
        let slot = self.core.ops.get(op);
        slot.is_some_and(|slot| matches!(slot.life, Life::Queued))
    }

    /// The peer is told once for each limit; what waits then waits for it, and not for the driver.
    fn say_blocked(&mut self, rank: u32) -> Flushed {
        let peer = self.core.peers.contact(rank);
        let Some(limit) = peer.allowance.block() else {
            return Flushed::All;
        };
        let line = &mut peer.sends;
        let held = u32::try_from(line.len()).unwrap_or(u32::MAX);
        let header = Blocked::new(limit, held, line.block());
        self.core.peers.control(rank, &header);
        self.flush_control(rank)
    }
}

#[cfg(test)]
impl Core {
    /// Messages in the store that nobody has asked for.
    pub(super) fn stored(&self) -> usize {
        self.peers.stored() + usize::from(self.parked.is_some())
    }
}
