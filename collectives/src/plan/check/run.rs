//! Runs plans in an order that the caller picks, step by step.

use super::{GroupStep, MessagePairs, Plan, PlanFault};
use crate::plan::{BufferSpan, OperandSide, ProgramBuffer, ProgramStepId, StepAction};

/// One rank's memory. `None` is an element that was never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMemory<T> {
    /// The caller's input.
    pub input: Vec<Option<T>>,
    /// The caller's output.
    pub output: Vec<Option<T>>,
    /// Partial results.
    pub scratch: Vec<Option<T>>,
}

/// Guarantees of an executor of plans.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ExecutorRules {
    /// Steps of a rank that may begin, counted from the first one that has not completed.
    pub lookahead: usize,
    /// True if a send completes without waiting for its receive to begin.
    pub eager: bool,
}

impl ExecutorRules {
    /// Returns the strictest rules: no send completes before its receive has begun.
    #[must_use]
    pub const fn strict(lookahead: usize) -> Self {
        Self {
            lookahead,
            eager: false,
        }
    }

    /// Returns the loosest rules: messages are buffered, and all steps may begin.
    #[must_use]
    pub const fn eager() -> Self {
        Self {
            lookahead: usize::MAX,
            eager: true,
        }
    }
}

/// Runs all steps, one at a time. `pick` is called with the number of steps that could be next, if there are several, and
/// returns one of them by index. `combine` is the operation. Returns the steps in the order in which they ran.
///
/// # Errors
/// A message without another end, a step that reads an unwritten element, or a deadlock.
///
/// # Panics
/// Panics if a span is not inside its buffer; [`inspect`](super::inspect) finds such plans.
pub fn run<T: Clone>(
    plans: &[Plan],
    memory: &mut [RankMemory<T>],
    combine: &dyn Fn(&T, &T) -> T,
    rules: ExecutorRules,
    pick: &mut dyn FnMut(usize) -> usize,
) -> Result<Vec<GroupStep>, PlanFault> {
    let pairs = MessagePairs::of(plans)?;
    let mut flying: Vec<Vec<Vec<T>>> = plans
        .iter()
        .map(|plan| vec![Vec::new(); plan.len()])
        .collect();
    for (plan, memory) in plans.iter().zip(&mut *memory) {
        memory.scratch = vec![None; plan.scratch()];
    }
    let mut turns = RunnableSteps::new(plans, &pairs, rules);
    let mut order = Vec::new();
    while !turns.ready.is_empty() {
        let at = turns.ready.swap_remove(pick(turns.ready.len()));
        let GroupStep { rank, step } = at;
        let memory = &mut memory[rank];
        let whole = |values: Option<Vec<T>>| values.ok_or(PlanFault::Unwritten(at));
        match *plans[rank].action(step) {
            StepAction::Send { from, .. } => {
                let recv = pairs.other(at).expect("all messages are paired");
                flying[recv.rank][recv.step.index()] = whole(memory.read(from))?;
            }
            StepAction::Recv { into, .. } => {
                let landed = std::mem::take(&mut flying[rank][step.index()]);
                memory.write(into, landed);
            }
            StepAction::Copy { from, into } => {
                let copied = whole(memory.read(from))?;
                memory.write(into, copied);
            }
            StepAction::Reduce { from, into, side } => {
                let operands = whole(memory.read(from))?
                    .into_iter()
                    .zip(whole(memory.read(into))?);
                let combined = operands.map(|(from, into)| match side {
                    OperandSide::Left => combine(&from, &into),
                    OperandSide::Right => combine(&into, &from),
                });
                memory.write(into, combined.collect());
            }
            StepAction::Join => {}
        }
        order.push(at);
        turns.over(at);
    }
    turns
        .stuck()
        .map_or(Ok(order), |at| Err(PlanFault::Deadlock(at)))
}

impl<T: Clone> RankMemory<T> {
    /// Returns memory with these contents.
    #[must_use]
    pub const fn new(input: Vec<Option<T>>, output: Vec<Option<T>>) -> Self {
        Self {
            input,
            output,
            scratch: Vec::new(),
        }
    }

    const fn buffer(&mut self, buffer: ProgramBuffer) -> &mut Vec<Option<T>> {
        match buffer {
            ProgramBuffer::Input => &mut self.input,
            ProgramBuffer::Output => &mut self.output,
            ProgramBuffer::Scratch => &mut self.scratch,
        }
    }

    fn read(&mut self, span: BufferSpan) -> Option<Vec<T>> {
        let buffer = self.buffer(span.buffer);
        span.runs()
            .flatten()
            .map(|element| buffer[element].clone())
            .collect()
    }

    fn write(&mut self, span: BufferSpan, values: Vec<T>) {
        let buffer = self.buffer(span.buffer);
        for (element, value) in span.runs().flatten().zip(values) {
            buffer[element] = Some(value);
        }
    }
}

/// The steps that may run next.
struct RunnableSteps<'a> {
    plans: &'a [Plan],
    pairs: &'a MessagePairs,
    rules: ExecutorRules,
    ranks: Vec<RankProgress>,
    ready: Vec<GroupStep>,
}

/// The progress of one rank.
struct RankProgress {
    steps: Vec<CheckStepState>,
    /// For each step, the steps that wait for it.
    waiting: Vec<Vec<ProgramStepId>>,
    /// The first step that has not completed.
    low: usize,
    /// The first step beyond the lookahead.
    high: usize,
}

#[derive(Clone, Copy)]
struct CheckStepState {
    /// Steps to wait for that have not completed.
    missing: usize,
    begun: bool,
    over: bool,
}

impl<'a> RunnableSteps<'a> {
    fn new(plans: &'a [Plan], pairs: &'a MessagePairs, rules: ExecutorRules) -> Self {
        let mut turns = Self {
            plans,
            pairs,
            rules,
            ranks: plans.iter().map(RankProgress::new).collect(),
            ready: Vec::new(),
        };
        for rank in 0..plans.len() {
            turns.look(rank);
        }
        turns
    }

    fn over(&mut self, at: GroupStep) {
        let GroupStep { rank, step } = at;
        let progress = &mut self.ranks[rank];
        progress.steps[step.index()].over = true;
        let waiting = std::mem::take(&mut progress.waiting[step.index()]);
        for next in waiting {
            self.ranks[rank].steps[next.index()].missing -= 1;
            self.begin(GroupStep::new(rank, next));
        }
        if let Some(recv) = self.receive_of(at)
            && self.state(recv).begun
        {
            self.ready.push(recv);
        }
        self.look(rank);
    }

    /// Begins steps as far ahead as the rules allow.
    fn look(&mut self, rank: usize) {
        let progress = &mut self.ranks[rank];
        let done = progress.steps[progress.low..]
            .iter()
            .take_while(|state| state.over);
        progress.low += done.count();
        let end = progress
            .low
            .saturating_add(self.rules.lookahead)
            .min(progress.steps.len());
        let seen = std::mem::replace(&mut progress.high, end);
        for index in seen..end {
            self.begin(GroupStep::new(rank, ProgramStepId::new(index)));
        }
    }

    /// Begins a step if it may begin. It is ready once its other end, if it has one, allows it.
    fn begin(&mut self, at: GroupStep) {
        let GroupStep { rank, step } = at;
        let (high, state) = (self.ranks[rank].high, self.state(at));
        if state.begun || state.missing > 0 || step.index() >= high {
            return;
        }
        self.ranks[rank].steps[step.index()].begun = true;
        match *self.plans[rank].action(step) {
            StepAction::Send { .. } => {
                let recv = self.receive_of(at).expect("a send is paired");
                if self.rules.eager || self.state(recv).begun {
                    self.ready.push(at);
                }
            }
            StepAction::Recv { .. } => {
                let send = self.pairs.other(at).expect("a receive is paired");
                if self.state(send).over {
                    self.ready.push(at);
                } else if !self.rules.eager && self.state(send).begun {
                    self.ready.push(send);
                }
            }
            _ => self.ready.push(at),
        }
    }

    fn receive_of(&self, at: GroupStep) -> Option<GroupStep> {
        let GroupStep { rank, step } = at;
        let is_send = matches!(self.plans[rank].action(step), StepAction::Send { .. });
        self.pairs.other(at).filter(|_| is_send)
    }

    fn state(&self, at: GroupStep) -> CheckStepState {
        let GroupStep { rank, step } = at;
        self.ranks[rank].steps[step.index()]
    }

    fn stuck(&self) -> Option<GroupStep> {
        let stuck = |(rank, progress): (usize, &RankProgress)| {
            (progress.low < progress.steps.len())
                .then(|| GroupStep::new(rank, ProgramStepId::new(progress.low)))
        };
        self.ranks.iter().enumerate().find_map(stuck)
    }
}

impl RankProgress {
    fn new(plan: &Plan) -> Self {
        let mut waiting = vec![Vec::new(); plan.len()];
        let mut steps = Vec::with_capacity(plan.len());
        for (step, _) in plan.steps() {
            let after = plan.after(step);
            for before in after {
                waiting[before.index()].push(step);
            }
            steps.push(CheckStepState {
                missing: after.len(),
                begun: false,
                over: false,
            });
        }
        Self {
            steps,
            waiting,
            low: 0,
            high: 0,
        }
    }
}
