//! End of programs, and the return of their buffers.

use std::{mem, panic::Location};

use super::{CollectivePart, ProgramTable, RunTicket, run::RunExecution};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::LibraryEvent,
    error::ErrorKind,
    ops::{ErasedBuffer, MessageStatus, OpInfo, OpOutcome, PanicPayload},
    proto::collective_id::CollectiveId,
    proto::wire::OpId,
};

/// Outcome of a program, its two buffers, and the payload of a reduction that panicked.
pub(crate) type RunOutcome<I, O> = (OpOutcome, I, O, Option<PanicPayload>);

impl ProgramTable {
    /// Returns one operation of each program that waits for messages.
    pub(in crate::engine) fn representatives(&self) -> Vec<OpId> {
        let runs = self.runs.iter().flatten();
        runs.filter_map(|run| run.waits_for()).collect()
    }

    /// Returns the context and the call site of each program that runs by lists.
    pub(in crate::engine) fn listed_calls(
        &self,
    ) -> impl Iterator<Item = (u32, &'static Location<'static>)> {
        let runs = self.runs.iter().flatten();
        let offloaded = runs.filter(|run| run.execution.task_lists().is_some());
        offloaded.map(|run| (run.info.ctx, run.info.at))
    }
}

impl CollectivePart<'_> {
    /// Ends a program whose messages and jobs are all complete.
    pub(super) fn end_run(&mut self, index: u32) {
        let run = self.programs.get(index).expect("checked by the caller");
        let id = run.id();
        if run.failed.is_none()
            && let Some(source) = self.p2p.left_over(id)
        {
            self.fail_mismatched(index, source);
        }
        let Some(run) = self.programs.get(index) else {
            return;
        };
        let (buffers, bytes) = (run.buffers, run.program.lens().output);
        let (reducer, panic, failed) = (run.reducer.take(), run.panic.take(), run.failed.take());
        let execution = mem::replace(&mut run.execution, RunExecution::Messages);
        let sig = run.sig();
        let (line, is_watched) = (run.info.at, run.is_watched());
        self.programs.remove(index);
        if let RunExecution::TaskLists(mut offloaded) = execution {
            if offloaded.tells && !is_watched {
                self.programs.block_call_sites.unwatched(line);
            }
            self.leave_slot(index, id, sig, &mut offloaded);
        }
        self.p2p.common.calls.end(id, sig, line);
        if let Some(reducer) = reducer.filter(|reducer| !reducer.is_built_in()) {
            self.p2p.common.garbage.push(ErasedBuffer::of(reducer));
        }
        if let Some(panic) = panic {
            self.keep_panic(buffers, panic);
        }
        let outcome = match failed {
            Some(kind) => Err(kind),
            None => Ok(MessageStatus::sent(bytes)),
        };
        self.p2p.common.complete_op(buffers, outcome);
    }

    fn keep_panic(&mut self, buffers: OpId, panic: PanicPayload) {
        if self.p2p.common.ops.live(buffers).orphan {
            let rank = self.p2p.common.me;
            self.p2p.common.report(LibraryEvent::LostPanic { rank });
            self.p2p.common.garbage.push(ErasedBuffer::of(panic));
        } else {
            self.programs.panics.push((buffers, panic));
        }
    }

    /// Takes the outcome, the buffers and the panic of a program, if it has ended.
    #[inline]
    pub(crate) fn take_run<I: SendBuf, O: RecvBuf>(
        &mut self,
        ticket: &RunTicket<I, O>,
    ) -> Option<RunOutcome<I, O>> {
        let (outcome, input, output) = self
            .p2p
            .common
            .ops
            .take_pair(&ticket.buffers, &mut self.p2p.common.timers)?;
        Some((outcome, input, output, self.take_panic(ticket.buffers.op)))
    }

    fn take_panic(&mut self, buffers: OpId) -> Option<PanicPayload> {
        if self.programs.panics.is_empty() {
            return None;
        }
        let panics = &mut self.programs.panics;
        let at = panics.iter().position(|(of, _)| *of == buffers)?;
        Some(panics.swap_remove(at).1)
    }

    /// Drops the future of a program. The program continues by itself.
    pub(crate) fn detach_run<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        let panic = self.take_panic(ticket.buffers.op);
        self.p2p.common.garbage.extend(panic.map(ErasedBuffer::of));
        self.unhost_run(ticket);
        if let Some(info) = self
            .p2p
            .common
            .ops
            .get(ticket.buffers.op)
            .map(|slot| slot.info)
        {
            self.forget_outcome(&info);
        }
        self.p2p.common.detach(ticket.buffers.op);
    }

    /// Drops the outcome of a program. If two ranks disagreed in it, the application has not heard so yet.
    pub(crate) fn forget_outcome(&mut self, info: &OpInfo) {
        if let Some(tag) = info.tag
            && self.p2p.common.any_revoked()
        {
            self.p2p
                .common
                .calls
                .revocations
                .was_not_told(CollectiveId::new(info.ctx, tag));
        }
    }

    /// Ends the programs after the driver is closed. Memory to which a peer may still write is leaked.
    pub(in crate::engine) fn end_programs(&mut self) {
        self.p2p.common.program_events.clear();
        for index in self.programs.indices() {
            self.fail(index, ErrorKind::Closed);
            let Some(run) = self.programs.get(index) else {
                continue;
            };
            let (ops, buffers) = (run.ops(), run.buffers);
            let offloaded = run.execution.task_lists();
            let is_touched = offloaded.is_some_and(|offloaded| offloaded.is_in_flight());
            if is_touched
                || ops
                    .iter()
                    .any(|&op| !self.p2p.common.ops.live(op).state.is_done())
            {
                mem::forget(self.programs.runs[index as usize].take());
                self.p2p
                    .common
                    .wakers
                    .extend(self.p2p.common.ops.live(buffers).leak());
                continue;
            }
            for op in ops {
                self.complete_program_message(op);
            }
            if self.programs.get(index).is_some_and(|run| run.is_over()) {
                self.end_run(index);
            }
        }
        self.p2p.common.program_events.clear();
    }
}
