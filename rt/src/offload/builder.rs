//! Builds programs, checked step by step.

use std::{collections::BTreeMap, fmt};

use super::{
    BufferLens, BufferSpan, CollectiveProgram, CommRank, ElemLayout, LOOKAHEAD, LOOKAHEAD_MIN,
    LocalCopy, ProgramBuffer, ProgramStep, ProgramStepId, SingleRound, StepAction, lower,
    span::bytes_of,
};
use crate::buffer::Wire;

/// Builds a [`CollectiveProgram`] from actions in the order of a plan.
#[derive(Debug)]
#[must_use = "call `finish` for the program"]
pub struct ProgramBuilder {
    program: CollectiveProgram,
    /// Dependencies: the earlier step, then the step that waits for it.
    edges: Vec<(u32, u32)>,
    /// Last message to, or from, each peer.
    last: BTreeMap<(CommRank, PeerDirection), ProgramStepId>,
    /// Steps that the caller has pushed.
    asked: u32,
}

/// Reason why a step does not fit into a program. The text names the argument, its value and the range.
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
    /// Starts a program for communicators of `ranks` ranks, on elements of type `T` in memory of these lengths in
    /// bytes.
    pub fn new<T: Wire>(ranks: usize, lens: BufferLens) -> Self {
        let elem = ElemLayout {
            size: size_of::<T>(),
            align: align_of::<T>(),
        };
        Self {
            program: CollectiveProgram {
                steps: Vec::new(),
                waits: Vec::new(),
                successors: Vec::new(),
                lens,
                ranks,
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
            edges: Vec::new(),
            last: BTreeMap::new(),
            asked: 0,
        }
    }

    /// Starts a program like [`new`](Self::new), in memory of these lengths in elements. For
    /// [`push_elements`](Self::push_elements).
    ///
    /// # Panics
    /// Panics if a length has more bytes than a `usize` can count.
    pub fn in_elements<T: Wire>(ranks: usize, lens: BufferLens) -> Self {
        let BufferLens {
            input,
            output,
            scratch,
        } = lens;
        let [input, output, scratch] =
            [input, output, scratch].map(|len| bytes_of(len, size_of::<T>()));
        let lens = BufferLens {
            input,
            output,
            scratch,
        };
        Self::new::<T>(ranks, lens)
    }

    /// Limits how many steps may be in flight at a time, counted from the first unfinished one. Values below
    /// [`LOOKAHEAD_MIN`] count as that.
    pub fn lookahead(mut self, steps: usize) -> Self {
        self.program.lookahead = steps.max(LOOKAHEAD_MIN);
        self
    }

    /// Marks the program as too short for an adapter: handing it over takes longer than the collective, or does not
    /// relieve the host, so messages are used instead. All ranks must agree on this.
    pub fn short(mut self, short: bool) -> Self {
        self.program.short = short;
        self
    }

    /// Adds a step that begins when the steps in `after` have ended. Returns the step whose end is the end of this
    /// action.
    ///
    /// A message whose bytes lie in several runs gets scratch memory and a separate copy step, because the engine sends
    /// and receives only contiguous bytes.
    ///
    /// # Errors
    /// A rank or a span is out of range, a span does not consist of whole elements, two spans have different lengths or
    /// overlap, the action writes to the input, or `after` has a step that is not before this one.
    pub fn push(
        &mut self,
        action: StepAction,
        after: &[ProgramStepId],
    ) -> Result<ProgramStepId, StepError> {
        self.check(&action, after)
            .map_err(|sentence| self.misfit(sentence))?;
        let step = match action {
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
        }?;
        self.asked += 1;
        Ok(step)
    }

    /// Adds a step like [`push`](Self::push), whose spans count elements instead of bytes.
    ///
    /// # Errors
    /// The same as of [`push`](Self::push).
    ///
    /// # Panics
    /// Panics if a span has more bytes than a `usize` can count.
    pub fn push_elements(
        &mut self,
        action: StepAction,
        after: &[ProgramStepId],
    ) -> Result<ProgramStepId, StepError> {
        let size = self.program.elem.size;
        self.push(action.scaled(size), after)
    }

    /// Returns the program.
    #[must_use]
    pub fn finish(self) -> CollectiveProgram {
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
            number: self.asked,
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
        let steps = self.program.steps.len();
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
        } = self.program.lens;
        let room = match span.buffer {
            ProgramBuffer::Input => input,
            ProgramBuffer::Output => output,
            ProgramBuffer::Scratch => scratch,
        };
        if span.bounds().is_none_or(|bounds| bounds.end > room) {
            return Err(format!("`{name}` is {span:?} of a buffer of {room} bytes"));
        }
        let size = self.program.elem.size;
        let whole = |bytes: usize| bytes.is_multiple_of(size);
        let runs = span.is_contiguous() || whole(span.run) && whole(span.stride.unsigned_abs());
        if !(whole(span.start) && whole(span.len) && runs) {
            return Err(format!(
                "`{name}` is {span:?}, which is not made of elements of {size} bytes"
            ));
        }
        Ok(())
    }

    fn misfit(&self, sentence: String) -> StepError {
        StepError {
            step: self.asked as usize,
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
