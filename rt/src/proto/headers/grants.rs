//! The receiver's half of all limits, which share one room.

use std::collections::VecDeque;

use super::allowance::ahead;

/// The room for headers, and who waits for a part of it.
///
/// Every peer has a small part from the start, if there is room for that; what is left is lent to those who use it. A limit
/// doubles whenever half of it was consumed, up to half of the room, and half of what is free; when somebody waits in vain,
/// limits shrink again instead, what others do not use is asked back, and what becomes free goes round.
#[derive(Debug)]
pub(crate) struct Grants {
    /// What each peer has from the start.
    first: u32,
    /// What is lent beyond that at most, to all peers together, and how much of it is.
    lendable: u32,
    lent: u32,
    /// The most that one peer gets.
    share_max: u32,
    /// Blocked peers.
    waiting: VecDeque<u32>,
}

/// How much there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Headers.
    pub(crate) headers: usize,
    /// Ranks of the job.
    pub(crate) peers: u32,
}

/// What one peer may send us.
#[derive(Debug)]
pub(crate) struct Granted {
    /// How many messages it may have sent, in all.
    limit: u32,
    /// How many have left the store, or never came to be in it.
    left: u32,
    /// How many are in the store.
    stored: u32,
    /// What `left` is when the limit should be raised.
    raise_at: u32,
    /// What the limit was above `left` when it was raised last.
    window: u32,
    /// Lent, as far as it is accounted for: never less than what is.
    lent: u32,
    /// How many messages wait at the peer, when it was blocked last.
    held: u32,
    waits: bool,
    recalled: bool,
}

impl Room {
    /// What each peer may send from the start; sender and receiver both work it out. At most half of the room for all peers,
    /// and 64 for each: a window of small messages does not wait for its first grant.
    pub(crate) fn first(self) -> u32 {
        let share = self.grantable() / 2 / self.peers.max(1);
        share.min(FIRST_MAX)
    }

    /// One place is kept for a message that was sought.
    fn grantable(self) -> u32 {
        let headers = u32::try_from(self.headers).unwrap_or(HEADERS_MAX);
        headers.min(HEADERS_MAX).saturating_sub(1)
    }
}

impl Grants {
    pub(crate) fn new(room: Room) -> Self {
        let first = room.first();
        Self {
            first,
            lendable: room.grantable() - first * room.peers.max(1),
            lent: 0,
            share_max: (room.grantable() / 2).max(first).max(1),
            waiting: VecDeque::new(),
        }
    }

    /// Somebody waits for room that there is not.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The peer can send no more, and `held` messages wait there. The new limit; `None` when it has to wait.
    pub(crate) fn handle_blocked(
        &mut self,
        rank: u32,
        peer: &mut Granted,
        at: u32,
        held: u32,
    ) -> Option<u32> {
        if at != peer.limit || peer.waits {
            return None; // it will hear of a higher one
        }
        peer.held = held;
        let limit = if self.is_scarce() {
            None // others were here before
        } else {
            self.raise(peer, true, None)
        };
        if limit.is_none() {
            peer.waits = true;
            self.waiting.push_back(rank);
        }
        limit
    }

    /// A message of the peer has left; to be asked when [`Granted::leave`] says so. The new limit, if it is time for one.
    pub(crate) fn replenish(&mut self, peer: &mut Granted) -> Option<u32> {
        self.settle(peer);
        if peer.waits || ahead(peer.left, peer.raise_at).is_none() {
            return None;
        }
        let others = self.is_scarce().then_some(u32::MAX);
        self.raise(peer, false, others)
    }

    /// Ranks that wait, the first first: each is to be [`serve`](Self::serve)d, and those that get nothing are
    /// [`put_back`](Self::put_back), while there [is something](Self::free).
    pub(crate) fn take_waiting(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn put_back(&mut self, waiting: VecDeque<u32>) {
        self.waiting.extend(waiting);
    }

    /// One peer waits in vain, and nobody did before: everybody is to be asked for what they do not use.
    pub(crate) fn has_become_scarce(&self) -> bool {
        self.waiting.len() == 1
    }

    pub(crate) fn free(&self) -> u32 {
        self.lendable - self.lent
    }

    /// The new limit of a peer that waits, when `others` wait too.
    pub(crate) fn serve(&mut self, peer: &mut Granted, others: usize) -> Option<u32> {
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        let limit = self.raise(peer, true, Some(others))?;
        peer.waits = false;
        Some(limit)
    }

    /// Whether the peer should be asked for what it does not use; once until it answers.
    pub(crate) fn recall(&mut self, peer: &mut Granted) -> bool {
        self.settle(peer);
        let unused = peer.outstanding().saturating_sub(peer.stored);
        let recalled = !peer.recalled && !peer.waits && peer.lent > 0 && unused > self.first;
        peer.recalled |= recalled;
        recalled
    }

    /// The peer gives back what it does not use.
    pub(crate) fn handle_limit(&mut self, peer: &mut Granted, limit: u32) -> bool {
        let used = peer.left.wrapping_add(peer.stored);
        let honest =
            peer.recalled && ahead(peer.limit, limit).is_some() && ahead(limit, used).is_some();
        if honest {
            peer.recalled = false;
            peer.limit = limit;
            self.settle(peer);
        }
        honest
    }

    /// The peer is gone: what it has in the store stays, and nothing else.
    pub(crate) fn forget(&mut self, rank: u32, peer: &mut Granted) {
        peer.limit = peer.left.wrapping_add(peer.stored);
        self.settle(peer);
        self.waiting.retain(|&waiting| waiting != rank);
        peer.waits = false;
    }

    /// Accounts for what has come back since.
    fn settle(&mut self, peer: &mut Granted) {
        let lent = peer.outstanding().saturating_sub(self.first);
        self.lent = self.lent - peer.lent + lent;
        peer.lent = lent;
    }

    /// `others` wait in vain: then nobody gets more than what it has messages for.
    fn raise(&mut self, peer: &mut Granted, blocked: bool, others: Option<u32>) -> Option<u32> {
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

impl Granted {
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

    /// A message of the peer has come to its receive, or nobody wants it. Whether the limit should be looked at.
    #[inline]
    pub(crate) fn leave(&mut self) -> bool {
        self.left = self.left.wrapping_add(1);
        self.left == self.raise_at
    }

    /// A message of the peer is to be stored. `false`: the peer has sent more than it may.
    pub(crate) fn store(&mut self) -> bool {
        let room = self.stored < self.outstanding();
        self.stored += u32::from(room);
        room
    }

    /// A stored message is taken out; it [leaves](Self::leave), or comes back.
    pub(crate) fn unstore(&mut self) {
        self.stored -= 1;
    }

    /// It could send nothing, and there was no room for more.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Messages that the peer may have in the store or on their way.
    fn outstanding(&self) -> u32 {
        ahead(self.limit, self.left).unwrap_or(0)
    }
}

#[cfg(test)]
impl Granted {
    pub(crate) fn stored(&self) -> usize {
        self.stored as usize
    }
}

#[cfg(test)]
impl Grants {
    /// No more than this may be in the store, if every peer uses up its limit.
    pub(super) fn promised(&self, peers: u32) -> u32 {
        self.first * peers + self.lent
    }
}

/// 64 in flight are what `ripstop perf rate` has, and most programs less.
const FIRST_MAX: u32 = 64;

/// So that numbers of messages are compared by their distance.
const HEADERS_MAX: u32 = 1 << 30;
