//! What this rank's view says about its windows: epochs and locks that wait, and holders of locks for which others wait.

use std::panic::Location;

use super::{
    LazyWindowTable, WindowEndState, WindowId, fence::WindowFences, locks::WindowLockState,
};
use crate::{
    group::WorldRank,
    trace::WindowCall,
    view::{PublishedLock, WaitKind},
};

/// An epoch or a lock of this rank that waits for another rank.
pub(in crate::engine) struct AwaitedEpoch {
    pub(in crate::engine) id: WindowId,
    /// Number of the future that waits. No other one has had it.
    pub(in crate::engine) future: u64,
    pub(in crate::engine) rank: WorldRank,
    /// What that rank has to do.
    pub(in crate::engine) kind: WaitKind,
    /// Source line of the call that waits, if it is known.
    pub(in crate::engine) at: Option<&'static Location<'static>>,
}

impl LazyWindowTable {
    /// Returns what the futures of each window may wait for.
    pub(in crate::engine) fn published_waits(&self) -> Vec<AwaitedEpoch> {
        let ends = self.0.iter().flat_map(|all| &all.ends);
        let awaited = ends.filter(|(_, end)| !end.listeners.is_empty());
        let mut waits = Vec::new();
        for (&id, end) in awaited {
            let wait = |rank, kind| {
                let (future, call) = end.call_that_awaits(kind)?;
                let at = call.map(|call| call.at);
                Some(AwaitedEpoch {
                    id,
                    future,
                    rank,
                    kind,
                    at,
                })
            };
            let fence = end.fences.as_ref().and_then(WindowFences::awaited);
            waits.extend(fence.and_then(|rank| wait(rank, WaitKind::WindowFence)));
            for (&rank, peer_end) in &end.peer_ends {
                let kinds = [
                    (peer_end.starts_waiting > 0, WaitKind::WindowPost),
                    (!peer_end.counters.is_completed(), WaitKind::WindowComplete),
                    (
                        peer_end.lock == WindowLockState::Waiting,
                        WaitKind::WindowLock,
                    ),
                ];
                let kinds = kinds.into_iter().filter(|(waits, _)| *waits);
                waits.extend(kinds.filter_map(|(_, kind)| wait(rank, kind)));
            }
        }
        waits
    }

    /// Returns the holders of the locks of this rank's memory for which other ranks wait.
    pub(in crate::engine) fn published_locks(&self) -> Vec<PublishedLock> {
        let ends = self.0.iter().flat_map(|all| &all.ends);
        let locks = ends.flat_map(|(&id, end)| {
            let holders = end.access_guard.with_lock(|door| door.awaited_holders());
            let lock = move |rank: WorldRank| PublishedLock {
                comm: id.context & !1,
                window: id.sequence,
                holder: rank.0,
            };
            holders.into_iter().map(lock)
        });
        locks.collect()
    }
}

impl WindowEndState {
    /// Returns the number and the call of a future that may wait for this; `None` if all futures wait for something else. A
    /// future of no call may wait for anything.
    fn call_that_awaits(&self, kind: WaitKind) -> Option<(u64, Option<WindowCall>)> {
        let mut calls = self
            .listeners
            .iter()
            .map(|(number, future)| (*number, future.call));
        let may_wait = |call: WindowCall| match kind {
            WaitKind::WindowPost => call.op == "start",
            WaitKind::WindowComplete => call.op == "wait",
            // A flush, an unlock and the end of a window wait for operations, which may wait for the lock.
            WaitKind::WindowLock => !matches!(call.op, "start" | "wait" | "complete" | "fence"),
            _ => call.op == "fence",
        };
        calls.find(|(_, call)| call.is_none_or(may_wait))
    }
}
