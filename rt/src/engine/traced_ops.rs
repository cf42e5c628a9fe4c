//! What the engine reports to the rank's trace (rt/src/trace). Beginnings of operations go on to the flight ring (`noted_ops`).
//!
//! Without a trace, each of these functions looks at one flag, and does nothing else for a trace. The paths that have no room for
//! a look come here from a branch that they have anyway: a send, because a communicator might be revoked; a receive, because an
//! adapter might match tags; the end of an operation, because a program might be notified of it.

use std::panic::Location;

use super::{BorrowedCall, CollectivePart, Engine, EngineCommons, RunCall, WindowId};
use crate::{
    clock::{ClockTime, machine_nanos},
    group::{CommRank, WorldRank},
    offload::StepAction,
    ops::{OpInfo, OpState, TRACED},
    proto::{collective_id::CollectiveId, wire::OpId},
    trace::{PairedEpoch, TraceRecorder, TracedCollective, TracedKind, WindowCall},
};

impl Engine {
    /// Records all operations from now on.
    pub(crate) fn start_trace(&mut self, recorder: TraceRecorder) {
        self.core.p2p.common.recorders.set_trace(recorder);
        self.core.p2p.common.unusual = true;
        self.core.p2p.look_at_each_recv();
    }

    /// Writes what was recorded so far.
    pub(crate) fn flush_trace(&mut self) {
        if let Some(trace) = self.core.p2p.common.recorders.trace() {
            trace.flush();
        }
    }

    /// Writes what was recorded so far, unless that was done a short while ago. Returns when to do so instead.
    pub(crate) fn flush_trace_in_time(
        &mut self,
        now: impl FnOnce() -> ClockTime,
    ) -> Option<ClockTime> {
        let trace = self.core.p2p.common.recorders.trace()?;
        trace.flush_in_time(now())
    }

    /// Returns the recorder, if there is one, and records nothing from now on.
    #[cold]
    pub(crate) fn take_trace(&mut self) -> Option<TraceRecorder> {
        self.core.p2p.common.recorders.take_trace()
    }
}

impl CollectivePart<'_> {
    /// Records that a collective begins.
    #[inline]
    pub(super) fn trace_collective(&mut self, call: &BorrowedCall<'_>) {
        if self.p2p.common.unusual {
            self.record_collective(call);
        }
    }

    /// Records that a collective begins or continues as an operation.
    #[inline]
    pub(super) fn trace_run(&mut self, call: &RunCall, op: OpId) {
        self.p2p.common.note_begin(op);
        if self.p2p.common.unusual {
            self.record_collective(&call.borrowed());
            self.p2p.common.record_run(call.id(), op);
        }
    }

    #[cold]
    fn record_collective(&mut self, call: &BorrowedCall<'_>) {
        let Some(trace) = self.p2p.common.recorders.trace() else {
            return;
        };
        let lens = call.program.lens();
        trace.collective_began(&TracedCollective {
            id: call.id,
            at: call.at,
            first: call.group.world_of(CommRank(0)).map_or(0, |rank| rank.0),
            bytes: lens.input.max(lens.output),
            name: self.programs.collective_name(call.sig),
        });
    }
}

impl EngineCommons {
    /// Returns true if this rank records a trace.
    pub(crate) fn is_traced(&self) -> bool {
        self.recorders.has_trace()
    }

    /// Returns the time for a record that is made later, or 0 without a trace.
    #[inline]
    pub(crate) fn trace_time(&self) -> u64 {
        if self.unusual && self.recorders.has_trace() {
            machine_nanos()
        } else {
            0
        }
    }

    /// Records a turn of the agent that began at this time, if something has happened in it.
    pub(crate) fn trace_agent_turn(&mut self, begin: u64, events: u32) {
        if events > 0
            && let Some(trace) = self.recorders.trace()
        {
            trace.agent_turn(begin);
        }
    }

    /// Records a send whose bytes have left at its call, which began at this time.
    #[inline]
    pub(super) fn trace_send(&mut self, info: &OpInfo, bytes: usize, begin: u64) {
        if self.unusual
            && is_of_application(info)
            && let Some(trace) = self.recorders.trace()
        {
            self.wakers.extend(trace.sent_at_once(info, bytes, begin));
        }
    }

    /// Records a receive that was just posted, and may have its message already.
    #[cold]
    pub(super) fn trace_recv(&mut self, op: OpId) {
        if !self.recorders.has_trace() {
            return;
        }
        let Some(slot) = self.ops.get(op) else {
            return;
        };
        if slot.is_in_program() {
            return;
        }
        let (probe, state) = (slot.info.probe, slot.state);
        let kind = if probe {
            TracedKind::Probe
        } else {
            TracedKind::Recv
        };
        self.record_op(kind, op);
        if state.is_done() {
            self.trace_end(op);
        }
    }

    /// Records that an operation begins.
    #[inline]
    pub(super) fn trace_op(&mut self, kind: TracedKind, op: OpId) {
        self.note_begin(op);
        if self.unusual {
            self.record_op(kind, op);
        }
    }

    #[cold]
    fn record_op(&mut self, kind: TracedKind, op: OpId) {
        if let Some(trace) = self.recorders.trace()
            && let Some(slot) = self.ops.get(op)
            && is_of_application(&slot.info)
        {
            slot.marks |= TRACED;
            trace.began(kind, op, &slot.info, slot.area.len);
        }
    }

    /// Records that a future begins to wait for an operation.
    #[inline]
    pub(crate) fn trace_wait(&mut self, op: OpId) {
        if self.unusual
            && let Some(trace) = self.recorders.trace()
        {
            trace.awaited(op);
        }
    }

    /// Records that an operation has ended, as its state says.
    #[cold]
    pub(super) fn trace_end(&mut self, op: OpId) {
        let landed = match self.ops.live(op).state {
            OpState::Done(landed) => Some(landed),
            _ => None,
        };
        if let Some(trace) = self.recorders.trace() {
            self.wakers.extend(trace.ended(op, landed.as_ref()));
        }
    }

    /// Records that the future of an operation was dropped.
    #[cold]
    pub(super) fn trace_drop(&mut self, op: OpId) {
        if let Some(trace) = self.recorders.trace() {
            self.wakers.extend(trace.dropped(op));
        }
    }

    /// Records that a message of a collective begins, which is one of its phases. Its release is the end.
    #[inline]
    pub(super) fn trace_phase(&mut self, op: OpId, action: &StepAction) {
        if self.unusual {
            self.record_phase(op, matches!(action, StepAction::Send { .. }));
        }
    }

    #[cold]
    fn record_phase(&mut self, op: OpId, is_send: bool) {
        if let Some(trace) = self.recorders.trace() {
            let slot = self.ops.live(op);
            slot.marks |= TRACED;
            trace.phase_began(op, &slot.info, slot.area.len, is_send);
        }
    }

    #[cold]
    fn record_run(&mut self, id: CollectiveId, op: OpId) {
        if let Some(trace) = self.recorders.trace() {
            trace.collective_is(id, op);
            self.ops.live(op).marks |= TRACED;
        }
    }

    /// Records that a future begins to wait for a collective that has no operation.
    #[inline]
    pub(super) fn trace_collective_wait(&mut self, id: CollectiveId) {
        if self.unusual
            && let Some(trace) = self.recorders.trace()
        {
            trace.collective_awaited(id);
        }
    }

    /// Records that a collective without an operation has ended.
    #[inline]
    pub(super) fn trace_collective_end(&mut self, id: CollectiveId) {
        if self.unusual
            && let Some(trace) = self.recorders.trace()
        {
            self.wakers.extend(trace.collective_ended(id));
        }
    }
}

/// Windows.
impl EngineCommons {
    /// Records that this rank has come to a fence, which ends the epoch of the fence before, and begins another one unless it is
    /// `ending`.
    #[inline]
    pub(crate) fn trace_fence(
        &mut self,
        id: WindowId,
        ending: bool,
        at: &'static Location<'static>,
    ) {
        if self.unusual {
            self.trace_epoch_end(id, None);
            if !ending {
                self.trace_epoch(id, None, WindowCall { op: "fence", at });
            }
        }
    }

    /// Records that an epoch begins: for access to the memory of `rank`, or of all ranks if that is `None`.
    #[inline]
    pub(super) fn trace_epoch(&mut self, id: WindowId, rank: Option<WorldRank>, call: WindowCall) {
        if self.unusual
            && let Some(trace) = self.recorders.trace()
        {
            trace.epoch_began(id, rank, call);
        }
    }

    /// Records that this rank may access another one, which has posted.
    #[cold]
    pub(crate) fn trace_access(&mut self, epoch: PairedEpoch, at: &'static Location<'static>) {
        if let Some(trace) = self.recorders.trace() {
            trace.access_began(epoch, at);
        }
    }

    /// Records that this rank is about to post to another one.
    #[cold]
    pub(crate) fn trace_exposure(&mut self, epoch: PairedEpoch, at: &'static Location<'static>) {
        if let Some(trace) = self.recorders.trace() {
            trace.exposure_began(epoch, at);
        }
    }

    /// Records that the exposure to this rank is over.
    #[cold]
    pub(crate) fn trace_exposure_end(&mut self, id: WindowId, origin: WorldRank) {
        if let Some(trace) = self.recorders.trace() {
            self.wakers.extend(trace.exposure_ended(id, origin));
        }
    }

    /// Records the end of an epoch that [`trace_epoch`](Self::trace_epoch) or [`trace_access`](Self::trace_access) recorded.
    #[inline]
    pub(crate) fn trace_epoch_end(&mut self, id: WindowId, rank: Option<WorldRank>) {
        if self.unusual
            && let Some(trace) = self.recorders.trace()
        {
            self.wakers.extend(trace.epoch_ended(id, rank));
        }
    }

    /// Records that a future waits for a window no more.
    #[inline]
    pub(super) fn trace_window_wait_end(&mut self, listener: u64) {
        if self.unusual
            && let Some(trace) = self.recorders.trace()
        {
            self.wakers.extend(trace.window_wait_ended(listener));
        }
    }
}

/// Returns false for the messages by which the runtime makes communicators and windows.
const fn is_of_application(info: &OpInfo) -> bool {
    info.ctx & 1 == 0
}
