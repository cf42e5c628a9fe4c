//! What a collective of one rank does: it copies its input to its output, or leaves its one buffer as it is.

use super::{BufferLens, BufferSpan, CollectiveProgram, ProgramBuffer, ProgramBuilder, StepAction};
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
    /// Returns the work of a program of one rank if it is such a copy.
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
                let is_whole = is_same(from, &whole) && into.buffer == ProgramBuffer::Output;
                let fills = into.is_contiguous() && (into.start, into.len) == (0, output);
                (is_whole && fills).then_some(Self::Bytes(input))
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
        let lens = |input, output| BufferLens {
            input,
            output,
            scratch: 0,
        };
        let Self::Bytes(bytes) = self else {
            return ProgramBuilder::new::<T>(1, lens(0, size_of_val(output))).finish();
        };
        let mut builder = ProgramBuilder::new::<T>(1, lens(bytes, bytes));
        let copied = builder.push(
            StepAction::Copy {
                from: ProgramBuffer::Input.span(0, bytes),
                into: ProgramBuffer::Output.span(0, bytes),
            },
            &[],
        );
        copied.expect("a copy of whole elements from one buffer to another");
        builder.finish()
    }
}

fn is_same(one: &BufferSpan, other: &BufferSpan) -> bool {
    one.is_contiguous()
        && (one.buffer, one.start, one.len) == (other.buffer, other.start, other.len)
}
