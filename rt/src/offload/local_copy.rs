//! What a collective of one rank does: it copies its input to its output, or leaves its one buffer as it is.

use super::{BufferLens, CollectiveProgram, Plan, ProgramBuffer, StepAction};
use crate::buffer::{RecvBuf, SendBuf, Wire, room};

/// The work of a program of one rank, which needs no run: it is done when the collective is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a collective has one buffer or two"
)]
pub enum LocalCopy {
    /// The result is in the output already.
    InPlace,
    /// This many bytes of the input become the output.
    Bytes(usize),
}

impl LocalCopy {
    /// Returns the work of a program, or `None` if the program has several ranks or does more than such a copy.
    pub(super) fn of(program: &CollectiveProgram) -> Option<Self> {
        let BufferLens { input, output, .. } = program.lens();
        if program.ranks() != 1 {
            return None;
        }
        let mut steps = program
            .actions()
            .filter(|action| !matches!(action, StepAction::Join));
        match (steps.next(), steps.next()) {
            (None, _) if input == 0 => Some(Self::InPlace),
            (None, _) if output == 0 => Some(Self::Bytes(0)),
            (Some(StepAction::Copy { from, into }), None) => {
                let whole = ProgramBuffer::Input.span(0, input);
                let all = ProgramBuffer::Output.span(0, output);
                ((*from, *into) == (whole, all)).then_some(Self::Bytes(input))
            }
            _ => None,
        }
    }

    /// Returns the length of the output in bytes, for a call that makes its output.
    #[must_use]
    pub const fn output(self) -> usize {
        match self {
            Self::InPlace => 0,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Does the work. Returns false, and has done nothing, if a buffer is too short.
    #[inline(always)]
    pub(crate) fn apply<I: SendBuf, O: RecvBuf>(self, input: &I, output: &mut O) -> bool {
        match self {
            Self::InPlace => true,
            Self::Bytes(bytes) => room::overwrite_bytes(output, input.elems(), bytes),
        }
    }

    /// Returns the program that does the same, for a call that cannot complete at once.
    pub(crate) fn program<T: Wire>(self, output: &[T]) -> CollectiveProgram {
        let mut plan = Plan::new(0, 1);
        let (input, output) = match self {
            Self::InPlace => (0, output.len()),
            Self::Bytes(bytes) => {
                let len = bytes / size_of::<T>();
                let from = ProgramBuffer::Input.span(0, len);
                let into = ProgramBuffer::Output.span(0, len);
                plan.push(StepAction::Copy { from, into }, &[]);
                (len, len)
            }
        };
        plan.program::<T>(input, output)
            .expect("a copy of all elements from one buffer to the other")
    }
}
