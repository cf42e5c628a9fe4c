//! Locks for passive-target accesses, granted by the target's engine in the order of the requests.
//!
//! A *door* admits either several ranks that share the memory, or one rank that has it exclusively. A rank that fails while it
//! holds the lock is removed.

use std::collections::{BTreeMap, VecDeque};

use super::{Core, Engine, Near, WindowId};
use crate::{
    engine::send::down_kind,
    error::ErrorKind,
    group::WorldRank,
    proto::wire::{Base, Kind, Lock},
};

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Access to a rank's memory that is shared with other ranks.
    Shared,
    /// Exclusive access.
    Exclusive,
}

/// Lock of one rank's memory, kept at that rank.
#[derive(Default)]
pub(super) struct Door {
    inside: BTreeMap<WorldRank, Want>,
    queue: VecDeque<(WorldRank, Want)>,
}

/// State of this rank's lock of a neighbor's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    #[default]
    Outside,
    Waiting,
    /// Requested, and already given back by the caller. The lock is needed only for operations that have begun.
    Passing,
    Inside(Want),
    /// Held, and released as soon as none of our operations is in flight.
    Leaving,
}

/// Bits of a message's word that encode the kind of the lock.
const CODE_BITS: u32 = 2;

impl Want {
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

impl Door {
    fn admits(&self, want: Want) -> bool {
        let shares = |&inside: &Want| inside == Want::Shared && want == Want::Shared;
        self.inside.values().all(shares)
    }

    /// Requests the lock for a rank. Returns true if it is granted immediately.
    pub(super) fn knock(&mut self, rank: WorldRank, want: Want) -> bool {
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
    fn leave(&mut self, rank: WorldRank) -> Vec<(WorldRank, Want)> {
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

    /// Returns true if another rank holds the lock exclusively.
    pub(super) fn keeps_out(&self, rank: WorldRank) -> bool {
        let alone =
            |(&inside, &want): (&WorldRank, &Want)| want == Want::Exclusive && inside != rank;
        self.inside.iter().any(alone)
    }

    /// Returns true if a rank holds the lock, and so may access this end's memory.
    pub(super) fn is_inside(&self, rank: WorldRank) -> bool {
        self.inside.contains_key(&rank)
    }
}

impl Engine {
    /// Requests the lock of a rank's memory.
    ///
    /// # Errors
    /// Fails if this rank already holds that lock, has requested it or is about to release it.
    pub(crate) fn ask_lock(
        &mut self,
        id: WindowId,
        rank: WorldRank,
        want: Want,
    ) -> Result<(), ErrorKind> {
        self.greet(id, rank);
        let Some(near) = self.core.windows.near(id, rank) else {
            return Err(ErrorKind::Closed);
        };
        if near.lock != Standing::Outside {
            return Err(ErrorKind::Epoch(format!(
                "a lock at rank {rank} of the world, window {}, is held, asked for or being given back: unlock it first",
                id.sequence
            )));
        }
        near.lock = Standing::Waiting;
        near.asked += 1;
        let lock = id.lock(Kind::Lock, want.numbered(near.asked));
        self.core.peers.control(rank, &lock);
        self.flush();
        Ok(())
    }

    /// Releases a lock as soon as none of our operations is in flight there. A request that was not granted yet is taken back,
    /// unless operations wait for it.
    pub(crate) fn give_lock_back(&mut self, id: WindowId, rank: WorldRank) {
        let near = self.core.windows.near(id, rank);
        if let Some(near) = near.filter(|near| near.lock != Standing::Outside) {
            near.lock = match near.lock {
                Standing::Waiting | Standing::Passing => Standing::Passing,
                _ => Standing::Leaving,
            };
            near.ledger.set_inside(false);
        }
        self.core.release_lock(id, rank);
        self.flush();
        self.let_kept_go();
    }
}

impl Core {
    /// Returns `Ok` once the requested lock is held, and `None` while it is not.
    pub(crate) fn has_lock(
        &mut self,
        id: WindowId,
        rank: WorldRank,
        want: Want,
    ) -> Option<Result<(), ErrorKind>> {
        let (down, ended) = (self.peers.down(rank), self.ended);
        let near = self.windows.near(id, rank)?;
        match down {
            // Wait for the greeting, too: it may come after the answer to the request.
            _ if near.lock == Standing::Inside(want) && near.far.is_some() => Some(Ok(())),
            _ if near.gone => Some(Err(ErrorKind::NoWindow {
                window: id.sequence,
            })),
            Some(down) => Some(Err(down_kind(rank, down))),
            None if ended => Some(Err(ErrorKind::Closed)),
            None => None,
        }
    }

    /// Sends the unlock message, if no operation of ours holds it up any more.
    pub(super) fn release_lock(&mut self, id: WindowId, rank: WorldRank) {
        let down = self.peers.down(rank).is_some();
        let near = self.windows.near(id, rank);
        let leaves = |near: &&mut Near| {
            let goes = matches!(near.lock, Standing::Leaving | Standing::Passing);
            goes && near.ledger.is_quiet()
        };
        let Some(near) = near.filter(leaves) else {
            return;
        };
        near.lock = Standing::Outside;
        if !down {
            self.peers.control(rank, &id.lock(Kind::Unlock, 0));
        }
    }

    pub(in crate::engine) fn handle_lock(&mut self, rank: WorldRank, header: &Lock) {
        let id = WindowId {
            context: header.ctx,
            sequence: header.tag,
        };
        let known = self.near_of(id, rank).is_some();
        let asked = Want::from_numbered(header.want).filter(|_| known);
        let end = self.windows.ends.get_mut(&id);
        let (Some((want, number)), Some(end)) = (asked, end) else {
            return self.peers.control(rank, &id.note(Kind::NoWindow, 0, 0));
        };
        if end.entrance.at_door(|door| door.knows(rank)) {
            self.refused += 1;
            return;
        }
        end.near(rank).knocked = number;
        if end.entrance.at_door(|door| door.knock(rank, want)) {
            self.let_in(id, rank, want);
        }
    }

    fn let_in(&mut self, id: WindowId, rank: WorldRank, want: Want) {
        let number = self.windows.near(id, rank).map_or(0, |near| near.knocked);
        self.peers
            .control(rank, &id.lock(Kind::Locked, want.numbered(number)));
    }

    pub(in crate::engine) fn handle_locked(&mut self, rank: WorldRank, header: &Lock) {
        let id = WindowId {
            context: header.ctx,
            sequence: header.tag,
        };
        let Some((want, number)) = Want::from_numbered(header.want) else {
            self.refused += 1;
            return;
        };
        let Some(near) = self.near_of(id, rank).filter(|near| near.asked == number) else {
            return;
        };
        match near.lock {
            Standing::Waiting => {
                near.lock = Standing::Inside(want);
                near.ledger.set_inside(true);
            }
            Standing::Passing => near.lock = Standing::Leaving,
            _ => return,
        }
        self.unstash(id, rank);
        self.stir_window(id);
    }

    pub(in crate::engine) fn handle_unlock(&mut self, rank: WorldRank, header: &Lock) {
        let id = WindowId {
            context: header.ctx,
            sequence: header.tag,
        };
        self.leave_door(id, rank);
    }

    /// Removes a rank that unlocks or is down, and grants the lock to the ranks that may have it next.
    pub(super) fn leave_door(&mut self, id: WindowId, rank: WorldRank) {
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return;
        };
        for (rank, want) in end.entrance.at_door(|door| door.leave(rank)) {
            self.let_in(id, rank, want);
        }
    }
}

impl WindowId {
    fn lock(self, kind: Kind, want: u64) -> Lock {
        let base = Base::new(kind);
        Lock {
            base,
            ctx: self.context,
            tag: self.sequence,
            want,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Door, Want, WorldRank};

    #[test]
    fn who_wants_to_be_alone_waits_for_the_others_and_others_behind_wait_for_it() {
        let mut door = Door::default();
        let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(WorldRank);
        assert!(door.knock(one, Want::Shared) && door.knock(two, Want::Shared));
        assert!(!door.knock(three, Want::Exclusive) && !door.knock(four, Want::Shared));
        assert!(door.leave(one).is_empty());
        assert_eq!(door.leave(two), [(three, Want::Exclusive)]);
        assert!(!door.knock(five, Want::Shared) && door.keeps_out(four) && !door.keeps_out(three));
        assert_eq!(
            door.leave(three),
            [(four, Want::Shared), (five, Want::Shared)]
        );
        assert!(door.knows(five) && !door.knows(three));
    }

    #[test]
    fn who_goes_while_it_waits_lets_those_behind_it_in() {
        let mut door = Door::default();
        let [one, two, three] = [1, 2, 3].map(WorldRank);
        assert!(door.knock(one, Want::Shared) && !door.knock(two, Want::Exclusive));
        assert!(!door.knock(three, Want::Shared));
        assert_eq!(door.leave(two), [(three, Want::Shared)]);
    }
}
