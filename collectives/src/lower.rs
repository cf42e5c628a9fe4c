//! Lowers plans, in elements, to programs, in bytes.

use ripstop_rt::{
    buffer::Wire,
    internal::offload::{self, Builder, Lens, Misfit, Program},
};

use crate::plan::{Action, Buffer, Plan, Side, Span};

/// Makes the program of a plan for elements of type `T`, with buffers of `input` and `output` elements. O(steps and edges).
///
/// Marks it as [`short`](Builder::short) if the collective is short on all ranks.
///
/// # Errors
/// A plan that reaches beyond its buffers, or needs more memory than there are addresses.
///
/// # Panics
/// Panics if the plan has more bytes than a `usize` can count.
pub fn lower<T: Wire>(
    plan: &Plan,
    input: usize,
    output: usize,
    short: bool,
) -> Result<Program, Misfit> {
    let bytes = Bytes(size_of::<T>());
    let lens = Lens {
        input: bytes.of(input),
        output: bytes.of(output),
        scratch: bytes.of(plan.scratch()),
    };
    let mut builder = Builder::new::<T>(plan.size(), lens).short(short);
    let mut ids: Vec<offload::StepId> = Vec::with_capacity(plan.len());
    let mut after = Vec::new();
    for (step, action) in plan.steps() {
        after.clear();
        after.extend(plan.after(step).iter().map(|step| ids[step.index()]));
        ids.push(builder.push(bytes.action(action), &after)?);
    }
    Ok(builder.finish())
}

/// Returns the size of an element, in bytes.
#[derive(Clone, Copy)]
struct Bytes(usize);

impl Bytes {
    fn action(self, action: &Action) -> offload::Action {
        match *action {
            Action::Send { to, from } => offload::Action::Send {
                to,
                from: self.span(&from),
            },
            Action::Recv { from, into } => offload::Action::Recv {
                from,
                into: self.span(&into),
            },
            Action::Copy { from, into } => offload::Action::Copy {
                from: self.span(&from),
                into: self.span(&into),
            },
            Action::Reduce { from, into, side } => offload::Action::Reduce {
                from: self.span(&from),
                into: self.span(&into),
                side: match side {
                    Side::Left => offload::Side::Left,
                    Side::Right => offload::Side::Right,
                },
            },
            Action::Join => offload::Action::Join,
        }
    }

    fn span(self, span: &Span) -> offload::Span {
        let stride = self.of(span.stride.unsigned_abs()).cast_signed();
        offload::Span {
            buffer: match span.buffer {
                Buffer::Input => offload::Buffer::Input,
                Buffer::Output => offload::Buffer::Output,
                Buffer::Scratch => offload::Buffer::Scratch,
            },
            start: self.of(span.start),
            len: self.of(span.len),
            run: self.of(span.run),
            stride: stride * span.stride.signum(),
        }
    }

    fn of(self, elements: usize) -> usize {
        let bytes = elements.checked_mul(self.0);
        bytes.expect("buffers and scratch that memory has room for")
    }
}

#[cfg(test)]
mod tests {
    use ripstop_rt::internal::offload;

    use super::lower;
    use crate::plan::{AllToAll, Blocks, Place};

    #[test]
    fn elements_become_bytes_and_steps_keep_their_order() {
        let blocks = Blocks::each(3);
        let plan = AllToAll::Bruck.plan(&Place::new(1, 4), &blocks, &blocks);
        let plan = plan.unwrap();
        let program = lower::<u64>(&plan, 12, 12, false).unwrap();
        assert_eq!((program.ranks(), program.lens().input), (4, 96));
        let first = *program.actions().next().unwrap();
        let from = offload::Buffer::Input.span(24, 72);
        assert!(matches!(first, offload::Action::Copy { from: it, .. } if it == from));
        // A message in several runs is packed and unpacked.
        assert!(program.len() > plan.len());
    }

    #[test]
    fn a_plan_that_is_longer_than_its_buffers_is_refused() {
        let blocks = Blocks::each(3);
        let plan = AllToAll::Bruck.plan(&Place::new(1, 4), &blocks, &blocks);
        assert!(lower::<u64>(&plan.unwrap(), 11, 12, false).is_err());
    }
}
