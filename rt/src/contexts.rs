//! The numbers of communicators. All ranks of one have the same, which is new to all of them: each proposes one, the greatest is
//! taken if it is new everywhere, and otherwise they look further on.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Contexts that this runtime's communicators have or had. None is used twice: a message to a communicator that was dropped
/// here may still wait or be on its way.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Mutex<Used>);

/// A set of even numbers from 2 on: everything below `below`, and `above`.
#[derive(Debug)]
struct Used {
    below: u32,
    above: BTreeSet<u32>,
}

/// What a rank proposes that has no number left. No communicator has an odd one, and none is greater.
pub(crate) const NONE_LEFT: u32 = u32::MAX;

impl Default for Used {
    fn default() -> Self {
        Self {
            below: 2,
            above: BTreeSet::new(),
        }
    }
}

impl Used {
    /// Whether it was new.
    fn insert(&mut self, ctx: u32) -> bool {
        let new = ctx.is_multiple_of(2) && ctx >= self.below && self.above.insert(ctx);
        while self.above.remove(&self.below) {
            self.below = self.below.saturating_add(2);
        }
        new
    }

    /// The least number from `from` on that was never used.
    fn take_next(&mut self, from: u32) -> Option<u32> {
        let mut ctx = from.max(self.below).checked_next_multiple_of(2)?;
        while !self.insert(ctx) {
            ctx = ctx.checked_add(2)?;
        }
        Some(ctx)
    }
}

impl Contexts {
    /// The least number from `from` on that was never used here, or [`NONE_LEFT`].
    pub(crate) fn propose(&self, from: u32) -> u32 {
        self.lock().take_next(from).unwrap_or(NONE_LEFT)
    }

    /// Whether the greatest number that was proposed is new here, which it is no more then.
    pub(crate) fn accept(&self, agreed: u32, proposed: u32) -> bool {
        agreed != NONE_LEFT && (agreed == proposed || self.lock().insert(agreed))
    }

    /// Where to look when a number was not new everywhere.
    pub(crate) fn after(ctx: u32) -> Option<u32> {
        (ctx & !1).checked_add(2)
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As if nearly all numbers were used: these are left.
    #[cfg(test)]
    pub(crate) fn leave(&self, count: u32) {
        self.lock().below = NONE_LEFT - 2 * count + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{Contexts, NONE_LEFT};

    #[test]
    fn each_number_is_had_once() {
        let contexts = Contexts::default();
        assert!(contexts.accept(6, 2) && !contexts.accept(6, 2));
        assert_eq!([0; 4].map(|from| contexts.propose(from)), [2, 4, 8, 10]);
        assert_eq!((contexts.propose(21), contexts.propose(0)), (22, 12));
        assert!(contexts.accept(12, 12), "it is this rank's own");
        assert!(!contexts.accept(15, 2), "no communicator has that");
    }

    #[test]
    fn numbers_end() {
        let contexts = Contexts::default();
        assert!(contexts.accept(NONE_LEFT - 1, 2), "what a peer proposes");
        assert_eq!(contexts.propose(NONE_LEFT - 1), NONE_LEFT);
        assert_eq!(contexts.propose(NONE_LEFT - 4), NONE_LEFT - 3);
        assert_eq!(contexts.propose(0), 2);
        let contexts = Contexts::default();
        contexts.leave(1);
        assert_eq!(contexts.propose(0), NONE_LEFT - 1);
        assert_eq!(contexts.propose(0), NONE_LEFT);
        assert!(!contexts.accept(NONE_LEFT, NONE_LEFT) && !contexts.accept(2, 4));
        assert_eq!(Contexts::after(NONE_LEFT), None);
        assert_eq!(Contexts::after(5), Some(6));
    }
}
