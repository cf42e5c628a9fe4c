//! Lowers plans, in elements, to programs, in bytes.

use ripstop_rt::{
    buffer::Wire,
    internal::offload::{self, BufferLens, CollectiveProgram, ProgramBuilder, StepError},
};

use crate::plan::{self, ElementSpan, Plan, PlanAction, PlanMemory, PlanSide};

// Plans are proven to end for executors that look this far ahead.
const _: () = assert!(plan::LOOKAHEAD_MIN <= offload::LOOKAHEAD_MIN);

/// Makes the program of a plan for elements of type `T`, with buffers of `input` and `output` elements. O(steps and edges).
///
/// Marks it as [`short`](ProgramBuilder::short) if the collective is short on all ranks.
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
) -> Result<CollectiveProgram, StepError> {
    let bytes = ElementBytes(size_of::<T>());
    let lens = BufferLens {
        input: bytes.of(input),
        output: bytes.of(output),
        scratch: bytes.of(plan.scratch()),
    };
    let mut builder = ProgramBuilder::new::<T>(plan.size(), lens).short(short);
    let mut ids: Vec<offload::ProgramStepId> = Vec::with_capacity(plan.len());
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
struct ElementBytes(usize);

impl ElementBytes {
    fn action(self, action: &PlanAction) -> offload::StepAction {
        match *action {
            PlanAction::Send { to, from } => offload::StepAction::Send {
                to: offload::CommRank(to),
                from: self.span(&from),
            },
            PlanAction::Recv { from, into } => offload::StepAction::Recv {
                from: offload::CommRank(from),
                into: self.span(&into),
            },
            PlanAction::Copy { from, into } => offload::StepAction::Copy {
                from: self.span(&from),
                into: self.span(&into),
            },
            PlanAction::Reduce { from, into, side } => offload::StepAction::Reduce {
                from: self.span(&from),
                into: self.span(&into),
                side: match side {
                    PlanSide::Left => offload::OperandSide::Left,
                    PlanSide::Right => offload::OperandSide::Right,
                },
            },
            PlanAction::Join => offload::StepAction::Join,
        }
    }

    fn span(self, span: &ElementSpan) -> offload::BufferSpan {
        let stride = self.of(span.stride.unsigned_abs()).cast_signed();
        offload::BufferSpan {
            buffer: match span.buffer {
                PlanMemory::Input => offload::ProgramBuffer::Input,
                PlanMemory::Output => offload::ProgramBuffer::Output,
                PlanMemory::Scratch => offload::ProgramBuffer::Scratch,
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
    use crate::plan::{AllToAll, BlockPartition, RankLayout};

    #[test]
    fn elements_become_bytes_and_steps_keep_their_order() {
        let blocks = BlockPartition::each(3);
        let plan = AllToAll::Bruck.plan(&RankLayout::new(1, 4), &blocks, &blocks);
        let plan = plan.unwrap();
        let program = lower::<u64>(&plan, 12, 12, false).unwrap();
        assert_eq!((program.ranks(), program.lens().input), (4, 96));
        let first = *program.actions().next().unwrap();
        let from = offload::ProgramBuffer::Input.span(24, 72);
        assert!(matches!(first, offload::StepAction::Copy { from: it, .. } if it == from));
        // A message in several runs is packed and unpacked.
        assert!(program.len() > plan.len());
    }

    #[test]
    fn a_plan_that_is_longer_than_its_buffers_is_refused() {
        let blocks = BlockPartition::each(3);
        let plan = AllToAll::Bruck.plan(&RankLayout::new(1, 4), &blocks, &blocks);
        assert!(lower::<u64>(&plan.unwrap(), 11, 12, false).is_err());
    }
}
