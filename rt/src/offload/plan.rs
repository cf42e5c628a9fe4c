//! Plans: one rank's part of a collective as data, in elements.

use std::ops::Range;

use super::{
    BufferSpan, CollectiveProgram, ElemLayout, ProgramBuffer, ProgramBuilder, ProgramStepId,
    StepAction, StepError,
};
use crate::buffer::Wire;

/// One rank's part of one collective, in elements of a type that is not known yet.
///
/// A plan is a list of actions, each with the earlier steps that it waits for. [`program`](Self::program) checks it and makes it
/// ready to run. A plan does not guarantee that the other ranks follow plans of the same collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    rank: usize,
    size: usize,
    steps: Vec<PlanStep>,
    /// The steps that each step waits for, concatenated.
    edges: Vec<ProgramStepId>,
    scratch: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlanStep {
    action: StepAction,
    after: Range<usize>,
}

impl Plan {
    /// Returns a plan without steps, for the rank `rank` of a group of `size` ranks.
    #[must_use]
    pub const fn new(rank: usize, size: usize) -> Self {
        Self {
            rank,
            size,
            steps: Vec::new(),
            edges: Vec::new(),
            scratch: 0,
        }
    }

    /// Returns the rank whose plan it is.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks in the group.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of steps.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the scratch memory that the plan needs, in elements.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        self.scratch
    }

    /// Returns the steps, in the order of the list; every step comes after those it waits for.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = (ProgramStepId, &StepAction)> {
        let steps = self.steps.iter().enumerate();
        steps.map(|(index, step)| (ProgramStepId::new(index), &step.action))
    }

    /// Returns the action of a step.
    ///
    /// # Panics
    /// Panics for a step of a longer plan.
    #[must_use]
    pub fn action(&self, step: ProgramStepId) -> &StepAction {
        &self.steps[step.index()].action
    }

    /// Returns the steps that must complete before this one begins.
    ///
    /// # Panics
    /// Panics for a step of a longer plan.
    #[must_use]
    pub fn after(&self, step: ProgramStepId) -> &[ProgramStepId] {
        &self.edges[self.steps[step.index()].after.clone()]
    }

    /// Adds a step that begins when the steps in `after` have completed. Nothing is checked before the plan becomes a
    /// [program](Self::program).
    ///
    /// # Panics
    /// Panics at the step 2³².
    pub fn push(&mut self, action: StepAction, after: &[ProgramStepId]) -> ProgramStepId {
        let step = ProgramStepId::new(self.steps.len());
        let first = self.edges.len();
        self.edges.extend_from_slice(after);
        self.steps.push(PlanStep {
            action,
            after: first..self.edges.len(),
        });
        step
    }

    /// Adds `len` elements of scratch memory.
    ///
    /// # Panics
    /// Panics if the scratch has more elements than a `usize` can count.
    pub fn add_scratch(&mut self, len: usize) -> BufferSpan {
        let start = self.scratch;
        let all = self.scratch.checked_add(len);
        self.scratch = all.expect("a usize counts the elements of the scratch");
        ProgramBuffer::Scratch.span(start, len)
    }

    /// Makes the program of this plan for elements of type `T`, with buffers of `input` and `output` elements. O(steps and
    /// edges).
    ///
    /// # Errors
    /// A rank or a span of a step is out of range, two spans of a step have different lengths or overlap, a step writes the
    /// input, or a step waits for one that does not precede it.
    ///
    /// # Panics
    /// Panics if a buffer, the scratch or a message has more bytes than a `usize` can count.
    pub fn program<T: Wire>(
        &self,
        input: usize,
        output: usize,
    ) -> Result<CollectiveProgram, StepError> {
        let elem = ElemLayout {
            size: size_of::<T>(),
            align: align_of::<T>(),
        };
        ProgramBuilder::new(self, elem, [input, output]).build(self)
    }
}
