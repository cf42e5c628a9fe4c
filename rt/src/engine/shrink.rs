//! Returns the memory of a burst: tables that are large and nearly empty for a while shrink.
//!
//! A rank checks this only before it sleeps, in constant time. It waits for a while first, and keeps small tables, because
//! memory that it returns must be allocated again for the next burst.

use std::time::Duration;

use super::{Engine, EngineCore};
use crate::clock::ClockTime;

/// Tables with fewer places than this never shrink.
const FLOOR: usize = 16 << 10;

/// Ratio of places to used places from which on a table shrinks.
const SPARE: usize = 4;

/// Time for which a table must be nearly empty before it shrinks.
const WHILE: Duration = Duration::from_millis(250);

/// Least time between two attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// Number of freed places from which on the allocator is asked to return memory, too.
const TRIM: usize = 64 << 10;

impl Engine {
    /// Frees memory that is due, before a sleep. Returns when to check again.
    #[inline]
    pub(crate) fn trim_memory(&mut self, now: impl FnOnce() -> ClockTime) -> Option<ClockTime> {
        if self.core.is_bloated() {
            return self.core.wait_and_shrink(now());
        }
        self.core.bloated_since = None;
        None
    }
}

impl EngineCore {
    /// Returns true if a table is much larger than what is in it.
    #[inline]
    fn is_bloated(&self) -> bool {
        let is_wide = |(room, used): (usize, usize)| room >= FLOOR && used <= room / SPARE;
        is_wide(self.p2p.common.ops.room()) || self.p2p.tables().rooms().into_iter().any(is_wide)
    }

    #[cold]
    fn wait_and_shrink(&mut self, now: ClockTime) -> Option<ClockTime> {
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
        // An operation at the end of a table keeps all of it. Then this attempt was in vain, so the next one comes later.
        self.shrinks_after = now + AGAIN;
        self.is_bloated().then_some(self.shrinks_after)
    }

    fn places(&self) -> usize {
        let [receives, messages] = self.p2p.tables().rooms();
        self.p2p.common.ops.room().0 + receives.0 + messages.0
    }

    fn shrink(&mut self) {
        self.p2p.common.ops.shrink();
        self.p2p.shrink_tables();
        let room = self.p2p.common.ops.room().0;
        self.programs.shrink(room);
        self.p2p.common.program_events.shrink_to(room);
        self.p2p.common.peers.shrink();
        self.p2p.common.commands.shrink_to(FLOOR);
        self.p2p.common.wakers.shrink_to(FLOOR);
        self.p2p.common.garbage.shrink_to(FLOOR);
    }
}
