//! How a program ends, and how its buffers come home.

use std::panic::Location;

use super::RunTicket;
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::Core,
    error::ErrorKind,
    ops::{Held, Landed, Outcome, Panic},
    proto::wire::OpId,
};

/// How a program ended, its two buffers, and what a reduction panicked with.
pub(crate) type Taken<I, O> = (Outcome, I, O, Option<Panic>);

impl Core {
    /// The end of a program whose messages and jobs are all over.
    pub(super) fn end_run(&mut self, index: u32) {
        let run = self.programs.get(index).expect("checked by the caller");
        let key = run.key();
        if run.failed.is_none()
            && let Some(source) = self.left_over(key)
        {
            self.fail_mismatched(index, source);
        }
        let Some(run) = self.programs.get(index) else {
            return;
        };
        let (buffers, bytes) = (run.buffers, run.program.lens().output);
        let (reducer, panic, failed) = (run.reducer.take(), run.panic.take(), run.failed.take());
        let (listed, sig) = (run.listed.take(), run.sig());
        let (line, is_watched) = (run.about.at, run.is_watched());
        self.programs.remove(index);
        if let Some(mut listed) = listed {
            if listed.tells && !is_watched {
                self.programs.lines.unwatched(line);
            }
            self.leave_slot(index, (key, sig), &mut listed);
        }
        self.programs.calls.end(key, sig, line);
        self.end_doubt();
        if let Some(reducer) = reducer.filter(|reducer| !reducer.is_built_in()) {
            self.garbage.push(Held::of(reducer));
        }
        if let Some(panic) = panic {
            self.keep_panic(buffers, panic);
        }
        let outcome = match failed {
            Some(kind) => Err(kind),
            None => Ok(Landed::sent(bytes)),
        };
        self.land(buffers, outcome);
    }

    fn keep_panic(&mut self, buffers: OpId, panic: Panic) {
        if self.ops.live(buffers).orphan {
            tracing::error!("a reduction panicked in a collective whose future was dropped");
            self.garbage.push(Held::of(panic));
        } else {
            self.programs.panics.push((buffers, panic));
        }
    }

    /// Takes the outcome and the buffers of a program, if it is over, and what a reduction panicked with.
    #[inline]
    pub(crate) fn take_run<I: SendBuf, O: RecvBuf>(
        &mut self,
        ticket: &RunTicket<I, O>,
    ) -> Option<Taken<I, O>> {
        let (outcome, input, output) = self.ops.take_pair(&ticket.buffers, &mut self.timers)?;
        Some((outcome, input, output, self.take_panic(ticket.buffers.op)))
    }

    fn take_panic(&mut self, buffers: OpId) -> Option<Panic> {
        if self.programs.panics.is_empty() {
            return None;
        }
        let panics = &mut self.programs.panics;
        let at = panics.iter().position(|(of, _)| *of == buffers)?;
        Some(panics.swap_remove(at).1)
    }

    /// The future of a program is gone: the program goes on by itself.
    pub(crate) fn detach_run<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        let panic = self.take_panic(ticket.buffers.op);
        self.garbage.extend(panic.map(Held::of));
        self.unhost_run(ticket);
        self.detach(ticket.buffers.op);
    }

    /// For each program that waits for messages, one of them.
    pub(in crate::engine) fn representatives(&self) -> Vec<OpId> {
        let runs = self.programs.runs.iter().flatten();
        runs.filter_map(|run| run.waits_for()).collect()
    }

    /// Where the programs that go by lists were called, and of which context they are.
    pub(in crate::engine) fn listed_calls(
        &self,
    ) -> impl Iterator<Item = (u32, &'static Location<'static>)> {
        let runs = self.programs.runs.iter().flatten();
        let listed = runs.filter(|run| run.listed.is_some());
        listed.map(|run| (run.about.ctx, run.about.at))
    }

    /// After the driver: what is still under way is over, or its memory is given up because a peer may still write there.
    pub(in crate::engine) fn end_programs(&mut self) {
        self.programs.told.clear();
        for index in self.programs.indices() {
            self.fail(index, ErrorKind::Closed);
            let Some(run) = self.programs.get(index) else {
                continue;
            };
            let (ops, buffers) = (run.ops(), run.buffers);
            let listed = run.listed.as_ref();
            let is_touched = listed.is_some_and(|listed| listed.is_under_way());
            if is_touched || ops.iter().any(|&op| !self.ops.live(op).life.is_done()) {
                std::mem::forget(self.programs.runs[index as usize].take());
                self.wakers.extend(self.ops.live(buffers).leak());
                continue;
            }
            for op in ops {
                self.part_over(op);
            }
            if self.programs.get(index).is_some_and(|run| run.is_over()) {
                self.end_run(index);
            }
        }
        self.programs.told.clear();
    }
}
