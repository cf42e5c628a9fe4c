//! Makes programs of plans: checks each step, and scales it by the size of an element.

use std::{collections::BTreeMap, fmt};

use super::{
    BufferLens, BufferSpan, CollectiveProgram, CommRank, ElemLayout, LOOKAHEAD, LocalCopy, Plan,
    ProgramBuffer, ProgramStep, ProgramStepId, SingleRound, StepAction, lower, span::bytes_of,
};

/// A program that is being made of a plan.
#[derive(Debug)]
pub(super) struct ProgramBuilder {
    program: CollectiveProgram,
    /// Lengths of the plan's memory areas, in elements.
    elements: BufferLens,
    /// For each step of the plan so far, the step of the program whose end is its end.
    ends: Vec<ProgramStepId>,
    /// Dependencies: the earlier step, then the step that waits for it.
    edges: Vec<(u32, u32)>,
    /// Last message to, or from, each peer.
    last: BTreeMap<(CommRank, PeerDirection), ProgramStepId>,
}

/// Reason why a plan cannot become a program. The text names the step, its argument, the value and the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepError {
    step: usize,
    sentence: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerDirection {
    To,
    From,
}

/// Minimum alignment of messages in scratch memory.
const ALIGN_MIN: usize = align_of::<u128>();

impl ProgramBuilder {
    /// Starts the program of a plan whose buffers have `input` and `output` elements.
    pub(super) fn new(plan: &Plan, elem: ElemLayout, [input, output]: [usize; 2]) -> Self {
        let elements = BufferLens {
            input,
            output,
            scratch: plan.scratch(),
        };
        let lens = BufferLens {
            input: bytes_of(elements.input, elem.size),
            output: bytes_of(elements.output, elem.size),
            scratch: bytes_of(elements.scratch, elem.size),
        };
        Self {
            program: CollectiveProgram {
                steps: Vec::with_capacity(plan.len()),
                waits: Vec::with_capacity(plan.len()),
                successors: Vec::new(),
                lens,
                ranks: plan.size(),
                elem,
                lookahead: LOOKAHEAD,
                reduces: false,
                short: false,
                recv_max: 0,
                single_round: None,
                fills_output: false,
                local_copy: None,
                form: lower::LoweredCache::new(),
            },
            elements,
            ends: Vec::with_capacity(plan.len()),
            edges: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    /// Returns the program.
    pub(super) fn build(mut self, plan: &Plan) -> Result<CollectiveProgram, StepError> {
        let mut after = Vec::new();
        for (step, action) in plan.steps() {
            let before = plan.after(step);
            self.check(action, before)
                .map_err(|sentence| self.misfit(sentence))?;
            after.clear();
            after.extend(before.iter().map(|step| self.ends[step.index()]));
            let end = self.push(action.scaled(self.program.elem.size), &after)?;
            self.ends.push(end);
        }
        Ok(self.finish())
    }

    /// Adds an action on bytes. Returns the step whose end is the end of the action.
    ///
    /// A message whose bytes lie in several runs gets scratch memory and a separate copy step, because the engine sends
    /// and receives only contiguous bytes.
    fn push(
        &mut self,
        action: StepAction,
        after: &[ProgramStepId],
    ) -> Result<ProgramStepId, StepError> {
        match action {
            StepAction::Send { to, from } if !from.is_contiguous() => {
                let room = self.room(from.len)?;
                let packed = self.add(StepAction::Copy { from, into: room }, after)?;
                self.add(StepAction::Send { to, from: room }, &[packed])
            }
            StepAction::Recv { from, into } if !into.is_contiguous() => {
                let room = self.room(into.len)?;
                let here = self.add(StepAction::Recv { from, into: room }, after)?;
                self.add(StepAction::Copy { from: room, into }, &[here])
            }
            action => self.add(action, after),
        }
    }

    fn finish(self) -> CollectiveProgram {
        let Self {
            mut program,
            mut edges,
            ..
        } = self;
        edges.sort_unstable();
        let mut at = 0;
        for (step, earlier) in program.steps.iter_mut().zip(0_u32..) {
            let row = edges[at as usize..].iter();
            let row = row
                .zip(1_u32..)
                .take_while(|((from, _), _)| *from == earlier);
            let len = row.last().map_or(0, |(_, len)| len);
            step.frees = at..at + len;
            at += len;
        }
        program.successors = edges.into_iter().map(|(_, later)| later).collect();
        program.single_round = SingleRound::of(&program);
        program.fills_output = fills_output(&program);
        program.local_copy = LocalCopy::of(&program);
        program
    }

    fn add(
        &mut self,
        action: StepAction,
        after: &[ProgramStepId],
    ) -> Result<ProgramStepId, StepError> {
        let edges = self.edges.len() + after.len();
        let fits = u32::try_from(edges)
            .ok()
            .and_then(|_| u32::try_from(self.program.steps.len()).ok());
        let Some(at) = fits.filter(|&at| at < u32::MAX - 2) else {
            return Err(self.misfit(
                "the program has 2^32 steps or edges, which is the limit: split the program"
                    .to_owned(),
            ));
        };
        let number = u32::try_from(self.ends.len()).unwrap_or(u32::MAX); // a plan has fewer than 2^32 steps
        let id = ProgramStepId(at);
        self.edges.extend(after.iter().map(|step| (step.0, at)));
        let mut waits = u32::try_from(after.len()).unwrap_or(u32::MAX);
        let way = match action {
            StepAction::Send { to, .. } => Some((to, PeerDirection::To)),
            StepAction::Recv { from, .. } => Some((from, PeerDirection::From)),
            _ => None,
        };
        if let Some(before) = way.and_then(|way| self.last.insert(way, id)) {
            self.program.steps[before.index()].next = Some(id);
            waits += 1;
        }
        self.program.reduces |= matches!(action, StepAction::Reduce { .. });
        if let StepAction::Recv { into, .. } = action {
            self.program.recv_max = self.program.recv_max.max(into.len);
        }
        self.program.waits.push(waits);
        self.program.steps.push(ProgramStep {
            action,
            frees: 0..0,
            next: None,
            number,
        });
        Ok(id)
    }

    /// Reserves scratch memory for a message in runs.
    fn room(&mut self, len: usize) -> Result<BufferSpan, StepError> {
        let align = self.program.elem.align.max(ALIGN_MIN);
        let scratch = self.program.lens.scratch.checked_next_multiple_of(align);
        let end = scratch.and_then(|start| start.checked_add(len));
        let (Some(start), Some(end)) = (scratch, end) else {
            return Err(self.misfit(format!("a message of {len} bytes in runs: too long")));
        };
        self.program.lens.scratch = end;
        Ok(ProgramBuffer::Scratch.span(start, len))
    }

    fn check(&self, action: &StepAction, after: &[ProgramStepId]) -> Result<(), String> {
        let steps = self.ends.len();
        if let Some(step) = after.iter().find(|step| step.index() >= steps) {
            return Err(format!(
                "it waits for step {step}, which does not precede it"
            ));
        }
        match *action {
            StepAction::Send { to, from } => {
                self.check_rank("to", to)?;
                self.check_span("from", &from)
            }
            StepAction::Recv { from, into } => {
                self.check_rank("from", from)?;
                self.check_written("into", &into)
            }
            StepAction::Copy { from, into } | StepAction::Reduce { from, into, .. } => {
                self.check_pair(&from, &into)
            }
            StepAction::Join => Ok(()),
        }
    }

    fn check_rank(&self, name: &str, rank: CommRank) -> Result<(), String> {
        let ranks = self.program.ranks;
        if rank.0 < ranks {
            return Ok(());
        }
        Err(format!(
            "`{name}` is rank {rank}, and there are ranks 0..{ranks}"
        ))
    }

    fn check_pair(&self, from: &BufferSpan, into: &BufferSpan) -> Result<(), String> {
        self.check_span("from", from)?;
        self.check_written("into", into)?;
        if from.len != into.len {
            return Err(format!("{from:?} and {into:?} are of different lengths"));
        }
        if from.overlaps(into) {
            return Err(format!("{from:?} and {into:?} overlap"));
        }
        Ok(())
    }

    fn check_written(&self, name: &str, span: &BufferSpan) -> Result<(), String> {
        if span.buffer == ProgramBuffer::Input && span.len > 0 {
            return Err(format!(
                "`{name}` is {span:?}, but a step cannot write the input"
            ));
        }
        if !span.is_disjoint() {
            return Err(format!(
                "`{name}` is {span:?}: its runs overlap, make the stride longer"
            ));
        }
        self.check_span(name, span)
    }

    fn check_span(&self, name: &str, span: &BufferSpan) -> Result<(), String> {
        let BufferLens {
            input,
            output,
            scratch,
        } = self.elements;
        let room = match span.buffer {
            ProgramBuffer::Input => input,
            ProgramBuffer::Output => output,
            ProgramBuffer::Scratch => scratch,
        };
        if span.bounds().is_none_or(|bounds| bounds.end > room) {
            return Err(format!(
                "`{name}` is {span:?} of a buffer of {room} elements"
            ));
        }
        Ok(())
    }

    fn misfit(&self, sentence: String) -> StepError {
        StepError {
            step: self.ends.len(),
            sentence,
        }
    }
}

/// Returns true if the program writes all of the output, contiguously, and never reads it.
fn fills_output(program: &CollectiveProgram) -> bool {
    let in_output = |span: &&BufferSpan| span.buffer == ProgramBuffer::Output && span.len > 0;
    let reads = |action: &StepAction| {
        action
            .reads()
            .into_iter()
            .flatten()
            .any(|span| in_output(&span))
    };
    if program.actions().any(reads) {
        return false;
    }
    let written = program
        .actions()
        .filter_map(StepAction::writes)
        .filter(in_output);
    let mut rows: Vec<_> = written
        .filter(|span| span.is_contiguous())
        .map(|span| (span.start, span.start + span.len))
        .collect();
    rows.sort_unstable();
    let filled = rows
        .iter()
        .try_fold(0, |end, row| (row.0 <= end).then(|| row.1.max(end)));
    filled.is_some_and(|end| end >= program.lens.output)
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.sentence)
    }
}

impl std::error::Error for StepError {}
