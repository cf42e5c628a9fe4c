//! Runs the plans of a whole group without a network, on values of any type, in the worst order that a caller can choose.
//!
//! For tests of plans and of the programs made from them. [`inspect`] checks one plan, [`Pairs`] checks how the messages of all
//! ranks match, and [`run()`] runs the plans.

use std::{error, fmt};

use super::{Action, Buffer, Plan, Span, StepId};

mod pairs;
mod races;
mod run;

pub use pairs::Pairs;
pub use run::{Memory, Rules, run};

/// A step of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct At {
    /// Rank whose plan has the step.
    pub rank: usize,
    /// Number of the step in that plan.
    pub step: StepId,
}

impl At {
    const fn new(rank: usize, step: StepId) -> Self {
        Self { rank, step }
    }
}

/// A fault of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The step waits for itself or a later one.
    Order(At),
    /// A span reaches beyond its buffer.
    Bounds(At),
    /// The step writes the input.
    Input(At),
    /// Two spans of the step differ in length, or overlap.
    Spans(At),
    /// The two steps may run at the same time, touch the same element, and one of them writes it.
    Race(At, StepId),
    /// A message without another end, or one that goes to no other rank.
    Unpaired(At),
    /// A message and the span that it lands in differ in length.
    Lengths(At, At),
    /// The step reads an element that no step has written.
    Unwritten(At),
    /// The collective does not end; this is the first step of its rank that has not completed.
    Deadlock(At),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (At { rank, step }, what) = match self {
            Self::Order(at) => (at, "waits for a later step"),
            Self::Bounds(at) => (at, "reaches beyond its buffer"),
            Self::Input(at) => (at, "writes the input"),
            Self::Spans(at) => (at, "has spans that differ in length or overlap"),
            Self::Race(at, _) => (at, "is not ordered with another step on the same element"),
            Self::Unpaired(at) => (at, "has no other end"),
            Self::Lengths(at, _) => (at, "differs in length from its other end"),
            Self::Unwritten(at) => (at, "reads what nobody wrote"),
            Self::Deadlock(at) => (at, "never ends"),
        };
        write!(f, "step {} of rank {rank} {what}", step.index())?;
        match self {
            Self::Race(_, other) => write!(f, " (step {})", other.index()),
            Self::Lengths(_, At { rank, step }) => {
                write!(f, " (step {} of rank {rank})", step.index())
            }
            _ => Ok(()),
        }
    }
}

impl error::Error for Fault {}

/// Checks one plan: steps wait for earlier ones, stay inside buffers of `input` and `output` elements and the plan's scratch,
/// do not write the input, and do not race. Takes O(steps² + elements touched).
///
/// # Errors
/// The first fault.
pub fn inspect(plan: &Plan, input: usize, output: usize) -> Result<(), Fault> {
    let room = |buffer| match buffer {
        Buffer::Input => input,
        Buffer::Output => output,
        Buffer::Scratch => plan.scratch(),
    };
    for (step, action) in plan.steps() {
        let at = At::new(plan.rank(), step);
        if plan.after(step).iter().any(|before| *before >= step) {
            return Err(Fault::Order(at));
        }
        let inside = |span: Span| span.runs().all(|run| run.end <= room(span.buffer));
        if !action.reads().chain(action.writes()).all(inside) {
            return Err(Fault::Bounds(at));
        }
        if action
            .writes()
            .is_some_and(|span| span.buffer == Buffer::Input && span.len > 0)
        {
            return Err(Fault::Input(at));
        }
        if let Action::Copy { from, into } | Action::Reduce { from, into, .. } = action
            && (from.len != into.len || overlap(*from, *into))
        {
            return Err(Fault::Spans(at));
        }
    }
    races::find_race(plan, output)
}

fn overlap(a: Span, b: Span) -> bool {
    a.buffer == b.buffer
        && a.runs().any(|one| {
            b.runs()
                .any(|other| one.start < other.end && other.start < one.end)
        })
}
