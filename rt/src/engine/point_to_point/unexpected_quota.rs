//! Room for unexpected messages: what peers may send here, and what this rank may send to them.
//!
//! Numbers of messages are handled by [`proto::header_quota`](crate::proto::header_quota), numbers of bytes by
//! [`Credits`](crate::proto::channel::Credits).

use super::{
    MessageTransmitter, PointToPoint,
    message::{MessageBody, StoredMessage},
};
use crate::{
    engine::commons::{EngineCommons, peer::EnginePeers, transmit::FlushResult},
    group::WorldRank,
    ops::OpState,
    proto::{
        header_quota::QueueFront,
        wire::{BareHeader, BlockedHeader, OpId, QuotaHeader, WireKind},
    },
};

/// Room that stored messages take.
impl EngineCommons {
    /// Charges a message that is about to be stored to its sender. Returns false if the sender exceeds its limit; then the
    /// message must not be stored.
    pub(in crate::engine) fn charge(&mut self, rank: WorldRank, content: &MessageBody<'_>) -> bool {
        let peer = self.peers.peer_mut(rank);
        if !peer.quota_granted.store() {
            return false;
        }
        let room = content
            .uninvited()
            .is_none_or(|bytes| peer.credits.store(bytes));
        if !room {
            peer.quota_granted.unstore();
        }
        room
    }

    /// Releases the room of a message that leaves the store. Returns true if the message was charged.
    pub(in crate::engine) fn discharge(&mut self, message: &mut StoredMessage) -> bool {
        let charged = std::mem::take(&mut message.charged);
        if charged {
            let peer = self.peers.peer_mut(message.envelope.source);
            peer.quota_granted.unstore();
            if let Some(bytes) = message.body.as_message_body().uninvited() {
                peer.credits.unstore(bytes);
            }
        }
        charged
    }
}

/// Calls at the receiver.
impl PointToPoint {
    /// Drops a stored offer that is void.
    pub(in crate::engine) fn drop_stored(&mut self, mut message: StoredMessage) {
        let source = message.envelope.source;
        if message.is_out_of_order() {
            self.fetches.resolved(source);
        } else if self.common.discharge(&mut message) {
            self.note_message_taken(source);
        }
    }

    /// Handles a message that has reached its receive or was dropped: the peer may send another one.
    pub(in crate::engine) fn note_message_taken(&mut self, rank: WorldRank) {
        let scarce = self.common.peers.grants().is_scarce();
        if self.common.peers.peer_mut(rank).quota_granted.leave(1) || scarce {
            self.replenish(rank);
        }
    }

    #[cold]
    pub(in crate::engine) fn replenish(&mut self, rank: WorldRank) {
        let (grants, peer) = self.common.peers.granting(rank);
        if let Some(limit) = grants.replenish(peer) {
            self.grant(rank, limit);
        }
        self.distribute_quota();
    }

    /// Distributes the free room among the peers that wait for room.
    pub(in crate::engine) fn distribute_quota(&mut self) {
        let mut waiting = self.common.peers.grants().take_waiting();
        for _ in 0..waiting.len() {
            if self.common.peers.grants().free() == 0 {
                break;
            }
            let Some(rank) = waiting.pop_front() else {
                break;
            };
            let (grants, peer) = self.common.peers.granting(rank);
            match grants.serve(peer, waiting.len()) {
                Some(limit) => self.grant(rank, limit),
                None => waiting.push_back(rank),
            }
        }
        self.common.peers.grants().put_back(waiting);
    }

    fn grant(&mut self, rank: WorldRank, limit: u32) {
        self.fetches.handle_granted(rank);
        self.unpark(rank); // its messages come in order from now on
        if self.common.peers.down(rank).is_none() {
            self.common
                .peers
                .control(rank, &QuotaHeader::new(WireKind::Grant, limit));
        }
    }

    /// Handles a peer that may not send any more and holds messages back. Returns true if what receives wait for must be
    /// [fetched](Self::fetch_from) from it.
    #[must_use]
    pub(in crate::engine) fn handle_blocked(
        &mut self,
        rank: WorldRank,
        header: &BlockedHeader,
    ) -> bool {
        let (grants, peer) = self.common.peers.granting(rank);
        if let Some(limit) = grants.handle_blocked(rank, peer, header.at, header.held) {
            self.grant(rank, limit);
            return false;
        }
        if self.common.peers.peer_mut(rank).quota_granted.waits() {
            self.common.peers.recall();
            self.distribute_quota();
        }
        let waits = self.common.peers.peer_mut(rank).quota_granted.waits();
        if waits {
            self.fetches.handle_blocked(rank);
        }
        waits
    }

    /// Handles a peer that has returned unused room.
    pub(in crate::engine) fn handle_limit(&mut self, rank: WorldRank, header: &QuotaHeader) {
        let (grants, peer) = self.common.peers.granting(rank);
        let limit = header.messages();
        if limit.is_some_and(|limit| grants.handle_limit(peer, limit)) {
            self.distribute_quota();
        } else {
            self.common.refused += 1;
        }
    }
}

/// Calls at the receiver that concern the peers only.
impl EnginePeers {
    /// Asks all peers to return the room that they do not use, when room becomes scarce. O(peers in contact).
    fn recall(&mut self) {
        if !self.grants().has_become_scarce() {
            return;
        }
        let met: Vec<WorldRank> = self.met().collect();
        for rank in met {
            let (grants, peer) = self.granting(rank);
            if grants.recall(peer) {
                self.control(rank, &BareHeader::new(WireKind::QuotaRecall));
            }
        }
    }
}

/// Calls at the sender.
impl EnginePeers {
    /// Handles a peer that has raised this rank's limit.
    pub(in crate::engine) fn handle_grant(&mut self, rank: WorldRank, header: &QuotaHeader) {
        let peer = self.peer_mut(rank);
        let limit = header.messages();
        let more = limit.is_some_and(|limit| peer.header_quota.handle_grant(limit));
        if more && !peer.sends.is_empty() {
            self.mark_to_flush(rank);
        }
    }

    pub(in crate::engine) fn handle_recall(&mut self, rank: WorldRank) {
        let first = self.first;
        let peer = self.peer_mut(rank);
        let limit = peer.header_quota.handle_recall(first);
        let waits = !peer.sends.is_empty();
        self.control(rank, &QuotaHeader::new(WireKind::Limit, limit));
        if waits {
            self.mark_to_flush(rank);
        }
    }
}

impl MessageTransmitter<'_> {
    /// Sends from the front of the queue, while there is room at the driver and at the peer.
    pub(in crate::engine) fn flush_sends(&mut self, rank: WorldRank) -> FlushResult {
        loop {
            let peer = self.p2p.common.peers.peer_mut(rank);
            let op = match peer.sends.front() {
                QueueFront::Nothing => return FlushResult::All,
                // The peer will report that the message is matched, or return it.
                QueueFront::Out(op) if self.p2p.common.ops.get(op).is_some() => {
                    return FlushResult::All;
                }
                QueueFront::Out(op) | QueueFront::Waiting(op) => op,
            };
            if self.is_queued(op) {
                let peer = self.p2p.common.peers.peer_mut(rank);
                if peer.header_quota.is_spent() {
                    return self.say_blocked(rank);
                }
                if !self.send_envelope(op, rank) {
                    return FlushResult::Stuck;
                }
            }
            self.p2p.common.peers.peer_mut(rank).sends.pop();
        }
    }

    fn is_queued(&mut self, op: OpId) -> bool {
        let slot = self.p2p.common.ops.get(op);
        slot.is_some_and(|slot| matches!(slot.state, OpState::Queued))
    }

    /// Notifies the peer that this rank is blocked, once for each limit. The queue then waits for the peer, not for the driver.
    fn say_blocked(&mut self, rank: WorldRank) -> FlushResult {
        let peer = self.p2p.common.peers.peer_mut(rank);
        let Some(limit) = peer.header_quota.block() else {
            return FlushResult::All;
        };
        let line = &mut peer.sends;
        let held = u32::try_from(line.len()).unwrap_or(u32::MAX);
        let header = BlockedHeader::new(limit, held, line.block());
        self.p2p.common.peers.control(rank, &header);
        self.p2p.common.flush_control(&mut *self.driver, rank)
    }
}

#[cfg(test)]
impl PointToPoint {
    /// Returns the number of unexpected messages in the store.
    pub(in crate::engine) fn stored(&self) -> usize {
        self.common.peers.stored() + usize::from(self.has_parked())
    }

    /// Returns true if a fetched message waits for a probe.
    pub(in crate::engine) fn has_parked(&self) -> bool {
        self.parked.is_some()
    }
}
