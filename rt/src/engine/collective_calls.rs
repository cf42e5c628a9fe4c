//! Calls of collectives whose messages leave at once.

use super::{Engine, ProgramJob, RunCall, RunTicket, SingleRoundRun, collective::LeftSingleRound};
use crate::{
    buffer::{RecvBuf, SendBuf},
    error::ErrorKind,
    ops::ProgramBuffers,
    proto::collective_id::CollectiveId,
};

impl Engine {
    /// Begins a program, which then progresses by itself. If `over` is given, the program has already begun by collective slots,
    /// and that number of steps in single-round order is complete.
    pub(crate) fn run<I: SendBuf, O: RecvBuf>(
        &mut self,
        call: RunCall,
        buffers: ProgramBuffers<I, O>,
        over: Option<usize>,
    ) -> RunTicket<I, O> {
        self.preconnect(&call.group, &call.program);
        let ticket = self.core.collectives().begin_run(call, buffers, over);
        if self.core.p2p.common.ended {
            self.core.end_collectives();
        } else {
            self.collectives().advance_run(ticket.run);
        }
        self.flush();
        ticket
    }

    /// Turns a single-round run into a normal one. Also returns the box of the call, for reuse.
    pub(crate) fn convert_to_run<I: SendBuf, O: RecvBuf>(
        &mut self,
        run: SingleRoundRun<I, O>,
    ) -> (RunTicket<I, O>, Box<RunCall>) {
        let LeftSingleRound {
            call,
            room,
            buffers,
            over,
        } = run.leave();
        (self.run(call, buffers, over), room)
    }

    /// Advances a program when its future is polled.
    pub(crate) fn carry_on<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        if self.collectives().advance_polled(ticket) {
            self.core.stop_stall_probe();
            self.flush();
        }
    }

    /// Completes a job. The caller must drop what is left in it, without holding a lock.
    pub(crate) fn complete_job(&mut self, job: &mut ProgramJob) {
        if !self.core.collectives().note_job_over(job) {
            return;
        }
        if self.core.p2p.common.ended {
            return self.core.end_collectives();
        }
        self.core.p2p.common.mark_dirty(job.run);
        self.flush();
    }

    /// Fails a creation: notifies all members, and allows no later collective on the communicator.
    pub(crate) fn abort_creation(&mut self, id: CollectiveId, kind: &ErrorKind) {
        self.core.collectives().abort_creation(id, kind);
        self.flush();
    }

    /// Begins to compare calls on all communicators. `closing` is the number of collectives that this rank has begun on the
    /// world, if it begins no others. Returns false if neither this rank nor a leaving peer has called any collective.
    pub(crate) fn begin_comparison(&mut self, closing: Option<u32>) -> bool {
        let compares = self.core.collectives().begin_comparison(closing);
        if compares {
            self.flush();
        }
        compares
    }

    /// Notifies the peers again. A peer that does not close yet may have called the same number of collectives meanwhile.
    pub(crate) fn compare_again(&mut self) {
        self.core.collectives().compare_again();
        self.flush();
    }

    /// Notifies the ranks that have allowed this rank to send what it will not send, before the driver closes.
    pub(super) fn turn_invitations_down(&mut self) {
        let slots = self.core.collectives().take_slots();
        if slots.is_empty() {
            return;
        }
        self.flush();
        for (id, slot) in slots {
            self.core.collectives().turn_down(id, &slot);
        }
        self.flush();
    }
}
