//! Memory of a burst is given back: when the tables are large and nearly empty for a while, they shrink.
//!
//! A rank looks only before it sleeps, and in constant time. What it then gives back it would have to make anew for the next
//! burst, so it waits for a while first, and keeps tables that are small.

use std::time::Duration;

use super::{Core, Engine};
use crate::clock::Time;

/// Tables with fewer places than this are kept.
const FLOOR: usize = 16 << 10;

/// Tables shrink when at most one place in so many is in use.
const SPARE: usize = 4;

/// How long they stay large.
const WHILE: Duration = Duration::from_millis(250);

/// Time between two attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// From this many places on the allocator is asked to give back, too.
const TRIM: usize = 64 << 10;

impl Engine {
    /// Called before a sleep: gives back what is due, and returns when to look again.
    #[inline]
    pub(crate) fn tidy(&mut self, now: impl FnOnce() -> Time) -> Option<Time> {
        if self.core.is_bloated() {
            return self.core.wait_and_shrink(now());
        }
        self.core.bloated_since = None;
        None
    }
}

impl Core {
    /// Returns true if a table is much larger than what is in it.
    #[inline]
    fn is_bloated(&self) -> bool {
        let is_wide = |(room, used): (usize, usize)| room >= FLOOR && used <= room / SPARE;
        is_wide(self.ops.room()) || is_wide(self.matching.room()) || is_wide(self.messages.room())
    }

    #[cold]
    fn wait_and_shrink(&mut self, now: Time) -> Option<Time> {
        let due = *self.bloated_since.get_or_insert(now) + WHILE;
        if now < due {
            return Some(due);
        }
        if now < self.shrinks_after {
            return Some(self.shrinks_after);
        }
        let before = self.places();
        self.shrink();
        if before.saturating_sub(self.places()) >= TRIM {
            crate::heap::trim();
        }
        self.bloated_since = None;
        // An operation at the end of a table may keep all of it: then this was in vain, and costs time.
        self.shrinks_after = now + AGAIN;
        self.is_bloated().then_some(self.shrinks_after)
    }

    fn places(&self) -> usize {
        self.ops.room().0 + self.matching.room().0 + self.messages.room().0
    }

    fn shrink(&mut self) {
        self.ops.shrink();
        self.matching.shrink();
        self.messages.shrink();
        self.programs.shrink(self.ops.room().0);
        self.peers.shrink();
        self.wanted.shrink_to(FLOOR);
        self.wakers.shrink_to(FLOOR);
        self.garbage.shrink_to(FLOOR);
    }
}
