//! State of windows that futures poll, and the counters that the driver watches on their behalf.

use std::task::Waker;

use ripstop_fabric::driver::DownCause;

use super::{
    WaitingWindowCall, WindowId, WindowPart, WindowProgress, WindowTable, WindowWaiterSlot,
    counter_pairs::WatchedCounter,
};
use crate::{buffer::TypeSig, error::ErrorKind, group::WorldRank, trace::WindowCall};

/// Watches that the driver keeps for waiting futures.
impl WindowProgress<'_> {
    /// Watches the completion counters of the origins that have not completed yet.
    pub(crate) fn watch_completed(&mut self, id: WindowId, origins: &[WorldRank]) {
        for &origin in origins {
            let peer_end = self.part.windows.peer_end(id, origin);
            if let Some(peer_end) = peer_end.filter(|peer_end| !peer_end.counters.is_completed()) {
                let left = peer_end.counters.posts() - peer_end.counters.noted_completed();
                self.watch(id, WatchedCounter::Completed(origin), left);
            }
        }
    }

    /// Watches the post counters of the targets that have not posted yet.
    pub(crate) fn watch_posted(&mut self, id: WindowId, targets: &[WorldRank]) {
        for &target in targets {
            let peer_end = self.part.windows.peer_end(id, target);
            if let Some(peer_end) = peer_end.filter(|peer_end| !peer_end.counters.is_posted()) {
                let next =
                    peer_end.counters.accesses_begun() + 1 - peer_end.counters.noted_posted();
                self.watch(id, WatchedCounter::Posted(target), next);
            }
        }
    }
}

/// Queries of futures. `None` means that the future must wait.
impl WindowPart<'_> {
    /// Returns how this access to a target ended, or `None` while it is in progress.
    pub(crate) fn has_ended(
        &mut self,
        id: WindowId,
        target: WorldRank,
        access: u64,
    ) -> Option<Result<(), ErrorKind>> {
        let (down, ended) = (self.common.peers.down(target), self.common.ended);
        let peer_end = self.windows.peer_end(id, target)?;
        match down {
            _ if !peer_end.counters.is_over(access) => ended.then_some(Err(ErrorKind::Closed)),
            // A target that was notified of the end may exit normally.
            Some(DownCause::Finished) if !peer_end.completion_unsent => Some(Ok(())),
            Some(down) => Some(Err(ErrorKind::of_down(target, down))),
            None => Some(Ok(())),
        }
    }

    /// Returns `Ok` once the origin has completed all accesses for which this rank has opened its end.
    pub(crate) fn has_completed(
        &mut self,
        id: WindowId,
        origin: WorldRank,
    ) -> Option<Result<(), ErrorKind>> {
        let (down, ended) = (self.common.peers.down(origin), self.common.ended);
        let peer_end = self.windows.peer_end(id, origin)?;
        if peer_end.counters.is_completed() {
            return Some(Ok(()));
        }
        let why = match down {
            _ if peer_end.completes_no_more() => ErrorKind::NoWindow {
                window: id.sequence,
            },
            Some(down) => ErrorKind::of_down(origin, down),
            None if ended => ErrorKind::Closed,
            None => return None,
        };
        Some(Err(why))
    }

    /// Returns `Ok` once all of these ranks have introduced their ends.
    pub(crate) fn have_come(
        &mut self,
        id: WindowId,
        ranks: &[WorldRank],
    ) -> Option<Result<(), (WorldRank, ErrorKind)>> {
        for &rank in ranks {
            let (down, ended) = (self.common.peers.down(rank), self.common.ended);
            let peer_end = self.windows.peer_end(id, rank)?;
            let why = match down {
                _ if peer_end.memory.is_some() => continue,
                _ if peer_end.freed => ErrorKind::NoWindow {
                    window: id.sequence,
                },
                Some(down) => ErrorKind::of_down(rank, down),
                None if ended => ErrorKind::Closed,
                None => return None,
            };
            return Some(Err((rank, why)));
        }
        Some(Ok(()))
    }

    /// Returns true if the holder of an update lock is down, so that its lock can be taken.
    ///
    /// A runtime that nothing drives counts all ranks as failed to end its waits. A holder may be up then, and two ranks with one
    /// lock would lose updates, so its lock is waited for.
    pub(crate) fn has_lost_holder(&self, rank: WorldRank) -> bool {
        !self.windows.is_undriven && self.common.peers.down(rank).is_some()
    }

    /// Records that all ranks count as failed from now on because nothing drives this runtime.
    pub(crate) fn set_undriven(&mut self) {
        self.windows.is_undriven = true;
    }

    /// Returns the error for data stored to a rank that has failed, or `None` if it has not.
    pub(crate) fn lost_stores_of(&self, rank: WorldRank) -> Option<ErrorKind> {
        let down = self.common.peers.down(rank);
        let failed = down.filter(|down| *down == DownCause::Failed);
        failed.map(|down| ErrorKind::of_down(rank, down))
    }

    /// Returns true if none of this end's operations is in flight on the memory of that rank.
    pub(crate) fn is_quiet(&mut self, id: WindowId, rank: WorldRank) -> bool {
        let peer_end = self.windows.peer_end(id, rank);
        peer_end.is_none_or(|peer_end| peer_end.counters.is_quiet())
    }

    /// Returns true if none of this end's operations is in flight on the memory of any rank.
    pub(crate) fn is_all_quiet(&self, id: WindowId) -> bool {
        let end = self.windows.ends.get(&id);
        end.is_none_or(|end| {
            end.peer_ends
                .values()
                .all(|peer_end| peer_end.counters.is_quiet())
        })
    }

    /// Gives up on an origin that will not come any more, so that it does not hold up the next epoch.
    pub(crate) fn give_up_origin(&mut self, id: WindowId, origin: WorldRank) {
        if let Some(peer_end) = self.windows.peer_end(id, origin) {
            peer_end.counters.give_up();
        }
    }

    /// Registers a waker to be called when anything about this window changes. `call` is what waits, if it is known.
    pub(crate) fn remember_window(
        &mut self,
        id: WindowId,
        place: &mut WindowWaiterSlot,
        waker: &Waker,
        call: Option<WindowCall>,
    ) {
        self.common.awaited_peers_changed = true;
        let WindowTable { ends, listened, .. } = &mut **self.windows;
        let Some(end) = ends.get_mut(&id) else {
            return;
        };
        let number = *place.0.get_or_insert_with(|| {
            *listened += 1;
            *listened
        });
        let known = end.listeners.get(&number);
        if known.is_none_or(|known| !known.waker.will_wake(waker)) {
            let waker = waker.clone();
            let future = WaitingWindowCall { waker, call };
            let before = end.listeners.insert(number, future);
            self.common.let_go(before.map(|future| future.waker));
        }
    }

    /// Removes the waker of a future that no longer waits.
    pub(crate) fn forget_listener(&mut self, id: WindowId, place: &mut WindowWaiterSlot) {
        let end = self.windows.ends.get_mut(&id);
        if let (Some(end), Some(number)) = (end, place.0.take()) {
            let future = end.listeners.remove(&number);
            self.common.let_go(future.map(|future| future.waker));
            self.common.trace_window_wait_end(number);
        }
    }

    /// Records that a future waits for a window since `began`. It has this place among the listeners, if it still waits.
    #[cold]
    pub(crate) fn trace_wait(
        &mut self,
        id: WindowId,
        place: &WindowWaiterSlot,
        call: WindowCall,
        began: u64,
    ) {
        let Some(trace) = self.common.recorders.trace() else {
            return;
        };
        match place.0 {
            Some(number) => trace.window_wait_began(number, id, call, began),
            None => self
                .common
                .wakers
                .extend(trace.window_wait(id, call, began)),
        }
    }

    /// Counts one more future that waits for this target to post.
    pub(crate) fn want_target(&mut self, id: WindowId, target: WorldRank) {
        if let Some(peer_end) = self.windows.peer_end(id, target) {
            peer_end.starts_waiting += 1;
        }
    }

    /// Counts one less of these futures.
    pub(crate) fn unwant_target(&mut self, id: WindowId, target: WorldRank) {
        if let Some(peer_end) = self.windows.peer_end(id, target) {
            peer_end.starts_waiting = peer_end.starts_waiting.saturating_sub(1);
        }
    }

    pub(super) fn may_start(&mut self, id: WindowId, target: WorldRank) -> Result<bool, ErrorKind> {
        let (down, ended) = (self.common.peers.down(target), self.common.ended);
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return Err(ErrorKind::Closed);
        };
        let sig = end.sig;
        let peer_end = end.peer_end(target);
        if ended {
            return Err(ErrorKind::Closed);
        }
        if peer_end.counters.is_accessing() {
            return Err(ErrorKind::Epoch(format!(
                "an access to rank {target} of the world through window {} is in progress: complete it first",
                id.sequence
            )));
        }
        let known = peer_end
            .memory
            .as_ref()
            .filter(|_| peer_end.counters.is_posted());
        match (known, down) {
            (Some(peer_memory), _) if peer_memory.sig != sig.0 => Err(ErrorKind::TypeMismatch {
                sent: TypeSig(peer_memory.sig),
                expected: sig,
            }),
            (Some(_), _) => Ok(true),
            (None, _) if peer_end.posts_no_more() => Err(ErrorKind::NoWindow {
                window: id.sequence,
            }),
            (None, Some(down)) => Err(ErrorKind::of_down(target, down)),
            (None, None) => Ok(false),
        }
    }

    /// Returns true if this rank could still store to the memory of other ranks.
    pub(in crate::engine) fn may_store(&self) -> bool {
        let is_up = |rank| self.common.peers.down(rank).is_none();
        self.windows.may_store(self.common.me, is_up)
    }
}
