//! Lowers plans, which count elements, to programs, which count bytes.

use ripstop_rt::{
    buffer::Wire,
    internal::offload::{self, BufferLens, CollectiveProgram, ProgramBuilder, StepError},
};

use crate::plan::{self, Plan};

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
    let scratch = plan.scratch();
    let lens = BufferLens {
        input,
        output,
        scratch,
    };
    let mut builder = ProgramBuilder::in_elements::<T>(plan.size(), lens).short(short);
    let mut ids: Vec<offload::ProgramStepId> = Vec::with_capacity(plan.len());
    let mut after = Vec::new();
    for (step, action) in plan.steps() {
        after.clear();
        after.extend(plan.after(step).iter().map(|step| ids[step.index()]));
        ids.push(builder.push_elements(*action, &after)?);
    }
    Ok(builder.finish())
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
