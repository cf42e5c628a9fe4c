//! The receiver's half of all limits, which share one room for headers.

use std::collections::VecDeque;

use super::quota::ahead;
use crate::group::WorldRank;

/// The room for headers, and the peers that wait for a part of it.
///
/// Every peer has a small part from the start, if there is enough room. The rest is lent to the peers that use it. A
/// limit doubles whenever half of it was consumed, up to half of the room and half of the free rest. While a peer waits
/// for room, limits shrink instead, unused parts are recalled from other peers, and freed parts are given to the
/// waiting peers in turn.
#[derive(Debug)]
pub(crate) struct QuotaGrants {
    /// Part that each peer has from the start.
    first: u32,
    /// Maximum that is lent beyond these parts, to all peers together. `lent` is how much of it is in use.
    lendable: u32,
    lent: u32,
    /// Maximum for one peer.
    share_max: u32,
    /// Blocked peers.
    waiting: VecDeque<WorldRank>,
}

/// Size of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderRoom {
    /// Maximum number of stored headers.
    pub(crate) headers: usize,
    /// Number of ranks of the job.
    pub(crate) peers: u32,
}

/// Quota of one peer for messages to this rank.
#[derive(Debug)]
pub(crate) struct PeerQuota {
    /// Number of messages that the peer may have sent, in total.
    limit: u32,
    /// Messages that have left the store, or that never entered it.
    left: u32,
    /// Messages in the store.
    stored: u32,
    /// Value of `left` at which the limit should be raised.
    raise_at: u32,
    /// Distance of the limit above `left` when it was raised last.
    window: u32,
    /// Part of `QuotaGrants::lent` that is accounted to this peer; never less than what the peer really has.
    lent: u32,
    /// Messages that were waiting at the peer when it was last blocked.
    held: u32,
    waits: bool,
    recalled: bool,
}

impl HeaderRoom {
    /// Returns what each peer may send from the start.
    ///
    /// Sender and receiver compute the same number. This is at most half of the room for all peers together, and at
    /// most 64 for each: a window of small messages does not wait for its first grant.
    pub(crate) fn first(self) -> u32 {
        let share = self.grantable() / 2 / self.peers.max(1);
        share.min(FIRST_MAX)
    }

    /// Returns the part of the room that can be granted. One place is reserved for a fetched message.
    fn grantable(self) -> u32 {
        let headers = u32::try_from(self.headers).unwrap_or(HEADERS_MAX);
        headers.min(HEADERS_MAX).saturating_sub(1)
    }
}

impl QuotaGrants {
    pub(crate) fn new(room: HeaderRoom) -> Self {
        let first = room.first();
        Self {
            first,
            lendable: room.grantable() - first * room.peers.max(1),
            lent: 0,
            share_max: (room.grantable() / 2).max(first).max(1),
            waiting: VecDeque::new(),
        }
    }

    /// Returns true if a peer waits for room.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Handles a blocked peer at which `held` messages wait. Returns the new limit, or `None` if the peer has to wait.
    pub(crate) fn handle_blocked(
        &mut self,
        rank: WorldRank,
        peer: &mut PeerQuota,
        at: u32,
        held: u32,
    ) -> Option<u32> {
        if at != peer.limit || peer.waits {
            return None; // the peer will receive a higher limit
        }
        peer.held = held;
        let limit = if self.is_scarce() {
            None // other peers have waited for longer
        } else {
            self.raise(peer, true, None)
        };
        if limit.is_none() {
            peer.waits = true;
            self.waiting.push_back(rank);
        }
        limit
    }

    /// Raises the limit after a message has left, when [`PeerQuota::leave`] says so. Returns the new limit, if it is time
    /// for one.
    pub(crate) fn replenish(&mut self, peer: &mut PeerQuota) -> Option<u32> {
        self.settle(peer);
        if peer.waits || ahead(peer.left, peer.raise_at).is_none() {
            return None;
        }
        let others = self.is_scarce().then_some(u32::MAX);
        self.raise(peer, false, others)
    }

    /// Returns the waiting ranks, the first one first. The caller [serves](Self::serve) each while there
    /// [is room](Self::free), and [puts back](Self::put_back) those that get nothing.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<WorldRank> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn put_back(&mut self, waiting: VecDeque<WorldRank>) {
        self.waiting.extend(waiting);
    }

    /// Returns true if a peer waits for room, and none did before. Then all peers must be asked to give back what they
    /// do not use.
    pub(crate) fn has_become_scarce(&self) -> bool {
        self.waiting.len() == 1
    }

    pub(crate) fn free(&self) -> u32 {
        self.lendable - self.lent
    }

    /// Returns the new limit of a waiting peer, when `others` wait too.
    pub(crate) fn serve(&mut self, peer: &mut PeerQuota, others: usize) -> Option<u32> {
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        let limit = self.raise(peer, true, Some(others))?;
        peer.waits = false;
        Some(limit)
    }

    /// Returns true if the peer should be asked to give back what it does not use. Returns true only once until the
    /// peer answers.
    pub(crate) fn recall(&mut self, peer: &mut PeerQuota) -> bool {
        self.settle(peer);
        let unused = peer.outstanding().saturating_sub(peer.stored);
        let recalled = !peer.recalled && !peer.waits && peer.lent > 0 && unused > self.first;
        peer.recalled |= recalled;
        recalled
    }

    /// Handles the lower limit of a peer that gives back what it does not use. Returns false if the limit cannot be
    /// right.
    pub(crate) fn handle_limit(&mut self, peer: &mut PeerQuota, limit: u32) -> bool {
        let used = peer.arrived();
        let honest =
            peer.recalled && ahead(peer.limit, limit).is_some() && ahead(limit, used).is_some();
        if honest {
            peer.recalled = false;
            peer.limit = limit;
            self.settle(peer);
        }
        honest
    }

    /// Takes back everything from a peer that has failed, except for its messages in the store.
    pub(crate) fn forget(&mut self, rank: WorldRank, peer: &mut PeerQuota) {
        peer.limit = peer.arrived();
        self.settle(peer);
        self.waiting.retain(|&waiting| waiting != rank);
        peer.waits = false;
    }

    /// Updates the accounts by what the peer has used up since.
    fn settle(&mut self, peer: &mut PeerQuota) {
        let lent = peer.outstanding().saturating_sub(self.first);
        self.lent = self.lent - peer.lent + lent;
        peer.lent = lent;
    }

    /// Raises the limit of a peer. If `others` is set, that many peers wait for room, and no peer gets more than it has
    /// messages for.
    fn raise(&mut self, peer: &mut PeerQuota, blocked: bool, others: Option<u32>) -> Option<u32> {
        self.settle(peer);
        let outstanding = peer.outstanding();
        let (wish, part) = match others {
            None => (peer.window.saturating_mul(2), 2),
            Some(_) if !blocked => (self.first, 1),
            Some(others) => {
                let wish = (peer.window / 2).max(self.first);
                (wish.min(outstanding + peer.held), others.max(1))
            }
        };
        let least = if blocked { outstanding + 1 } else { self.first };
        let wish = wish.max(least).min(self.share_max);
        let free = self.free();
        let lent_max = peer.lent + (free / part).max(1).min(free);
        let target = wish.min(self.first + lent_max);
        peer.raise_at = peer.left.wrapping_add((target / 2).max(1));
        if target <= outstanding || peer.recalled {
            return None;
        }
        peer.window = target;
        peer.limit = peer.left.wrapping_add(target);
        self.settle(peer);
        Some(peer.limit)
    }
}

impl PeerQuota {
    pub(crate) fn new(first: u32) -> Self {
        Self {
            limit: first,
            left: 0,
            stored: 0,
            raise_at: (first / 2).max(1),
            window: first,
            lent: 0,
            held: 0,
            waits: false,
            recalled: false,
        }
    }

    /// Records that so many messages of the peer were matched or dropped. Returns true if the limit should be raised.
    #[inline(always)]
    pub(crate) const fn leave(&mut self, messages: u32) -> bool {
        self.left = self.left.wrapping_add(messages);
        self.left.wrapping_sub(self.raise_at) < messages
    }

    /// Reserves store room for a message of the peer. Returns false if the peer has sent more than it may.
    pub(crate) fn store(&mut self) -> bool {
        let room = self.stored < self.outstanding();
        self.stored += u32::from(room);
        room
    }

    /// Releases the store room of a message, which then [leaves](Self::leave) or comes back.
    pub(crate) fn unstore(&mut self) {
        self.stored -= 1;
    }

    /// Returns the number of messages of the peer that have arrived, modulo 2³².
    pub(crate) fn arrived(&self) -> u32 {
        self.left.wrapping_add(self.stored)
    }

    /// Returns true if the peer is blocked and there was no room for a higher limit.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns how many messages the peer may have in the store or in flight.
    fn outstanding(&self) -> u32 {
        ahead(self.limit, self.left).unwrap_or(0)
    }
}

#[cfg(test)]
impl PeerQuota {
    pub(crate) fn stored(&self) -> usize {
        self.stored as usize
    }
}

#[cfg(test)]
impl QuotaGrants {
    /// Returns the most messages that may be in the store if every peer uses up its limit.
    pub(super) fn promised(&self, peers: u32) -> u32 {
        self.first * peers + self.lent
    }
}

/// Maximum for the start: `ripstop perf rate` has 64 messages in flight, and most programs have fewer.
const FIRST_MAX: u32 = 64;

/// Upper bound, so that message numbers can be compared by distance.
const HEADERS_MAX: u32 = 1 << 30;
