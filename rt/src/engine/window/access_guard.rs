//! Decides which ranks may access an end's memory now.
//!
//! The engine asks for operations that come by message. A simulated adapter asks for puts and gets that need no help from this
//! rank. A real adapter cannot ask, so there the origins alone make sure that they access memory only when they may.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use ripstop_fabric::driver::AccessPolicy;

use super::{epoch_counters::EpochCounters, locks::WindowLock};
use crate::{
    group::WorldRank,
    sync::{Mutex, lock},
};

/// Access rules of one end, shared with the adapter, which may ask at any time.
#[derive(Default)]
pub(super) struct WindowAccessGuard(Arc<SharedAccessRules>);

#[derive(Default)]
struct SharedAccessRules {
    state: Mutex<AccessRules>,
}

#[derive(Default)]
struct AccessRules {
    /// Counts shared with neighbors to which this rank may have posted, by world rank.
    peer_ends: BTreeMap<WorldRank, Arc<EpochCounters>>,
    door: WindowLock,
    /// True if every rank may access the memory, unless another rank has locked it exclusively.
    open: bool,
}

impl WindowAccessGuard {
    /// Returns the handle through which the adapter asks.
    pub(super) fn keeper(&self) -> Weak<dyn AccessPolicy> {
        let keeper: Arc<dyn AccessPolicy> = Arc::clone(&self.0) as _;
        Arc::downgrade(&keeper)
    }

    /// Adds a neighbor to which this rank may post from now on.
    pub(super) fn add_neighbor(&self, rank: WorldRank, counters: &Arc<EpochCounters>) {
        lock(&self.0.state)
            .peer_ends
            .insert(rank, Arc::clone(counters));
    }

    pub(super) fn set_open(&self, open: bool) {
        lock(&self.0.state).open = open;
    }

    /// Runs `action` on the lock.
    pub(super) fn with_lock<R>(&self, action: impl FnOnce(&mut WindowLock) -> R) -> R {
        action(&mut lock(&self.0.state).door)
    }

    pub(super) fn permits(&self, rank: WorldRank) -> bool {
        self.0.permits(rank)
    }
}

impl AccessPolicy for SharedAccessRules {
    fn permits(&self, rank: WorldRank) -> bool {
        let state = lock(&self.state);
        let counters = state.peer_ends.get(&rank);
        let posted = counters.is_some_and(|counters| !counters.is_completed());
        !state.door.excludes(rank) && (state.open || posted || state.door.is_inside(rank))
    }
}

impl fmt::Debug for SharedAccessRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedAccessRules")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{EpochCounters, WindowAccessGuard, WorldRank};
    use crate::engine::window::locks::WindowLockKind;

    #[test]
    fn a_neighbor_is_let_in_from_when_it_was_posted_to_until_it_has_completed() {
        let (access_guard, counters) = (
            WindowAccessGuard::default(),
            Arc::new(EpochCounters::default()),
        );
        assert!(!access_guard.permits(WorldRank(3)));
        access_guard.add_neighbor(WorldRank(3), &counters);
        assert!(!access_guard.permits(WorldRank(3)));
        counters.add_post();
        assert!(access_guard.permits(WorldRank(3)) && !access_guard.permits(WorldRank(4)));
        counters.note_completed(1);
        assert!(!access_guard.permits(WorldRank(3)));
    }

    #[test]
    fn an_open_guard_permits_all_ranks_unless_one_holds_the_exclusive_lock() {
        let access_guard = WindowAccessGuard::default();
        access_guard.set_open(true);
        assert!(access_guard.permits(WorldRank(1)) && access_guard.permits(WorldRank(2)));
        assert!(
            access_guard.with_lock(|door| door.request(WorldRank(2), WindowLockKind::Exclusive))
        );
        assert!(!access_guard.permits(WorldRank(1)) && access_guard.permits(WorldRank(2)));
    }
}
