//! Locks for passive-target accesses, granted by the target's engine in the order of the requests.
//!
//! A [`WindowLock`] admits either several ranks that share the memory, or one rank that has it exclusively. A rank that fails
//! while it holds the lock is removed.

use std::collections::{BTreeMap, VecDeque};

use super::{PeerEndState, WindowId, WindowPart, WindowProgress};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    proto::wire::{HeaderBase, LockHeader, WireKind},
    trace::WindowCall,
};

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowLockKind {
    /// Access to a rank's memory that is shared with other ranks.
    Shared,
    /// Exclusive access.
    Exclusive,
}

/// Lock of one rank's memory, kept at that rank.
#[derive(Default)]
pub(super) struct WindowLock {
    inside: BTreeMap<WorldRank, WindowLockKind>,
    queue: VecDeque<(WorldRank, WindowLockKind)>,
}

/// State of this rank's lock of a neighbor's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WindowLockState {
    #[default]
    Outside,
    Waiting,
    /// Requested, and already given back by the caller. The lock is needed only for operations that have begun.
    Passing,
    Inside(WindowLockKind),
    /// Held, and released as soon as none of this rank's operations is in flight.
    Leaving,
}

/// Bits of a message's word that encode the kind of the lock.
const CODE_BITS: u32 = 2;

impl WindowLockKind {
    fn code(self) -> u64 {
        match self {
            Self::Shared => 1,
            Self::Exclusive => 2,
        }
    }

    /// Encodes the kind together with the number of the request, which the answer repeats.
    fn numbered(self, number: u64) -> u64 {
        number << CODE_BITS | self.code()
    }

    fn from_numbered(word: u64) -> Option<(Self, u64)> {
        let (code, number) = (word & ((1 << CODE_BITS) - 1), word >> CODE_BITS);
        [Self::Shared, Self::Exclusive]
            .into_iter()
            .find(|want| want.code() == code)
            .map(|want| (want, number))
    }
}

impl WindowLock {
    fn admits(&self, want: WindowLockKind) -> bool {
        let shares = |&inside: &WindowLockKind| {
            inside == WindowLockKind::Shared && want == WindowLockKind::Shared
        };
        self.inside.values().all(shares)
    }

    /// Requests the lock for a rank. Returns true if it is granted immediately.
    pub(super) fn request(&mut self, rank: WorldRank, want: WindowLockKind) -> bool {
        let free = self.queue.is_empty() && self.admits(want);
        if free {
            self.inside.insert(rank, want);
        } else {
            self.queue.push_back((rank, want));
        }
        free
    }

    fn knows(&self, rank: WorldRank) -> bool {
        self.is_inside(rank) || self.queue.iter().any(|&(queued, _)| queued == rank)
    }

    /// Removes a rank that unlocks or is down. Returns the ranks to which the lock is granted now.
    fn leave(&mut self, rank: WorldRank) -> Vec<(WorldRank, WindowLockKind)> {
        self.inside.remove(&rank);
        self.queue.retain(|&(queued, _)| queued != rank);
        let mut let_in = Vec::new();
        while let Some(&(next, want)) = self.queue.front()
            && self.admits(want)
        {
            self.queue.pop_front();
            self.inside.insert(next, want);
            let_in.push((next, want));
        }
        let_in
    }

    /// Returns the ranks that hold the lock, if other ranks wait for it.
    pub(super) fn awaited_holders(&self) -> Vec<WorldRank> {
        if self.queue.is_empty() {
            return Vec::new();
        }
        self.inside.keys().copied().collect()
    }

    /// Returns true if another rank holds the lock exclusively.
    pub(super) fn excludes(&self, rank: WorldRank) -> bool {
        let alone = |(&inside, &want): (&WorldRank, &WindowLockKind)| {
            want == WindowLockKind::Exclusive && inside != rank
        };
        self.inside.iter().any(alone)
    }

    /// Returns true if a rank holds the lock, and so may access this end's memory.
    pub(super) fn is_inside(&self, rank: WorldRank) -> bool {
        self.inside.contains_key(&rank)
    }
}

impl WindowProgress<'_> {
    /// Requests the lock of a rank's memory.
    ///
    /// # Errors
    /// Fails if this rank already holds that lock, has requested it or is about to release it.
    pub(in crate::engine) fn ask_lock(
        &mut self,
        id: WindowId,
        rank: WorldRank,
        want: WindowLockKind,
        call: WindowCall,
    ) -> Result<(), ErrorKind> {
        self.greet(id, rank);
        let WindowPart { windows, common } = &mut self.part;
        let Some(peer_end) = windows.peer_end(id, rank) else {
            return Err(ErrorKind::Closed);
        };
        if peer_end.lock != WindowLockState::Outside {
            return Err(ErrorKind::Epoch(format!(
                "a lock at rank {rank} of the world, window {}, is held, requested or being released: unlock it first",
                id.sequence
            )));
        }
        peer_end.lock = WindowLockState::Waiting;
        peer_end.our_lock_request += 1;
        let lock = id.lock(WireKind::Lock, want.numbered(peer_end.our_lock_request));
        common.peers.control(rank, &lock);
        common.trace_epoch(id, Some(rank), call);
        Ok(())
    }
}

impl WindowPart<'_> {
    /// Releases a lock as soon as none of this rank's operations is in flight there. A request that was not granted yet is taken
    /// back, unless operations wait for it.
    pub(in crate::engine) fn give_lock_back(&mut self, id: WindowId, rank: WorldRank) {
        let peer_end = self.windows.peer_end(id, rank);
        if let Some(peer_end) =
            peer_end.filter(|peer_end| peer_end.lock != WindowLockState::Outside)
        {
            peer_end.lock = match peer_end.lock {
                WindowLockState::Waiting | WindowLockState::Passing => WindowLockState::Passing,
                _ => WindowLockState::Leaving,
            };
            peer_end.counters.set_inside(false);
        }
        self.release_lock(id, rank);
        self.common.trace_epoch_end(id, Some(rank));
    }

    /// Returns `Ok` once the requested lock is held, and `None` while it is not.
    pub(crate) fn has_lock(
        &mut self,
        id: WindowId,
        rank: WorldRank,
        want: WindowLockKind,
    ) -> Option<Result<(), ErrorKind>> {
        let (down, ended) = (self.common.peers.down(rank), self.common.ended);
        let peer_end = self.windows.peer_end(id, rank)?;
        match down {
            // Wait for the greeting, too: it may come after the answer to the request.
            _ if peer_end.lock == WindowLockState::Inside(want) && peer_end.memory.is_some() => {
                Some(Ok(()))
            }
            _ if peer_end.freed => Some(Err(ErrorKind::NoWindow {
                window: id.sequence,
            })),
            Some(down) => Some(Err(ErrorKind::of_down(rank, down))),
            None if ended => Some(Err(ErrorKind::Closed)),
            None => None,
        }
    }

    /// Sends the unlock message, if no operation of this rank holds it up any more.
    pub(super) fn release_lock(&mut self, id: WindowId, rank: WorldRank) {
        let down = self.common.peers.down(rank).is_some();
        let peer_end = self.windows.peer_end(id, rank);
        let leaves = |peer_end: &&mut PeerEndState| {
            let goes = matches!(
                peer_end.lock,
                WindowLockState::Leaving | WindowLockState::Passing
            );
            goes && peer_end.counters.is_quiet()
        };
        let Some(peer_end) = peer_end.filter(leaves) else {
            return;
        };
        peer_end.lock = WindowLockState::Outside;
        if !down {
            self.common
                .peers
                .control(rank, &id.lock(WireKind::Unlock, 0));
        }
    }

    pub(in crate::engine) fn handle_lock(&mut self, rank: WorldRank, header: &LockHeader) {
        let id = WindowId::new(header.ctx, header.tag);
        let known = self.peer_end_of(id, rank).is_some();
        let asked = WindowLockKind::from_numbered(header.want).filter(|_| known);
        let end = self.windows.ends.get_mut(&id);
        let (Some((want, number)), Some(end)) = (asked, end) else {
            return self
                .common
                .peers
                .control(rank, &id.count_header(WireKind::NoWindow, 0, 0));
        };
        if end.access_guard.with_lock(|door| door.knows(rank)) {
            self.common.refused += 1;
            return;
        }
        end.peer_end(rank).their_lock_request = number;
        if end.access_guard.with_lock(|door| door.request(rank, want)) {
            self.let_in(id, rank, want);
        }
    }

    fn let_in(&mut self, id: WindowId, rank: WorldRank, want: WindowLockKind) {
        let number = self
            .windows
            .peer_end(id, rank)
            .map_or(0, |peer_end| peer_end.their_lock_request);
        self.common
            .peers
            .control(rank, &id.lock(WireKind::LockGranted, want.numbered(number)));
    }

    pub(in crate::engine) fn handle_lock_granted(&mut self, rank: WorldRank, header: &LockHeader) {
        let id = WindowId::new(header.ctx, header.tag);
        let Some((want, number)) = WindowLockKind::from_numbered(header.want) else {
            self.common.refused += 1;
            return;
        };
        let Some(peer_end) = self
            .peer_end_of(id, rank)
            .filter(|peer_end| peer_end.our_lock_request == number)
        else {
            return;
        };
        match peer_end.lock {
            WindowLockState::Waiting => {
                peer_end.lock = WindowLockState::Inside(want);
                peer_end.counters.set_inside(true);
            }
            WindowLockState::Passing => peer_end.lock = WindowLockState::Leaving,
            _ => return,
        }
        self.unstash(id, rank);
        self.wake_window(id);
    }

    pub(in crate::engine) fn handle_unlock(&mut self, rank: WorldRank, header: &LockHeader) {
        let id = WindowId::new(header.ctx, header.tag);
        self.remove_from_lock(id, rank);
    }

    /// Removes a rank that unlocks or is down, and grants the lock to the ranks that may have it next.
    pub(super) fn remove_from_lock(&mut self, id: WindowId, rank: WorldRank) {
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return;
        };
        for (rank, want) in end.access_guard.with_lock(|door| door.leave(rank)) {
            self.let_in(id, rank, want);
        }
    }
}

impl WindowId {
    fn lock(self, kind: WireKind, want: u64) -> LockHeader {
        let base = HeaderBase::new(kind);
        LockHeader {
            base,
            ctx: self.context,
            tag: self.sequence,
            want,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{WindowLock, WindowLockKind, WorldRank};

    #[test]
    fn an_exclusive_request_waits_for_the_holders_and_later_requests_wait_for_it() {
        let mut door = WindowLock::default();
        let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(WorldRank);
        assert!(
            door.request(one, WindowLockKind::Shared) && door.request(two, WindowLockKind::Shared)
        );
        assert!(
            !door.request(three, WindowLockKind::Exclusive)
                && !door.request(four, WindowLockKind::Shared)
        );
        assert!(door.leave(one).is_empty());
        assert_eq!(door.leave(two), [(three, WindowLockKind::Exclusive)]);
        assert_eq!(door.awaited_holders(), [three]);
        assert!(
            !door.request(five, WindowLockKind::Shared)
                && door.excludes(four)
                && !door.excludes(three)
        );
        assert_eq!(
            door.leave(three),
            [
                (four, WindowLockKind::Shared),
                (five, WindowLockKind::Shared)
            ]
        );
        assert!(door.knows(five) && !door.knows(three));
        assert!(door.awaited_holders().is_empty(), "no rank waits");
    }

    #[test]
    fn a_waiting_rank_that_leaves_lets_the_requests_behind_it_in() {
        let mut door = WindowLock::default();
        let [one, two, three] = [1, 2, 3].map(WorldRank);
        assert!(
            door.request(one, WindowLockKind::Shared)
                && !door.request(two, WindowLockKind::Exclusive)
        );
        assert!(!door.request(three, WindowLockKind::Shared));
        assert_eq!(door.leave(two), [(three, WindowLockKind::Shared)]);
    }
}
