//! Builds a plan, step by step.

use super::{
    BlockPartition, BufferSpan, CommRank, OperandSide, Plan, ProgramStepId, RankLayout, StepAction,
};

/// A step to wait for; `None` if its span was empty, because empty spans take no steps.
pub(crate) type StepDependency = Option<ProgramStepId>;

/// A plan that is being built.
///
/// A step waits for the steps it names. If it names none, it waits for the last fence.
#[derive(Debug)]
pub(crate) struct PlanBuilder {
    plan: Plan,
    /// Steps whose completion means that every step before the last fence has completed.
    fence: Vec<ProgramStepId>,
    /// Index of the first step after the last fence.
    phase: usize,
    /// For each step, true if another step waits for it.
    awaited: Vec<bool>,
    /// True if messages without elements are sent too.
    tells: bool,
}

impl PlanBuilder {
    pub(crate) const fn new(place: &RankLayout<'_>) -> Self {
        Self {
            plan: Plan::new(place.rank(), place.size()),
            fence: Vec::new(),
            phase: 0,
            awaited: Vec::new(),
            tells: false,
        }
    }

    /// Sends a message for every block, even an empty one, if the caller chose the lengths of blocks. Ranks whose lengths
    /// disagree then detect it.
    pub(crate) fn with_empty_blocks(self, blocks: &BlockPartition) -> Self {
        Self {
            tells: blocks.has_counts(),
            ..self
        }
    }

    /// Sends a message for every block, even an empty one.
    pub(crate) fn with_empty_messages(self) -> Self {
        Self {
            tells: true,
            ..self
        }
    }

    pub(crate) fn send(
        &mut self,
        to: usize,
        from: BufferSpan,
        after: &[StepDependency],
    ) -> StepDependency {
        let to = CommRank(to);
        self.message(StepAction::Send { to, from }, from.len, after)
    }

    pub(crate) fn recv(
        &mut self,
        from: usize,
        into: BufferSpan,
        after: &[StepDependency],
    ) -> StepDependency {
        let from = CommRank(from);
        self.message(StepAction::Recv { from, into }, into.len, after)
    }

    pub(crate) fn copy(
        &mut self,
        from: BufferSpan,
        into: BufferSpan,
        after: &[StepDependency],
    ) -> StepDependency {
        (into.len > 0).then(|| self.push(StepAction::Copy { from, into }, after))
    }

    pub(crate) fn reduce(
        &mut self,
        from: BufferSpan,
        into: BufferSpan,
        side: OperandSide,
        after: &[StepDependency],
    ) -> StepDependency {
        (into.len > 0).then(|| self.push(StepAction::Reduce { from, into, side }, after))
    }

    /// Adds the send of a message without elements.
    pub(crate) fn signal(&mut self, to: usize, after: &[StepDependency]) -> StepDependency {
        let (to, from) = (CommRank(to), BufferSpan::EMPTY);
        Some(self.push(StepAction::Send { to, from }, after))
    }

    /// Adds the receive of a message without elements.
    pub(crate) fn recv_signal(&mut self, from: usize) -> StepDependency {
        let (from, into) = (CommRank(from), BufferSpan::EMPTY);
        Some(self.push(StepAction::Recv { from, into }, &[]))
    }

    /// Adds `len` elements of scratch memory.
    pub(crate) fn scratch(&mut self, len: usize) -> BufferSpan {
        self.plan.add_scratch(len)
    }

    /// Adds scratch for `slots` messages at a time of up to `len` elements, which are combined and then discarded.
    pub(crate) fn scratch_slots(&mut self, slots: usize, len: usize) -> ScratchSlots {
        let slots = (0..slots).map(|_| (self.scratch(len), None)).collect();
        ScratchSlots { slots, turn: 0 }
    }

    /// Makes all later steps wait for all earlier ones.
    pub(crate) fn fence(&mut self) {
        let open = (self.phase..self.plan.len()).filter(|step| !self.awaited[*step]);
        let open: Vec<ProgramStepId> = open.map(ProgramStepId::new).collect();
        if !open.is_empty() {
            self.fence = open;
        }
        self.phase = self.plan.len();
    }

    pub(crate) fn build(self) -> Plan {
        self.plan
    }

    fn push(&mut self, action: StepAction, after: &[StepDependency]) -> ProgramStepId {
        let mut named: Vec<ProgramStepId> = after.iter().flatten().copied().collect();
        if named.is_empty() {
            named.extend(self.fenced());
        }
        self.add(action, &named)
    }

    /// Adds a message. An empty one moves nothing, so it waits for no step, and no step waits for it.
    fn message(
        &mut self,
        action: StepAction,
        len: usize,
        after: &[StepDependency],
    ) -> StepDependency {
        if len > 0 {
            return Some(self.push(action, after));
        }
        if self.tells {
            self.add(action, &[]);
        }
        None
    }

    /// Returns the one step that stands for the last fence.
    fn fenced(&mut self) -> StepDependency {
        if self.fence.len() > 1 {
            let all = std::mem::take(&mut self.fence);
            self.fence = vec![self.add(StepAction::Join, &all)];
        }
        self.fence.first().copied()
    }

    fn add(&mut self, action: StepAction, after: &[ProgramStepId]) -> ProgramStepId {
        for step in after {
            self.awaited[step.index()] = true;
        }
        self.awaited.push(false);
        self.plan.push(action, after)
    }
}

/// Scratch slots that messages use in turn.
#[derive(Debug)]
pub(crate) struct ScratchSlots {
    slots: Vec<(BufferSpan, StepDependency)>,
    turn: usize,
}

impl ScratchSlots {
    /// Returns the slot of the next message of `len` elements, and the step that must complete first.
    pub(crate) fn next_slot(&self, len: usize) -> (BufferSpan, StepDependency) {
        let (slot, free) = self.slots[self.turn];
        (slot.part(0, len), free)
    }

    /// Notes that the slot is free again after this step.
    pub(crate) fn release_slot(&mut self, step: StepDependency) {
        let free = &mut self.slots[self.turn].1;
        *free = step.or(*free);
        self.turn = (self.turn + 1) % self.slots.len();
    }
}
