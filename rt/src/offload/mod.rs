//! Collectives as programs that a driver, or the engine on its behalf, carries out without the application.
//!
//! A [`CollectiveProgram`] is the part of one rank: steps on the bytes of three memory areas, each of which begins after the
//! steps that it waits for. It is pure data, made of a [`Plan`], which counts elements and is all that algorithms know. A program
//! can run any number of times, and also on several ranks if it is the same for them. `CommInternals::run_program` runs it by
//! collective slots, messages or task lists, as settings and driver allow. What that needs (the order of a single round, the task
//! lists) is derived from the program. The rules for authors of plans are:
//!
//! - A step begins when all the steps that it waits for have ended. Steps without an order may run at the same time.
//! - The k-th send from one rank to another, in list order, matches the k-th receive there from it. So a send begins
//!   only after the earlier sends in the list to the same rank have begun, and likewise a receive.
//! - Two steps that may run at the same time touch no common element, unless both only read it.
//! - A step may be held back until all but a few of the earlier steps in the list have ended: see
//!   [`CollectiveProgram::lookahead`].
//!
//! Plans are not for users: the crate `ripstop-collectives` makes them.

mod builder;
mod local_copy;
pub(crate) mod lower;
mod plan;
mod signature;
mod single_round;
mod span;
pub(crate) mod task_lists;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    ops::Range,
    sync::{Arc, LazyLock},
};

use self::builder::ProgramBuilder;
pub(crate) use self::single_round::{MOVED_MAX, SingleRound};
pub use self::{
    builder::StepError,
    local_copy::LocalCopy,
    plan::Plan,
    signature::CollectiveSignature,
    span::{BufferSpan, ProgramBuffer},
};
pub use crate::{
    comm::{CollectivePlace, ProgramOp},
    executor::{BackgroundFuture, poll_proceed},
    group::CommRank,
    ops::ErasedReducer,
};

/// Minimum number of unfinished steps of each rank that must be in flight at a time for a collective to complete,
/// counted from the first unfinished one in list order.
pub const LOOKAHEAD_MIN: usize = 4;

/// Default number of steps in flight at a time. Enough to keep a network busy with short messages, and no burden for a
/// receiver if each of thousands of ranks does so.
pub const LOOKAHEAD: usize = 64;

/// The steps of one rank in one collective.
///
/// A `CollectiveProgram` proves that all its spans lie inside memory of the stated lengths, that every step waits only for
/// earlier steps, that no step writes the input, and that the two spans of a step do not overlap. It does not prove
/// that other ranks run programs of the same collective, nor that concurrent steps do not conflict. The executor
/// handles both.
#[derive(Clone, Debug)]
pub struct CollectiveProgram {
    steps: Vec<ProgramStep>,
    /// By step: number of ends and beginnings of earlier steps that it waits for.
    waits: Vec<u32>,
    /// Steps that wait for the end of a step; those of one step are consecutive.
    successors: Vec<u32>,
    lens: BufferLens,
    ranks: usize,
    elem: ElemLayout,
    lookahead: usize,
    reduces: bool,
    /// True if handing the program to an adapter takes longer than running it.
    short: bool,
    /// Length of the program's longest receive, in bytes.
    recv_max: usize,
    single_round: Option<SingleRound>,
    fills_output: bool,
    local_copy: Option<LocalCopy>,
    /// Cached data for the program's task lists, filled when it first runs with task lists.
    form: lower::LoweredCache,
}

/// Lengths of a program's memory areas, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "one number for each piece of memory"
)]
pub struct BufferLens {
    /// Length of the input.
    pub input: usize,
    /// Length of the output.
    pub output: usize,
    /// Length of the room for partial results.
    pub scratch: usize,
}

/// A collective in the form in which a communicator runs it.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "what `CommInternals::run_program` asks for, written out by the caller"
)]
pub struct CollectiveSpec {
    /// Name in errors: `bcast`, `all_reduce`, …
    pub name: &'static str,
    /// Signature on which all ranks must agree.
    pub signature: CollectiveSignature,
    /// Program of this rank.
    pub program: Arc<CollectiveProgram>,
    /// Operation of the program's reductions.
    pub reducer: Option<ErasedReducer>,
    /// True if the caller may ask for its receives one by one: see [`ProgramOp::record_block_events`].
    pub with_block_events: bool,
}

impl CollectiveSpec {
    /// Returns a collective without reductions, on whose name alone the ranks must agree.
    pub(crate) fn plain(name: &'static str, program: CollectiveProgram) -> Self {
        Self {
            name,
            signature: CollectiveSignature::of(name),
            program: Arc::new(program),
            reducer: None,
            with_block_events: false,
        }
    }
}

/// The number of a step: its index in the list of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramStepId(u32);

/// The action of a step.
///
/// A send ends when its span may be written again, and a receive ends when the data is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an executor must know every action"
)]
pub enum StepAction {
    /// Sends a message. A message without bytes is a signal.
    Send {
        /// Receiver of the message.
        to: CommRank,
        /// Bytes to send.
        from: BufferSpan,
    },
    /// Receives the message of the same length that `from` sends to this rank.
    Recv {
        /// Sender of the message.
        from: CommRank,
        /// Bytes to fill.
        into: BufferSpan,
    },
    /// Copies between spans of the same length.
    Copy {
        /// Source.
        from: BufferSpan,
        /// Destination.
        into: BufferSpan,
    },
    /// Combines spans of the same length, element by element.
    Reduce {
        /// Operand that stays unchanged.
        from: BufferSpan,
        /// Operand that becomes the result.
        into: BufferSpan,
        /// Side of the operation on which `from` stands.
        side: OperandSide,
    },
    /// Does nothing, and ends when all steps that it waits for have ended. Many steps can wait for this one step
    /// instead of for all of them.
    Join,
}

/// The side of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "an operation has two sides")]
pub enum OperandSide {
    /// `into = from ⊕ into`.
    Left,
    /// `into = into ⊕ from`.
    Right,
}

/// Size and alignment of an element, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElemLayout {
    pub(crate) size: usize,
    pub(crate) align: usize,
}

/// A step in the form that the executor needs.
#[derive(Clone, Debug)]
pub(crate) struct ProgramStep {
    pub(crate) action: StepAction,
    /// Range of the step's successors in the list of all successors.
    frees: Range<u32>,
    /// Next message to, or from, the same peer, which begins after this one has begun.
    pub(crate) next: Option<ProgramStepId>,
    /// Number of the plan's step that this one belongs to: a message in runs takes two steps.
    pub(crate) number: u32,
}

/// A program that does nothing, used in place of a program that has been moved away.
static NOTHING: LazyLock<Arc<CollectiveProgram>> =
    LazyLock::new(|| Arc::new(CollectiveProgram::empty(0, 1)));

impl CollectiveProgram {
    pub(crate) fn nothing() -> &'static Arc<Self> {
        &NOTHING
    }

    /// Returns the program of a rank that does nothing in a collective.
    pub(crate) fn empty(rank: usize, size: usize) -> Self {
        let program = Plan::new(rank, size).program::<u8>(0, 0);
        program.expect("a plan without steps")
    }

    /// Limits how many steps may be in flight at a time, counted from the first unfinished one. Values below
    /// [`LOOKAHEAD_MIN`] count as that.
    #[must_use]
    pub fn lookahead(mut self, steps: usize) -> Self {
        self.lookahead = steps.max(LOOKAHEAD_MIN);
        self
    }

    /// Marks the program as too short for an adapter: handing it over takes longer than the collective, or does not
    /// relieve the host, so messages are used instead. All ranks must agree on this.
    #[must_use]
    pub const fn short(mut self, short: bool) -> Self {
        self.short = short;
        self
    }

    /// Returns the number of steps.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if there are no steps.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the lengths of the memory areas. Scratch is longer than requested if messages are in runs.
    #[must_use]
    pub const fn lens(&self) -> BufferLens {
        self.lens
    }

    /// Returns the size of the communicators that the program is for.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns true if the program needs an [`ErasedReducer`].
    #[must_use]
    pub const fn reduces(&self) -> bool {
        self.reduces
    }

    /// Returns true if the program is [too short](Self::short) for task lists.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.short
    }

    /// Returns the actions of the steps, in list order.
    pub fn actions(&self) -> impl ExactSizeIterator<Item = &StepAction> {
        self.steps.iter().map(|step| &step.action)
    }

    pub(crate) const fn recv_max(&self) -> usize {
        self.recv_max
    }

    /// Returns the order of the program's steps, if it has one round and all its messages fit into collective slots.
    pub(crate) const fn single_round(&self) -> Option<&SingleRound> {
        self.single_round.as_ref()
    }

    /// Returns true if the program writes all of the output and never reads it, so the output may be uninitialized at the start.
    pub(crate) const fn fills_output(&self) -> bool {
        self.fills_output
    }

    /// Returns what the program does, if it is a copy on one rank.
    #[must_use]
    pub const fn local_copy(&self) -> Option<LocalCopy> {
        self.local_copy
    }

    pub(crate) const fn elem(&self) -> ElemLayout {
        self.elem
    }

    pub(crate) fn step(&self, at: usize) -> &ProgramStep {
        &self.steps[at]
    }

    /// Returns, by step, the number of ends and beginnings of earlier steps that it waits for.
    pub(crate) fn waits(&self) -> &[u32] {
        &self.waits
    }

    /// Returns the steps that wait for the end of this one.
    pub(crate) fn successors(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let Range { start, end } = self.steps[at].frees;
        let row = &self.successors[start as usize..end as usize];
        row.iter().map(|&step| step as usize)
    }

    /// Returns true if a step may begin while `first` is the first unfinished step.
    pub(crate) fn is_in_lookahead(&self, first: usize, at: usize) -> bool {
        let ahead = self.steps[at].number - self.steps[first].number;
        (ahead as usize) < self.lookahead
    }
}

impl ProgramStepId {
    /// Returns the step at `index` of a list.
    ///
    /// # Panics
    /// Panics from 2³² on.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a list has fewer than 2^32 steps"))
    }

    /// Returns the step's index in the list.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl StepAction {
    /// Returns the spans that the step reads.
    #[must_use]
    pub fn reads(&self) -> [Option<&BufferSpan>; 2] {
        match self {
            Self::Send { from, .. } | Self::Copy { from, .. } => [Some(from), None],
            Self::Reduce { from, into, .. } => [Some(from), Some(into)],
            Self::Recv { .. } | Self::Join => [None, None],
        }
    }

    /// Returns the span that the step writes.
    #[must_use]
    pub fn writes(&self) -> Option<&BufferSpan> {
        match self {
            Self::Recv { into, .. } | Self::Copy { into, .. } | Self::Reduce { into, .. } => {
                Some(into)
            }
            Self::Send { .. } | Self::Join => None,
        }
    }

    /// Returns the spans that the step reads or writes.
    pub fn spans(&self) -> impl Iterator<Item = &BufferSpan> {
        self.reads().into_iter().flatten().chain(self.writes())
    }

    /// Returns the action on bytes that this one is on elements of `size` bytes.
    fn scaled(self, size: usize) -> Self {
        match self {
            Self::Send { to, from } => Self::Send {
                to,
                from: from.scaled(size),
            },
            Self::Recv { from, into } => Self::Recv {
                from,
                into: into.scaled(size),
            },
            Self::Copy { from, into } => Self::Copy {
                from: from.scaled(size),
                into: into.scaled(size),
            },
            Self::Reduce { from, into, side } => Self::Reduce {
                from: from.scaled(size),
                into: into.scaled(size),
                side,
            },
            Self::Join => Self::Join,
        }
    }

    /// Returns true if the two may not run at the same time, because one writes bytes that the other accesses.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let touches =
            |action: &Self, span: &BufferSpan| action.spans().any(|known| known.overlaps(span));
        self.writes().is_some_and(|span| touches(other, span))
            || other.writes().is_some_and(|span| touches(self, span))
    }
}

impl fmt::Display for ProgramStepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
