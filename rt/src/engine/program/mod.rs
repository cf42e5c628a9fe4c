//! Programs over messages: collectives that go on while the application computes, on any driver.
//!
//! A program's messages are operations like all others, in areas of its memory and without a future. When one is complete, the
//! program is *told*: that is queued, as handlers may not call the driver, and [`Engine::flush`] begins what has waited for it.
//! So whoever makes turns, an application or the agent, carries programs on, and the only waker is the one at the end.
//!
//! Reductions are the application's code, and long copies take long: they are [`Job`]s, which whoever made the turn does when it
//! has let go of the lock, and then [reports](Engine::done).
//!
//! A program's buffers stay until every message and every job of it is over, however it ends.

mod calls;
mod fail;
mod run;

use std::{
    ops::{Deref, DerefMut},
    panic::Location,
    sync::Arc,
};

use self::{
    calls::Calls,
    run::{By, Run},
};
use super::{Core, Engine};
use crate::{
    buffer::{RecvBuf, SendBuf},
    error::ErrorKind,
    group::Group,
    offload::{Action, Lens, Program},
    ops::{About, Held, Landed, Life, Memory, Outcome, Panic, Reducer, Ticket, Work},
    proto::wire::OpId,
};

/// Longer copies are made with no lock held. A microsecond at most.
const COPY_MAX: usize = 4 << 10;

/// The programs of one runtime, and what it knows of the collectives of its communicators.
pub(super) struct Programs {
    /// This rank.
    me: u32,
    /// Nothing until the first program: a rank of a large simulation that does nothing should take little.
    state: Option<Box<State>>,
}

pub(super) struct State {
    runs: Vec<Option<Box<Run>>>,
    free: Vec<u32>,
    /// Whose message it is, by the slot of its operation.
    parts: Vec<Part>,
    told: Vec<Told>,
    calls: Calls,
    /// What is left of reductions that panicked, for the futures of their programs.
    panics: Vec<(OpId, Panic)>,
}

#[derive(Clone, Copy, Default)]
struct Part {
    run: u32,
    step: u32,
}

/// What programs are to look at.
enum Told {
    /// This message is complete.
    Part(OpId),
    /// Something about this program has changed.
    Run(u32),
}

/// A collective as it is called.
pub(crate) struct RunCall {
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
    /// The line of the program that called it.
    pub(crate) at: &'static Location<'static>,
    pub(crate) group: Group,
    pub(crate) program: Arc<Program>,
    pub(crate) reducer: Option<Reducer>,
}

/// The claims to a program's two buffers. The second is the one that is complete last.
pub(crate) struct RunTickets<I, O> {
    pub(crate) input: Ticket<I>,
    pub(crate) output: Ticket<O>,
}

/// A step to be done with no lock held.
pub(crate) struct Job {
    run: u32,
    step: usize,
    work: Work,
    panic: Option<Panic>,
}

impl Job {
    /// Does it.
    pub(crate) fn run(&mut self) {
        self.panic = self.work.run().err();
    }
}

impl Programs {
    pub(super) fn new(me: u32) -> Self {
        Self { me, state: None }
    }
}

impl Deref for Programs {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.state.as_deref().unwrap_or(State::EMPTY)
    }
}

impl DerefMut for Programs {
    fn deref_mut(&mut self) -> &mut State {
        self.state.get_or_insert_with(|| Box::new(State::new()))
    }
}

impl State {
    const EMPTY: &Self = &Self::new();

    const fn new() -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            parts: Vec::new(),
            told: Vec::new(),
            calls: Calls::new(),
            panics: Vec::new(),
        }
    }

    /// Whether any is under way.
    pub(super) fn any(&self) -> bool {
        self.runs.len() > self.free.len()
    }

    #[inline]
    pub(super) fn are_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// A program's message is complete.
    pub(super) fn tell(&mut self, op: OpId) {
        self.told.push(Told::Part(op));
    }

    fn stir(&mut self, run: u32) {
        self.told.push(Told::Run(run));
    }

    fn add(&mut self, run: Run) -> u32 {
        let run = Some(Box::new(run));
        if let Some(index) = self.free.pop() {
            self.runs[index as usize] = run;
            return index;
        }
        self.runs.push(run);
        u32::try_from(self.runs.len() - 1).expect("fewer than 2^32 programs under way")
    }

    fn get(&mut self, index: u32) -> Option<&mut Run> {
        self.runs.get_mut(index as usize)?.as_deref_mut()
    }

    fn indices(&self) -> Vec<u32> {
        let runs = (0..).zip(&self.runs);
        runs.filter_map(|(index, run)| run.as_ref().map(|_| index))
            .collect()
    }

    fn part(&mut self, op: OpId, part: Part) {
        let slot = op.slot as usize;
        if self.parts.len() <= slot {
            self.parts.resize(slot + 1, Part::default());
        }
        self.parts[slot] = part;
    }
}

impl Engine {
    /// Begins a program. It goes on by itself from here.
    pub(crate) fn run<I: SendBuf, O: RecvBuf>(
        &mut self,
        call: RunCall,
        input: I,
        output: O,
    ) -> RunTickets<I, O> {
        let about = call.about();
        let tickets = RunTickets {
            input: self.core.ops.hold_input(about, input),
            output: self.core.ops.hold_output(about, output),
        };
        let (input, output) = (tickets.input.op, tickets.output.op);
        self.core.begin(call, input, output);
        if self.core.ended {
            self.core.end_programs();
        }
        self.flush();
        tickets
    }

    /// Begins what has waited for what was told.
    pub(super) fn tend_programs(&mut self) {
        while let Some(told) = self.core.programs.told.pop() {
            let run = match told {
                Told::Part(op) => self.core.part_over(op),
                Told::Run(run) => run,
            };
            self.go_on(run);
        }
    }

    fn go_on(&mut self, index: u32) {
        let place = self.core.programs.runs.get_mut(index as usize);
        let Some(mut run) = place.and_then(Option::take) else {
            return; // it ended when it was told something else
        };
        let refused = if run.failed.is_none() {
            self.begin_steps(index, &mut run)
        } else {
            None
        };
        let over = run.is_over();
        self.core.programs.runs[index as usize] = Some(run);
        match refused {
            Some(kind) => self.core.fail(index, kind),
            None if over => self.core.end_run(index),
            None => {}
        }
    }

    /// Begins every step that may. Returns why one could not.
    fn begin_steps(&mut self, index: u32, run: &mut Run) -> Option<ErrorKind> {
        // Steps wait for earlier ones only, so whatever one lets begin is still ahead.
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

    fn begin_step(&mut self, index: u32, run: &mut Run, at: usize) -> Result<(), ErrorKind> {
        run.began(at);
        let action = run.program.step(at).action;
        match action {
            Action::Join => run.over(at),
            Action::Send { to, .. } => self.begin_send(index, run, at, to)?,
            Action::Recv { from, .. } => self.begin_recv(index, run, at, from),
            Action::Copy { from, into } if from.len <= COPY_MAX => {
                run.memory.copy(&from, &into);
                run.over(at);
            }
            Action::Copy { .. } | Action::Reduce { .. } => {
                let reducer = match action {
                    Action::Reduce { .. } => run.reducer.take(),
                    _ => None,
                };
                run.flies(at, By::Job);
                self.core.jobs.push(Job {
                    run: index,
                    step: at,
                    work: run.memory.work(&action, reducer),
                    panic: None,
                });
            }
        }
        Ok(())
    }

    fn begin_send(
        &mut self,
        index: u32,
        run: &mut Run,
        at: usize,
        to: usize,
    ) -> Result<(), ErrorKind> {
        let (about, from) = (run.about(to), run.row(at));
        let to = about.peer.expect("a rank of the group");
        if let Some(kind) = self.core.unreachable(to) {
            return Err(kind);
        }
        if self.send_now(&about, to, run.memory.bytes(&from)) {
            run.over(at);
            return Ok(());
        }
        let op = self.core.lend(index, run, at, about);
        self.queue(op, to);
        Ok(())
    }

    fn begin_recv(&mut self, index: u32, run: &mut Run, at: usize, from: usize) {
        let about = run.about(from);
        let op = self.core.lend(index, run, at, about);
        self.core.recv(op);
    }

    /// A job is done. What is left in it is the caller's to drop when it holds no lock.
    pub(crate) fn done(&mut self, job: &mut Job) {
        let Some(run) = self.core.programs.get(job.run) else {
            return; // the driver is gone, and its memory with it
        };
        run.landed(job.step);
        run.reducer = job.work.reducer.take().or_else(|| run.reducer.take());
        run.panic = run.panic.take().or_else(|| job.panic.take());
        if run.panic.is_none() {
            run.over(job.step);
        } else {
            let me = self.core.programs.me as usize;
            self.core.fail(job.run, ErrorKind::Aborted { rank: me });
        }
        if self.core.ended {
            return self.core.end_programs();
        }
        self.core.programs.stir(job.run);
        self.flush();
    }
}

impl Core {
    fn begin(&mut self, mut call: RunCall, input: OpId, output: OpId) {
        let areas = [input, output].map(|op| self.ops.live(op).area);
        let lens = call.program.lens();
        let mut wrong = call.wrong(areas.map(|area| area.len));
        let lens = if wrong.is_none() {
            lens
        } else {
            Lens::default()
        };
        let memory = Memory::new(areas[0], areas[1], lens);
        if wrong.is_none() && call.program.reduces() && !memory.is_aligned(call.program.elem()) {
            let sentence = "a buffer is not aligned for the elements of the reduction";
            wrong = Some(ErrorKind::InvalidArgument(sentence.to_owned()));
        }
        let wrong = self.doomed(&call).or(wrong);
        let (key, sig) = ((call.ctx, call.tag), call.sig);
        let reducer = call.reducer.take();
        let index = self
            .programs
            .add(Run::new(call, [input, output], memory, reducer));
        self.programs.calls.begin(key, sig, index);
        self.programs.stir(index);
        if let Some(kind) = wrong {
            self.fail(index, kind);
        }
    }

    /// An operation for a message in a program's memory.
    fn lend(&mut self, index: u32, run: &mut Run, at: usize, about: About) -> OpId {
        let area = run.memory.area(&run.row(at));
        let op = self.ops.lend(about, area);
        let step = u32::try_from(at).expect("a program has less than 2^32 steps");
        self.programs.part(op, Part { run: index, step });
        run.flies(at, By::Op(op));
        op
    }

    /// A message of a program is complete: whose it was.
    fn part_over(&mut self, op: OpId) -> u32 {
        let Part { run: index, step } = self.programs.parts[op.slot as usize];
        let slot = self.ops.live(op);
        let (about, room) = (slot.about, slot.area.len);
        let outcome = match slot.life {
            Life::Done(landed) => Ok(landed.bytes),
            _ => Err(slot.take_why()),
        };
        self.release(op);
        let step = step as usize;
        let run = self.programs.get(index).expect("it waits for its messages");
        run.landed(step);
        let peer = about.peer.unwrap_or_default();
        match outcome {
            Ok(bytes) if bytes == room => run.over(step),
            // The same signature and another length.
            Ok(_) => self.fail_mismatched(index, peer),
            Err(Some(ErrorKind::TypeMismatch { .. } | ErrorKind::Truncated { .. })) => {
                self.fail_mismatched(index, peer);
            }
            Err(Some(kind)) => self.fail(index, kind),
            Err(None) => self.fail(index, ErrorKind::Closed),
        }
        index
    }

    /// The end of a program whose messages and jobs are all over.
    fn end_run(&mut self, index: u32) {
        let run = self.programs.get(index).expect("checked by the caller");
        let key = run.key();
        if run.failed.is_none()
            && let Some(source) = self.left_over(key)
        {
            self.fail_mismatched(index, source);
        }
        let Some(run) = self.programs.runs[index as usize].take() else {
            return;
        };
        self.programs.free.push(index);
        self.programs.calls.end(key);
        let Run {
            buffers: [input, output],
            reducer,
            failed,
            panic,
            program,
            ..
        } = *run;
        self.garbage.extend(reducer.map(Held::of));
        if let Some(panic) = panic {
            self.keep_panic(output, panic);
        }
        self.land(input, Ok(Landed::sent(0)));
        let bytes = program.lens().output;
        let outcome = match failed {
            Some(kind) => Err(kind),
            None => Ok(Landed::sent(bytes)),
        };
        self.land(output, outcome);
    }

    fn keep_panic(&mut self, output: OpId, panic: Panic) {
        if self.ops.live(output).orphan {
            tracing::error!("a reduction panicked in a collective whose future was dropped");
            self.garbage.push(Held::of(panic));
        } else {
            self.programs.panics.push((output, panic));
        }
    }

    /// Takes the outcome and the buffers of a program, if it is over, and what a reduction panicked with.
    pub(crate) fn take_run<I: SendBuf, O: RecvBuf>(
        &mut self,
        tickets: &RunTickets<I, O>,
    ) -> Option<(Outcome, I, O, Option<Panic>)> {
        let (outcome, output) = self.take_recv(&tickets.output)?;
        let (_, input) = self.take_send(&tickets.input)?;
        Some((outcome, input, output, self.take_panic(tickets.output.op)))
    }

    fn take_panic(&mut self, output: OpId) -> Option<Panic> {
        let panics = &mut self.programs.panics;
        let at = panics.iter().position(|(of, _)| *of == output)?;
        Some(panics.swap_remove(at).1)
    }

    /// The future of a program is gone: the program goes on by itself.
    pub(crate) fn detach_run<I, O>(&mut self, tickets: &RunTickets<I, O>) {
        let panic = self.take_panic(tickets.output.op);
        self.garbage.extend(panic.map(Held::of));
        self.detach(tickets.input.op);
        self.detach(tickets.output.op);
    }

    /// For each program that waits for messages, one of them.
    pub(super) fn representatives(&self) -> Vec<OpId> {
        let runs = self.programs.runs.iter().flatten();
        runs.filter_map(|run| run.waits_for()).collect()
    }

    /// After the driver: what is still under way is over, or its memory is given up because a peer may still write there.
    pub(super) fn end_programs(&mut self) {
        self.programs.told.clear();
        for index in self.programs.indices() {
            self.fail(index, ErrorKind::Closed);
            let Some(run) = self.programs.get(index) else {
                continue;
            };
            let (ops, buffers) = (run.ops(), run.buffers);
            if ops.iter().any(|&op| !self.ops.live(op).life.is_done()) {
                std::mem::forget(self.programs.runs[index as usize].take());
                buffers.iter().for_each(|&op| self.ops.live(op).leak());
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

impl RunCall {
    fn about(&self) -> About {
        About {
            ctx: self.ctx,
            peer: None,
            tag: Some(self.tag),
            sig: self.sig,
            elem: 1,
            synchronous: false,
            probe: false,
            at: self.at,
        }
    }

    /// What the caller got wrong; `bytes` are those of the two buffers.
    fn wrong(&self, bytes: [usize; 2]) -> Option<ErrorKind> {
        let Lens { input, output, .. } = self.program.lens();
        let (ranks, size) = (self.program.ranks(), self.group.len());
        let sentence = if ranks != size {
            format!("`program` is for {ranks} ranks, and the communicator has {size}")
        } else if bytes[0] < input {
            format!(
                "`input` has {} bytes, and the program reads {input}",
                bytes[0]
            )
        } else if bytes[1] < output {
            format!(
                "`output` has room for {} bytes, and the program fills {output}",
                bytes[1]
            )
        } else if !self.reducer_fits() {
            "`reducer` is not for the elements of the program".to_owned()
        } else {
            return None;
        };
        Some(ErrorKind::InvalidArgument(sentence))
    }

    fn reducer_fits(&self) -> bool {
        let fits = |reducer: &Reducer| reducer.fits(self.program.elem());
        !self.program.reduces() || self.reducer.as_ref().is_some_and(fits)
    }
}
