//! Handlers of messages about windows, and of the failure of their peers.

use std::{mem, sync::Arc};

use ripstop_fabric::driver::{DownCause, PayloadView};

use super::{
    OneSidedCommand, PeerEndMemory, PeerEndState, WindowEndState, WindowFences, WindowId,
    WindowPart,
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    proto::wire::{
        COUNT_COMPLETED, COUNT_FENCES, COUNT_POSTED, WindowCountHeader, WindowHelloHeader,
        WireKind, read,
    },
};

/// Handlers of messages from other ranks.
impl WindowPart<'_> {
    /// Handles a message about a window. Returns `None` if it is not understood.
    pub(in crate::engine) fn handle_window_kind(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        header: &[u8],
        body: PayloadView<'_>,
    ) -> Option<()> {
        match kind {
            WireKind::WindowHello => {
                read(header).map(|header| self.handle_window_hello(rank, &header))
            }
            WireKind::WindowCount => {
                read(header).map(|header| self.handle_window_count(rank, &header))
            }
            WireKind::CounterKeys => {
                read(header).map(|header| self.handle_counter_keys(rank, &header))
            }
            WireKind::FenceKeys => read(header).map(|header| self.handle_fence_keys(rank, &header)),
            WireKind::Update => read(header).map(|header| self.handle_update(rank, &header, body)),
            WireKind::UpdateReply => {
                read(header).map(|header| self.handle_update_reply(rank, &header, body))
            }
            WireKind::Lock => read(header).map(|header| self.handle_lock(rank, &header)),
            WireKind::LockGranted => {
                read(header).map(|header| self.handle_lock_granted(rank, &header))
            }
            WireKind::Unlock => read(header).map(|header| self.handle_unlock(rank, &header)),
            WireKind::NoWindow => read(header).map(|header| self.handle_no_window(rank, &header)),
            _ => None,
        }
    }

    pub(in crate::engine) fn handle_window_hello(
        &mut self,
        rank: WorldRank,
        header: &WindowHelloHeader,
    ) {
        let id = WindowId::new(header.ctx, header.tag);
        let Some(peer_end) = self.peer_end_of(id, rank) else {
            return self.common.peers.control(
                rank,
                &id.count_header(WireKind::NoWindow, COUNT_COMPLETED, 0),
            );
        };
        if peer_end.memory.is_none() {
            peer_end.memory = Some(PeerEndMemory {
                sig: header.sig,
                len: header.len,
                key: header.key,
                mapped: None,
            });
        }
        if !peer_end.greeted {
            self.common
                .commands
                .push(OneSidedCommand::Greet { id, rank });
        }
        self.unstash(id, rank);
        self.wake_window(id);
    }

    pub(in crate::engine) fn handle_window_count(
        &mut self,
        rank: WorldRank,
        header: &WindowCountHeader,
    ) {
        let id = WindowId::new(header.ctx, header.tag);
        let Some(peer_end) = self.peer_end_of(id, rank) else {
            if header.event == COUNT_FENCES {
                self.refuse_fences(id, rank);
            }
            return; // otherwise `free_idle_window` has already sent a notice
        };
        match header.event {
            COUNT_FENCES => peer_end.fenced = true,
            COUNT_POSTED => peer_end.counters.note_posted(header.count),
            COUNT_COMPLETED => peer_end.counters.note_completed(header.count),
            _ => self.common.refused += 1,
        }
        self.wake_window(id);
    }

    pub(in crate::engine) fn handle_no_window(
        &mut self,
        rank: WorldRank,
        header: &WindowCountHeader,
    ) {
        let id = WindowId::new(header.ctx, header.tag);
        if let Some(peer_end) = self.peer_end_of(id, rank) {
            match header.event {
                COUNT_POSTED => {
                    peer_end.last_posted = header.count;
                    return; // the message with the other count comes next
                }
                COUNT_FENCES => {
                    peer_end.last_fence = Some(header.count);
                    return self.wake_window(id);
                }
                _ => {}
            }
            peer_end.last_completed = header.count;
            peer_end.freed = true;
            for stashed in mem::take(&mut peer_end.stash) {
                self.remote_over(
                    stashed.op,
                    Err(ErrorKind::NoWindow {
                        window: id.sequence,
                    }),
                );
            }
            self.remove_from_lock(id, rank); // releases a lock that the neighbor has leaked
            self.wake_window(id);
        }
    }

    /// Handles a peer that is down: fails what depends on it, and wakes the futures so that they check again.
    pub(in crate::engine) fn lose_windows(&mut self, rank: WorldRank, why: DownCause) {
        if self.windows.is_unused() {
            return;
        }
        let ids: Vec<WindowId> = self.windows.ends.keys().copied().collect();
        for id in ids {
            let end = self.windows.ends.get_mut(&id);
            if let Some(peer_end) = end.and_then(|end| end.peer_ends.get_mut(&rank)) {
                peer_end.counters.set_down();
                peer_end.counters.set_inside(false); // from now on operations fail, even where the memory is still mapped
                for stashed in mem::take(&mut peer_end.stash) {
                    self.remote_over(stashed.op, Err(ErrorKind::of_down(rank, why)));
                }
                self.end_access(id, rank);
                self.remove_from_lock(id, rank);
            }
            // Wake futures even if the rank is no neighbor, because a rank for which this rank waits in a fence may wait for it.
            self.wake_window(id);
        }
        self.lose_updates(rank, why);
    }

    /// Wakes the futures of all windows, because there is no driver any more.
    pub(in crate::engine) fn end_windows(&mut self) {
        let ids: Vec<WindowId> = self.windows.ends.keys().copied().collect();
        ids.into_iter().for_each(|id| self.wake_window(id));
    }

    /// Returns true if a rank may access this rank's memory now. Only this engine can check that for operations that come by
    /// message.
    pub(super) fn is_let_in(&self, id: WindowId, rank: WorldRank) -> bool {
        let end = self.windows.ends.get(&id);
        end.is_some_and(|end| end.access_guard.permits(rank))
    }

    /// Opens this end to all ranks, or closes it again.
    pub(crate) fn open_to_all(&mut self, id: WindowId, open: bool) {
        if let Some(end) = self.windows.ends.get_mut(&id) {
            end.access_guard.set_open(open);
        }
    }

    /// Opens or closes this end for an epoch of fences, in which this rank may also access the memory of the others.
    pub(crate) fn set_fence_epoch(&mut self, id: WindowId, open: bool) {
        if let Some(end) = self.windows.ends.get_mut(&id) {
            end.in_fence_epoch = open;
            end.access_guard.set_open(open);
        }
    }

    /// Returns the neighbor's entry if the rank belongs to the window's communicator. Other ranks get none, so they take no
    /// memory.
    pub(super) fn peer_end_of(
        &mut self,
        id: WindowId,
        rank: WorldRank,
    ) -> Option<&mut PeerEndState> {
        let end = self.windows.ends.get_mut(&id)?;
        end.group.contains(rank).then(|| end.peer_end(rank))
    }

    pub(super) fn end_access(&mut self, id: WindowId, target: WorldRank) {
        let down = self.common.peers.down(target).is_some();
        let Some(peer_end) = self.windows.peer_end(id, target) else {
            return;
        };
        if !peer_end.completing || !peer_end.counters.is_quiet() {
            return;
        }
        peer_end.completing = false;
        peer_end.completion_unsent = down;
        let counters = Arc::clone(&peer_end.counters);
        if !down {
            self.notify_completed(id, target);
        }
        counters.end_access();
        self.wake_window(id);
    }

    /// Wakes the futures that wait for a change of this window, and frees the end if it is closed and idle.
    pub(super) fn wake_window(&mut self, id: WindowId) {
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return;
        };
        let listeners = mem::take(&mut end.listeners);
        let wakers = listeners.into_values().map(|future| future.waker);
        self.common.wakers.extend(wakers);
        if end.closed {
            self.free_idle_window(id);
        }
    }

    /// Frees a closed end as soon as none of its operations is in flight, and notifies its neighbors.
    pub(super) fn free_idle_window(&mut self, id: WindowId) {
        let idle = |peer_end: &PeerEndState| peer_end.counters.is_quiet() && !peer_end.completing;
        let over = |end: &WindowEndState| end.closed && end.peer_ends.values().all(idle);
        let Some(end) = self.windows.ends.remove(&id) else {
            return;
        };
        if !over(&end) && !self.common.ended {
            self.windows.ends.insert(id, end);
            return;
        }
        let wakers = end.listeners.into_values().map(|future| future.waker);
        self.common.wakers.extend(wakers);
        for (rank, peer_end) in end.peer_ends {
            if self.common.peers.down(rank).is_some() {
                continue;
            }
            if peer_end.fenced {
                let passed = end.fences.as_ref().map_or(0, WindowFences::passed);
                let fenced = id.count_header(WireKind::NoWindow, COUNT_FENCES, passed);
                self.common.peers.control(rank, &fenced);
            }
            if peer_end.greeted {
                // Posts first: the neighbor takes the window for freed at the second message, and needs both counts then.
                let [posts, starts] = [
                    peer_end.counters.posts(),
                    peer_end.counters.accesses_begun(),
                ];
                let posted = id.count_header(WireKind::NoWindow, COUNT_POSTED, posts);
                let completed = id.count_header(WireKind::NoWindow, COUNT_COMPLETED, starts);
                self.common.peers.control(rank, &posted);
                self.common.peers.control(rank, &completed);
            }
        }
    }
}
