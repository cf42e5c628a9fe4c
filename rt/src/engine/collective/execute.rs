//! Progress of programs: steps begin, and messages and jobs complete.

use super::{CollectivePart, CollectiveProgress};
use super::{
    ProgramMessage,
    run::{ProgramRun, StepExecutor},
};
use crate::{
    engine::commons::program_events::{ProgramEvent, ProgramJob},
    error::ErrorKind,
    group::{CommRank, WorldRank},
    offload::StepAction,
    ops::{OpInfo, OpState},
    proto::wire::OpId,
};

impl CollectivePart<'_> {
    /// Records that a job has ended. Returns false if its program's memory was given up, because the driver is closed.
    pub(in crate::engine) fn note_job_over(&mut self, job: &mut ProgramJob) -> bool {
        let Some(run) = self.programs.get(job.run) else {
            return false;
        };
        run.landed(job.step);
        run.reducer = job.work.reducer.take().or_else(|| run.reducer.take());
        run.panic = run.panic.take().or_else(|| job.panic.take());
        let panicked = run.panic.is_some();
        let offloaded = self.listed_job_over(job.run, job.step);
        let run = self.programs.get(job.run);
        if let Some(run) = run.filter(|_| !panicked && !offloaded) {
            run.over(job.step);
        }
        if panicked {
            let me = self.p2p.common.me.0 as usize;
            self.fail(job.run, ErrorKind::Aborted { rank: me });
        }
        true
    }
}

impl CollectiveProgress<'_> {
    /// Advances the programs for which completions were queued.
    pub(in crate::engine) fn progress_programs(&mut self) {
        while let Some(told) = self.part.p2p.common.program_events.pop() {
            let run = match told {
                ProgramEvent::Part(op) => self.part.complete_program_message(op),
                ProgramEvent::Run(run) => run,
                ProgramEvent::List(token, heard) => {
                    self.handle_list_event(token, heard);
                    continue;
                }
                ProgramEvent::LastCalls(ctx) => {
                    let _complete = self.part.compare(ctx);
                    self.part.disagreements().wake_for_descriptions();
                    continue;
                }
            };
            if !self.part.defer_to_poll(run) {
                self.advance_run(run);
            }
        }
    }

    pub(in crate::engine) fn advance_run(&mut self, index: u32) {
        let place = self.part.programs.runs.get_mut(index as usize);
        let Some(mut run) = place.and_then(Option::take) else {
            return; // it has ended because of an earlier report
        };
        let refused = match (&run.failed, run.execution.task_lists()) {
            (None, None) => self.begin_steps(index, &mut run),
            (None, Some(_)) => self.advance_offloaded(index, &mut run),
            (Some(_), _) => {
                self.take_back(&mut run);
                self.part.request_quiesce(&mut run);
                None
            }
        };
        let over = run.is_over();
        let refused = match refused {
            None if over && run.failed.is_none() => self.check_for_strays(run.id(), run.group()),
            refused => refused,
        };
        self.part.programs.runs[index as usize] = Some(run);
        match refused {
            Some(kind) => self.part.fail(index, kind),
            None if over => self.part.end_run(index),
            None => {}
        }
    }

    /// Begins every step that may begin. Returns the error if one of them could not.
    fn begin_steps(&mut self, index: u32, run: &mut ProgramRun) -> Option<ErrorKind> {
        // Steps wait for earlier ones only, so every step that another one releases is still ahead.
        let mut at = run.first();
        while run.is_near(at) {
            if run.may_begin(at)
                && let Err(kind) = self.begin_step(index, run, at)
            {
                return Some(kind);
            }
            at = run.first().max(at + 1);
        }
        None
    }

    fn begin_step(&mut self, index: u32, run: &mut ProgramRun, at: usize) -> Result<(), ErrorKind> {
        run.began(at);
        let action = run.program.step(at).action;
        match action {
            StepAction::Join => run.over(at),
            StepAction::Send { to, .. } => self.begin_send(index, run, at, to)?,
            StepAction::Recv { from, .. } => {
                if !self.take_from_slot(run, at, from)? {
                    self.part.begin_recv(index, run, at, from);
                }
            }
            StepAction::Copy { .. } | StepAction::Reduce { .. } => {
                if run.work_now(&action) {
                    run.over(at);
                } else {
                    self.begin_job(index, run, at);
                }
            }
        }
        Ok(())
    }

    pub(super) fn begin_job(&mut self, index: u32, run: &mut ProgramRun, at: usize) {
        let action = run.program.step(at).action;
        let reducer = match action {
            StepAction::Reduce { .. } => run.reducer.take(),
            _ => None,
        };
        run.flies(at, StepExecutor::Job);
        self.part.p2p.common.jobs.push(ProgramJob {
            run: index,
            step: at,
            work: run.memory.work(&action, reducer),
            panic: None,
        });
    }

    fn begin_send(
        &mut self,
        index: u32,
        run: &mut ProgramRun,
        at: usize,
        to: CommRank,
    ) -> Result<(), ErrorKind> {
        let peer = run.world_of(to);
        if let Some(kind) = self.part.p2p.common.unreachable(peer) {
            return Err(kind);
        }
        if self
            .transmitter()
            .send_eager(run.eager(), peer, run.bytes(at))
        {
            run.over(at);
            return Ok(());
        }
        let op = self.part.lend(index, run, at, run.info_for_rank(to));
        self.transmitter().queue(op, peer);
        Ok(())
    }
}

impl CollectivePart<'_> {
    /// Creates an operation for a message in a program's memory.
    pub(super) fn lend(
        &mut self,
        index: u32,
        run: &mut ProgramRun,
        at: usize,
        info: OpInfo,
    ) -> OpId {
        let area = run.memory.area(&run.row(at));
        let op = self
            .p2p
            .common
            .ops
            .make_program_message(info, area, run.buffers);
        self.p2p
            .common
            .trace_phase(op, &run.program.step(at).action);
        let step = u32::try_from(at).expect("a program has less than 2^32 steps");
        self.programs
            .set_message(op, ProgramMessage { run: index, step });
        run.flies(at, StepExecutor::Op(op));
        op
    }

    /// Completes a message of a program. Returns the program.
    pub(super) fn complete_program_message(&mut self, op: OpId) -> u32 {
        let ProgramMessage { run: index, step } = self.programs.messages[op.slot as usize];
        let slot = self.p2p.common.ops.live(op);
        let (info, room) = (slot.info, slot.area.len);
        let outcome = match slot.state {
            OpState::Done(landed) => Ok(landed.bytes),
            _ => Err(slot.take_why()),
        };
        self.p2p.common.release(op);
        let step = step as usize;
        let run = self.programs.get(index).expect("it waits for its messages");
        run.landed(step);
        let peer = info.peer.unwrap_or(WorldRank(0));
        match outcome {
            Ok(bytes) if bytes == room => {
                run.over(step);
                if run.is_watched() {
                    self.report_block_event(index, step);
                }
            }
            // The signature is the same but the length differs.
            Ok(_) => self.fail_mismatched(index, peer),
            Err(Some(ErrorKind::TypeMismatch { .. } | ErrorKind::Truncated { .. })) => {
                self.fail_mismatched(index, peer);
            }
            Err(Some(kind)) => self.fail(index, kind),
            Err(None) => self.fail(index, ErrorKind::Closed),
        }
        index
    }
}
