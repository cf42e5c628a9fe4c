//! Context ids, the numbers of communicators. All ranks of a communicator use the same number, which is new to all of
//! them: each rank proposes one, and the greatest is taken if it is new on every rank. Otherwise they try greater ones.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::comm::CreateQueues;

/// Context ids that communicators of this runtime have or had. No id is used twice, because a message to a communicator
/// that was dropped here may still be queued or in flight.
#[derive(Debug, Default)]
pub(crate) struct ContextIds {
    used: Mutex<UsedContextIds>,
    /// Creations that are looking for a number.
    pub(crate) creates: CreateQueues,
}

/// A set of even numbers from 2 on: all numbers below `below`, and those in `above`.
#[derive(Debug)]
struct UsedContextIds {
    below: u32,
    above: BTreeSet<u32>,
}

/// Proposal of a rank that has no number left. It is odd and greater than every valid id.
pub(crate) const NONE_LEFT: u32 = u32::MAX;

impl Default for UsedContextIds {
    fn default() -> Self {
        Self {
            below: 2,
            above: BTreeSet::new(),
        }
    }
}

impl UsedContextIds {
    /// Adds a number. Returns true if it was new.
    fn insert(&mut self, ctx: u32) -> bool {
        let new = ctx.is_multiple_of(2) && ctx >= self.below && self.above.insert(ctx);
        while self.above.remove(&self.below) {
            self.below = self.below.saturating_add(2);
        }
        new
    }

    /// Takes the least number from `from` on that was never used.
    fn take_next(&mut self, from: u32) -> Option<u32> {
        let mut ctx = from.max(self.below).checked_next_multiple_of(2)?;
        while !self.insert(ctx) {
            ctx = ctx.checked_add(2)?;
        }
        Some(ctx)
    }
}

impl ContextIds {
    /// Returns the least number from `from` on that was never used here, or [`NONE_LEFT`].
    pub(crate) fn propose(&self, from: u32) -> u32 {
        self.lock().take_next(from).unwrap_or(NONE_LEFT)
    }

    /// Marks the agreed number as used. Returns true if it was new here.
    pub(crate) fn accept(&self, agreed: u32, proposed: u32) -> bool {
        agreed != NONE_LEFT && (agreed == proposed || self.lock().insert(agreed))
    }

    /// Returns where to continue if a number was not new on every rank.
    pub(crate) fn after(ctx: u32) -> Option<u32> {
        (ctx & !1).checked_add(2)
    }

    fn lock(&self) -> MutexGuard<'_, UsedContextIds> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks nearly all numbers as used: `count` are left.
    #[cfg(test)]
    pub(crate) fn leave(&self, count: u32) {
        self.lock().below = NONE_LEFT - 2 * count + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{ContextIds, NONE_LEFT};

    #[test]
    fn each_number_is_had_once() {
        let contexts = ContextIds::default();
        assert!(contexts.accept(6, 2) && !contexts.accept(6, 2));
        assert_eq!([0; 4].map(|from| contexts.propose(from)), [2, 4, 8, 10]);
        assert_eq!((contexts.propose(21), contexts.propose(0)), (22, 12));
        assert!(contexts.accept(12, 12), "it is this rank's own");
        assert!(!contexts.accept(15, 2), "no communicator has that");
    }

    #[test]
    fn numbers_end() {
        let contexts = ContextIds::default();
        assert!(contexts.accept(NONE_LEFT - 1, 2), "what a peer proposes");
        assert_eq!(contexts.propose(NONE_LEFT - 1), NONE_LEFT);
        assert_eq!(contexts.propose(NONE_LEFT - 4), NONE_LEFT - 3);
        assert_eq!(contexts.propose(0), 2);
        let contexts = ContextIds::default();
        contexts.leave(1);
        assert_eq!(contexts.propose(0), NONE_LEFT - 1);
        assert_eq!(contexts.propose(0), NONE_LEFT);
        assert!(!contexts.accept(NONE_LEFT, NONE_LEFT) && !contexts.accept(2, 4));
        assert_eq!(ContextIds::after(NONE_LEFT), None);
        assert_eq!(ContextIds::after(5), Some(6));
    }
}
