//! Notifications to programs from all parts of the engine, and what programs leave to be run without a lock.

use ripstop_fabric::driver::{CommandFailure, CommandToken};

use super::EngineCommons;
use crate::{
    ops::{PanicPayload, StepWork},
    proto::wire::OpId,
};

/// A notification to a program.
pub(in crate::engine) enum ProgramEvent {
    /// A message of a program is complete.
    Part(OpId),
    /// The state of this program has changed.
    Run(u32),
    /// The driver reports an event of a program's task lists.
    List(CommandToken, TaskListEvent),
    /// A peer has sent its last calls on this communicator.
    LastCalls(u32),
}

/// Report of the driver about a program.
pub(in crate::engine) enum TaskListEvent {
    Reached,
    Triggered,
    Failed(CommandFailure),
}

/// Bit that marks tokens of programs. Tokens of windows and operations never become that large.
pub(in crate::engine) const TOKENS: u64 = 1 << 62;

pub(in crate::engine) const fn is_token(token: CommandToken) -> bool {
    token.0 & TOKENS != 0
}

/// Notifications to programs, from all parts of the engine.
impl EngineCommons {
    #[inline]
    pub(in crate::engine) fn has_program_events(&self) -> bool {
        !self.program_events.is_empty()
    }

    /// Notifies a program that one of its messages is complete.
    pub(in crate::engine) fn notify_message(&mut self, op: OpId) {
        self.program_events.push(ProgramEvent::Part(op));
    }

    /// Notifies a program of an event of its task lists.
    pub(in crate::engine) fn notify_list(&mut self, token: CommandToken, heard: TaskListEvent) {
        self.program_events.push(ProgramEvent::List(token, heard));
    }

    /// Notifies a program that its own state has changed.
    pub(in crate::engine) fn mark_dirty(&mut self, run: u32) {
        self.program_events.push(ProgramEvent::Run(run));
    }
}

/// A step of a program that must run with no lock held.
pub(crate) struct ProgramJob {
    pub(in crate::engine) run: u32,
    pub(in crate::engine) step: usize,
    pub(in crate::engine) work: StepWork,
    pub(in crate::engine) panic: Option<PanicPayload>,
}

impl ProgramJob {
    /// Runs the step.
    pub(crate) fn run(&mut self) {
        self.panic = self.work.run().err();
    }
}
