//! Collectives as programs that a driver, or the engine on behalf of a driver, carries out by itself.
//!
//! A [`Program`] is what one rank does: steps on bytes of three pieces of memory, each after the steps that it waits for. It is
//! pure data, made by a [`Builder`] that checks it, and can be run any number of times, also by several ranks at a time if it
//! is the same for them. `Comm::run_program` runs it with nothing but messages; the rules for those who write programs are
//! those of the plans that they come from:
//!
//! - a step begins when all the steps that it waits for are over, and steps that are not ordered may run at the same time;
//! - the k-th send from one rank to another, in the order of the list, meets the k-th receive there from it. So a send begins
//!   only after the sends to the same rank that come before it in the list have begun, and a receive likewise;
//! - steps may be held back until all but a few of those before them in the list are over: see [`Builder::lookahead`].
//!
//! Programs are not for users: the collectives crate lowers its plans to them.

mod builder;
pub(crate) mod lists;
pub(crate) mod lower;
mod quick;
mod signature;
mod span;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    ops::{Deref, Range},
    sync::{Arc, LazyLock},
};

pub(crate) use self::quick::{MOVED_MAX, Quick};
pub use self::{
    builder::{Builder, Misfit},
    signature::Signature,
    span::{Buffer, Span},
};
use crate::{comm::spare, engine::RunCall};
pub use crate::{
    comm::{ProgramOp, Turn},
    executor::{Course, poll_proceed},
    ops::Reducer,
};

/// The fewest unfinished steps of each rank, from the first of them on in the order of the list, that must be under way at a
/// time for a collective to end.
pub const LOOKAHEAD_MIN: usize = 4;

/// How many are under way at a time unless a program says otherwise: enough to keep a network busy with short messages, and no
/// burden for a receiver when each of thousands of ranks does so.
pub const LOOKAHEAD: usize = 64;

/// A program that is about to be run, with the room that this takes.
#[derive(Debug)]
pub struct Loaded(pub(crate) Box<RunCall>);

impl Loaded {
    /// Another handle of a program, in room that a completed collective has left, if there is any: that takes no locked
    /// instruction, and no memory.
    #[must_use]
    #[inline]
    pub fn new(program: &Arc<Program>) -> Self {
        Self(spare::call_of(program))
    }

    /// The program.
    #[must_use]
    pub const fn program(&self) -> &Arc<Program> {
        &self.0.program
    }
}

impl From<Program> for Loaded {
    fn from(program: Program) -> Self {
        Self::new(&Arc::new(program))
    }
}

impl Deref for Loaded {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0.program
    }
}

/// What one rank does in one collective.
///
/// Holding one proves that all its spans lie inside memory of the lengths it names, that every step waits for earlier steps
/// only, that no step writes the input, and that no step's two spans overlap. It does not prove that other ranks follow
/// programs of the same collective, nor that steps which may run at the same time keep out of each other's way: the executor
/// looks after both.
#[derive(Clone, Debug)]
pub struct Program {
    steps: Vec<Step>,
    /// By step: for how many ends and beginnings of earlier ones it waits.
    waits: Vec<u32>,
    /// Whom the end of steps is awaited by, those of one step in a row.
    successors: Vec<u32>,
    lens: Lens,
    ranks: usize,
    elem: Elem,
    lookahead: usize,
    reduces: bool,
    /// To hand it to an adapter takes longer than it does.
    short: bool,
    /// Bytes of its longest receive.
    recv_max: usize,
    quick: Option<Quick>,
    fills_output: bool,
    /// What its task lists are written from, once it has run by such.
    form: lower::Kept,
}

/// Bytes of a program's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "one number for each piece of memory"
)]
pub struct Lens {
    /// Of what the caller gives.
    pub input: usize,
    /// Of what the caller gets.
    pub output: usize,
    /// Of room for partial results.
    pub scratch: usize,
}

/// A collective, as a communicator runs it.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "what `Comm::run_program` asks for, written out by the caller"
)]
pub struct Collective {
    /// What errors call it: `bcast`, `all_reduce`, …
    pub name: &'static str,
    /// What all ranks must agree on.
    pub signature: Signature,
    /// What this rank does.
    pub program: Loaded,
    /// What its reductions do.
    pub reducer: Option<Reducer>,
    /// Its receives may be asked for one by one: see [`ProgramOp::watch`].
    pub by_blocks: bool,
}

/// The number of a step: its place in the list of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(u32);

/// What a step does.
///
/// A send is over when its span may be written again, a receive when the data is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an executor must know every action"
)]
pub enum Action {
    /// A message. Without bytes, it is a signal.
    Send {
        /// Who gets it: a rank of the communicator.
        to: usize,
        /// The bytes.
        from: Span,
    },
    /// The message of as many bytes that `from` sends to this rank.
    Recv {
        /// Who sends it: a rank of the communicator.
        from: usize,
        /// Where it lands.
        into: Span,
    },
    /// Copy between spans of one length.
    Copy {
        /// What.
        from: Span,
        /// Where to.
        into: Span,
    },
    /// Combine, element by element, spans of one length.
    Reduce {
        /// The operand that stays.
        from: Span,
        /// The operand that becomes the result.
        into: Span,
        /// On which side of the operation `from` stands.
        side: Side,
    },
    /// Nothing, once all it waits for is over: many steps can wait for this one instead.
    Join,
}

/// The place of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "an operation has two sides")]
pub enum Side {
    /// `into = from ⊕ into`.
    Left,
    /// `into = into ⊕ from`.
    Right,
}

/// Size and alignment of an element, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elem {
    pub(crate) size: usize,
    pub(crate) align: usize,
}

/// A step, as the executor needs it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) action: Action,
    /// Its successors, in the list of all.
    frees: Range<u32>,
    /// The next message to, or from, the same peer, which begins after this one has begun.
    pub(crate) next: Option<StepId>,
    /// Which of the steps that were asked for it is part of: a message in runs takes two.
    pub(crate) number: u32,
}

/// Does nothing, in the place of a program that has gone elsewhere.
static NOTHING: LazyLock<Arc<Program>> =
    LazyLock::new(|| Arc::new(Builder::new::<u8>(1, Lens::default()).finish()));

impl Program {
    pub(crate) fn nothing() -> &'static Arc<Self> {
        &NOTHING
    }

    /// How many steps.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Bytes of memory that it works on. Scratch is longer than was asked for where messages are in runs.
    #[must_use]
    pub const fn lens(&self) -> Lens {
        self.lens
    }

    /// Ranks of the communicators that it is for.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// Whether it needs a [`Reducer`].
    #[must_use]
    pub const fn reduces(&self) -> bool {
        self.reduces
    }

    /// Whether it is [too short](Builder::short) for task lists.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.short
    }

    /// What the steps do, in the order of the list.
    pub fn actions(&self) -> impl ExactSizeIterator<Item = &Action> {
        self.steps.iter().map(|step| &step.action)
    }

    pub(crate) const fn recv_max(&self) -> usize {
        self.recv_max
    }

    /// How it is gone through, if it is of one round and all its messages fit into cells.
    pub(crate) const fn quick(&self) -> Option<&Quick> {
        self.quick.as_ref()
    }

    /// Whether it writes all of the output, and reads nothing there: no value has to be there when it begins.
    pub(crate) const fn fills_output(&self) -> bool {
        self.fills_output
    }

    pub(crate) const fn elem(&self) -> Elem {
        self.elem
    }

    pub(crate) fn step(&self, at: usize) -> &Step {
        &self.steps[at]
    }

    /// By step: for how many ends and beginnings of earlier ones it waits.
    pub(crate) fn waits(&self) -> &[u32] {
        &self.waits
    }

    /// The steps that wait for the end of this one.
    pub(crate) fn successors(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let Range { start, end } = self.steps[at].frees;
        let row = &self.successors[start as usize..end as usize];
        row.iter().map(|&step| step as usize)
    }

    /// Whether a step may begin while `first` is the first that is not over.
    pub(crate) fn is_near(&self, first: usize, at: usize) -> bool {
        let ahead = self.steps[at].number - self.steps[first].number;
        (ahead as usize) < self.lookahead
    }
}

impl StepId {
    /// Its place in the list.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Action {
    /// What it reads.
    pub(crate) fn reads(&self) -> [Option<&Span>; 2] {
        match self {
            Self::Send { from, .. } | Self::Copy { from, .. } => [Some(from), None],
            Self::Reduce { from, into, .. } => [Some(from), Some(into)],
            Self::Recv { .. } | Self::Join => [None, None],
        }
    }

    /// What it writes.
    pub(crate) fn writes(&self) -> Option<&Span> {
        match self {
            Self::Recv { into, .. } | Self::Copy { into, .. } | Self::Reduce { into, .. } => {
                Some(into)
            }
            Self::Send { .. } | Self::Join => None,
        }
    }

    /// Whether the two may not run at the same time: one writes what the other touches.
    pub(crate) fn clashes(&self, other: &Self) -> bool {
        let touches = |action: &Self, span: &Span| {
            let reads = action.reads().into_iter().flatten();
            reads.chain(action.writes()).any(|known| known.meets(span))
        };
        self.writes().is_some_and(|span| touches(other, span))
            || other.writes().is_some_and(|span| touches(self, span))
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
