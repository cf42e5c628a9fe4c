//! Runs the plans of a whole group without a network, on values of any type, in the worst order that a caller can choose.
//!
//! For tests of plans and of the programs made from them. [`inspect`] checks one plan, [`MessagePairs`] checks how the messages
//! of all ranks match, and [`run()`] runs the plans.

use std::{error, fmt};

use super::{BufferSpan, Plan, ProgramBuffer, ProgramStepId, StepAction};

mod pairs;
mod races;
mod run;

pub use pairs::MessagePairs;
pub use run::{ExecutorRules, RankMemory, run};

/// A step of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct GroupStep {
    /// Rank whose plan has the step.
    pub rank: usize,
    /// Number of the step in that plan.
    pub step: ProgramStepId,
}

impl GroupStep {
    const fn new(rank: usize, step: ProgramStepId) -> Self {
        Self { rank, step }
    }
}

/// A fault of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanFault {
    /// The step waits for itself or a later one.
    Order(GroupStep),
    /// A span reaches beyond its buffer.
    Bounds(GroupStep),
    /// The step writes the input.
    Input(GroupStep),
    /// Two spans of the step differ in length, or overlap.
    Spans(GroupStep),
    /// The two steps may run at the same time, touch the same element, and one of them writes it.
    Race(GroupStep, ProgramStepId),
    /// A message without another end, or one that goes to no other rank.
    Unpaired(GroupStep),
    /// A message and the span that it lands in differ in length.
    Lengths(GroupStep, GroupStep),
    /// The step reads an element that no step has written.
    Unwritten(GroupStep),
    /// The collective does not end; this is the first step of its rank that has not completed.
    Deadlock(GroupStep),
}

impl fmt::Display for PlanFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (GroupStep { rank, step }, what) = match self {
            Self::Order(at) => (at, "waits for a later step"),
            Self::Bounds(at) => (at, "reaches beyond its buffer"),
            Self::Input(at) => (at, "writes the input"),
            Self::Spans(at) => (at, "has spans that differ in length or overlap"),
            Self::Race(at, _) => (at, "is not ordered with another step on the same element"),
            Self::Unpaired(at) => (at, "has no matching step on the other rank"),
            Self::Lengths(at, _) => (at, "differs in length from its matching step"),
            Self::Unwritten(at) => (at, "reads an element that no step has written"),
            Self::Deadlock(at) => (at, "never completes"),
        };
        write!(f, "step {} of rank {rank} {what}", step.index())?;
        match self {
            Self::Race(_, other) => write!(f, " (step {})", other.index()),
            Self::Lengths(_, GroupStep { rank, step }) => {
                write!(f, " (step {} of rank {rank})", step.index())
            }
            _ => Ok(()),
        }
    }
}

impl error::Error for PlanFault {}

/// Checks one plan: steps wait for earlier ones, stay inside buffers of `input` and `output` elements and the plan's scratch,
/// do not write the input, and do not race. Takes O(steps² + elements touched).
///
/// # Errors
/// The first fault.
pub fn inspect(plan: &Plan, input: usize, output: usize) -> Result<(), PlanFault> {
    let room = |buffer| match buffer {
        ProgramBuffer::Input => input,
        ProgramBuffer::Output => output,
        ProgramBuffer::Scratch => plan.scratch(),
    };
    for (step, action) in plan.steps() {
        let at = GroupStep::new(plan.rank(), step);
        if plan.after(step).iter().any(|before| *before >= step) {
            return Err(PlanFault::Order(at));
        }
        let inside = |span: BufferSpan| span.runs().all(|run| run.end <= room(span.buffer));
        if !action.spans().copied().all(inside) {
            return Err(PlanFault::Bounds(at));
        }
        if action
            .writes()
            .is_some_and(|span| span.buffer == ProgramBuffer::Input && span.len > 0)
        {
            return Err(PlanFault::Input(at));
        }
        if let StepAction::Copy { from, into } | StepAction::Reduce { from, into, .. } = action
            && (from.len != into.len || overlap(*from, *into))
        {
            return Err(PlanFault::Spans(at));
        }
    }
    races::find_race(plan, output)
}

fn overlap(a: BufferSpan, b: BufferSpan) -> bool {
    a.buffer == b.buffer
        && a.runs().any(|one| {
            b.runs()
                .any(|other| one.start < other.end && other.start < one.end)
        })
}
