//! Calls of windows whose commands and messages leave at once.

use super::{
    Engine, FenceMethod, TargetRanges, WakeReason, WindowId, WindowLockKind, WindowOpKind,
    window::FencePoll,
};
use crate::{
    buffer::{RecvBuf, SendBuf},
    error::ErrorKind,
    group::WorldRank,
    ops::{OpInfo, OpTicket},
    trace::WindowCall,
};

impl Engine {
    /// Closes this end, because the application no longer holds it. Completes the accesses that are still open.
    pub(crate) fn close_window(&mut self, id: WindowId) {
        self.windows().close_window(id);
        self.flush_end_of_access();
    }

    /// Ends an access as soon as none of its operations is in flight, and then notifies the target.
    pub(crate) fn complete_window(&mut self, id: WindowId, target: WorldRank) {
        self.windows().complete_window(id, target);
        self.flush_end_of_access();
    }

    /// Wakes a neighbor that may be asleep, after its counter was added to.
    pub(crate) fn wake_neighbor(&mut self, id: WindowId, rank: WorldRank, heard: WakeReason) {
        self.core.windows().wake_neighbor(id, rank, heard);
        self.flush_end_of_access();
    }

    /// Requests the lock of a rank's memory.
    ///
    /// # Errors
    /// Fails if this rank already holds that lock, has requested it or is about to release it.
    pub(crate) fn ask_lock(
        &mut self,
        id: WindowId,
        rank: WorldRank,
        want: WindowLockKind,
        call: WindowCall,
    ) -> Result<(), ErrorKind> {
        let asked = self.windows().ask_lock(id, rank, want, call);
        self.flush();
        asked
    }

    /// Releases a lock as soon as none of this rank's operations is in flight there.
    pub(crate) fn give_lock_back(&mut self, id: WindowId, rank: WorldRank) {
        self.core.windows().give_lock_back(id, rank);
        self.flush_end_of_access();
    }

    /// Starts an operation that reads `buf`.
    pub(crate) fn write_window<B: SendBuf>(
        &mut self,
        info: OpInfo,
        kind: WindowOpKind,
        ranges: TargetRanges,
        buf: B,
    ) -> OpTicket<B> {
        let ticket = self.core.windows().write_window(info, kind, ranges, buf);
        self.flush();
        ticket
    }

    /// Starts an operation that fills `buf`, and may read it first.
    pub(crate) fn fetch_window<B: RecvBuf>(
        &mut self,
        info: OpInfo,
        kind: WindowOpKind,
        ranges: TargetRanges,
        buf: B,
    ) -> OpTicket<B> {
        let ticket = self.core.windows().fetch_window(info, kind, ranges, buf);
        self.flush();
        ticket
    }

    /// Advances the last fence as far as is possible now.
    pub(crate) fn advance_fence(&mut self, id: WindowId, gates: FenceMethod) -> FencePoll {
        let polled = self.windows().advance_fence(id, gates);
        self.flush();
        polled
    }

    /// Asks the driver to wake the thread when the fence can advance.
    pub(crate) fn watch_fence(&mut self, id: WindowId) {
        self.windows().watch_fence(id);
        self.flush();
    }

    /// Posts what the end of an access asks for. If no other access of a closed runtime is open, releases its driver too.
    fn flush_end_of_access(&mut self) {
        self.flush();
        self.release_retired_driver();
    }
}
