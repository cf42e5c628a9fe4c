//! State of one program in progress.

use std::{collections::VecDeque, mem, sync::Arc};

use ripstop_fabric::driver::PayloadView;

use super::{RunCall, offloaded::OffloadedRun};
use crate::{
    error::ErrorKind,
    group::{CommRank, RankGroup, WorldRank},
    offload::{BufferSpan, CollectiveProgram, StepAction},
    ops::{ErasedReducer, OpInfo, PanicPayload, RunMemory},
    proto::collective_id::CollectiveId,
    proto::wire::{EagerHeader, OpId},
};

/// A program in progress.
pub(super) struct ProgramRun {
    pub(super) program: Arc<CollectiveProgram>,
    pub(super) memory: RunMemory,
    /// The reduction; `None` while a [job](StepExecutor::Job) uses it.
    pub(super) reducer: Option<ErasedReducer>,
    /// The operation that owns the two buffers.
    pub(super) buffers: OpId,
    /// Reason why the program fails.
    pub(super) failed: Option<ErrorKind>,
    pub(super) panic: Option<PanicPayload>,
    pub(super) execution: RunExecution,
    /// True once this rank has asked peers whether the run waits in vain.
    pub(super) asked: bool,
    /// True while the run's receives wait [directly](super::direct_recv).
    pub(super) waits_directly: bool,
    /// True if the run's messages may come by [collective slots](super::single_round).
    pub(super) uses_slots: bool,
    pub(super) info: OpInfo,
    pub(super) group: RankGroup,
    /// By step: the number of completions and beginnings it waits for, or [`BEGUN`] or [`OVER`].
    waits: Vec<u32>,
    /// First step that is not complete.
    first: usize,
    /// Steps that have begun and are not complete.
    in_flight: Vec<(usize, StepExecutor)>,
    /// Completed receives not yet reported to the future, if it watches them.
    pub(super) block_events: Option<VecDeque<usize>>,
}

/// How a program runs: its [execution](super::CollectiveExecution), and the state that this way needs.
pub(super) enum RunExecution {
    /// Steps begin in turns of the engine. This is also the state of a program whose call or future no longer carries it out, and
    /// of one by task lists that failed before it began.
    Messages,
    /// Steps begin in polls of the future.
    Polled {
        /// True if something has happened since the future was polled.
        has_news: bool,
    },
    /// The driver runs the steps from task lists.
    TaskLists(Box<OffloadedRun>),
}

/// Vectors that a program uses while it is in progress, reused by the next one.
#[derive(Default)]
pub(super) struct RunScratch {
    waits: Vec<u32>,
    in_flight: Vec<(usize, StepExecutor)>,
}

/// Executor of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepExecutor {
    Op(OpId),
    Job,
    /// A receive from this world rank that waits [directly](super::direct_recv).
    Wait(WorldRank),
}

/// Longer copies and reductions are done without a lock, as jobs. This takes a microsecond at most.
const WORK_MAX: usize = 4 << 10;

const BEGUN: u32 = u32::MAX - 1;
const OVER: u32 = u32::MAX;

impl RunExecution {
    pub(super) fn task_lists(&self) -> Option<&OffloadedRun> {
        match self {
            Self::TaskLists(offloaded) => Some(offloaded),
            Self::Messages | Self::Polled { .. } => None,
        }
    }

    pub(super) fn task_lists_mut(&mut self) -> Option<&mut OffloadedRun> {
        match self {
            Self::TaskLists(offloaded) => Some(offloaded),
            Self::Messages | Self::Polled { .. } => None,
        }
    }

    /// Lets the program advance without polls. Returns true if it needed them before.
    pub(super) fn unhost(&mut self) -> bool {
        let is_polled = matches!(self, Self::Polled { .. });
        if is_polled {
            *self = Self::Messages;
        }
        is_polled
    }
}

impl ProgramRun {
    pub(super) fn new(call: RunCall, buffers: OpId, memory: RunMemory, room: RunScratch) -> Self {
        let info = call.op_info();
        let RunCall { program, group, .. } = call;
        let RunScratch {
            mut waits,
            in_flight,
        } = room;
        waits.extend_from_slice(program.waits());
        Self {
            waits,
            program,
            memory,
            reducer: None,
            buffers,
            failed: None,
            panic: None,
            execution: RunExecution::Messages,
            asked: false,
            waits_directly: false,
            uses_slots: false,
            info,
            group,
            first: 0,
            in_flight,
            block_events: None,
        }
    }

    /// Takes the vectors that the next program can reuse.
    pub(super) fn take_room(&mut self) -> RunScratch {
        self.waits.clear();
        self.in_flight.clear();
        RunScratch {
            waits: mem::take(&mut self.waits),
            in_flight: mem::take(&mut self.in_flight),
        }
    }

    /// Does a copy or a reduction immediately, if it is short and runs no code of the application. Returns true if that was done.
    pub(super) fn work_now(&self, action: &StepAction) -> bool {
        match (action, &self.reducer) {
            (StepAction::Copy { from, into }, _) if from.len <= WORK_MAX => {
                self.memory.copy(from, into);
                true
            }
            (StepAction::Reduce { from, into, side }, Some(reducer))
                if from.len <= WORK_MAX && reducer.is_built_in() =>
            {
                self.memory.reduce(reducer, from, into, *side);
                true
            }
            _ => false,
        }
    }

    /// Returns the collective that this program carries out.
    pub(super) fn id(&self) -> CollectiveId {
        CollectiveId::new(self.info.ctx, self.info.tag.unwrap_or_default())
    }

    pub(super) fn group(&self) -> &RankGroup {
        &self.group
    }

    pub(super) fn world_of(&self, rank: CommRank) -> WorldRank {
        self.group.world_of(rank).expect("a rank of the group")
    }

    /// Returns the ranks from which it receives, once for each message.
    pub(super) fn sources(&self) -> impl Iterator<Item = CommRank> {
        self.program.actions().filter_map(|action| match *action {
            StepAction::Recv { from, .. } => Some(from),
            _ => None,
        })
    }

    /// Returns the header that the run's messages have in common.
    pub(super) fn eager(&self) -> EagerHeader {
        self.info.eager()
    }

    pub(super) fn sig(&self) -> u64 {
        self.info.sig
    }

    /// Returns the description of a message to or from this rank.
    pub(super) fn info_for_rank(&self, rank: CommRank) -> OpInfo {
        self.info_for_peer(self.world_of(rank))
    }

    /// Returns the same as [`info_for_rank`](Self::info_for_rank), for a world rank.
    pub(super) fn info_for_peer(&self, peer: WorldRank) -> OpInfo {
        let peer = Some(peer);
        OpInfo { peer, ..self.info }
    }

    /// Returns the bytes of a send.
    pub(super) fn bytes(&self, at: usize) -> &[u8] {
        match &self.program.step(at).action {
            StepAction::Send { from, .. } => self.memory.bytes(from),
            other => unreachable!("{other:?} sends nothing"),
        }
    }

    /// Copies a message to the place of a receive. Returns false if the lengths differ.
    pub(super) fn fill(&self, at: usize, pieces: &[PayloadView<'_>]) -> bool {
        match &self.program.step(at).action {
            StepAction::Recv { into, .. } => self.memory.fill(into, pieces),
            other => unreachable!("{other:?} receives nothing"),
        }
    }

    /// Reports completed receives from now on, including those that are complete already.
    pub(super) fn record_block_events(&mut self) {
        let is_landed = |&at: &usize| {
            let is_recv = matches!(self.program.step(at).action, StepAction::Recv { .. });
            is_recv && self.waits[at] == OVER
        };
        if self.block_events.is_none() {
            self.block_events = Some((0..self.program.len()).filter(is_landed).collect());
        }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.block_events.is_some()
    }

    /// Returns the first of the receives that wait directly for this peer.
    pub(super) fn waits_for_peer(&self, peer: WorldRank) -> Option<usize> {
        let of_peer = self
            .in_flight
            .iter()
            .filter(|(_, by)| *by == StepExecutor::Wait(peer));
        of_peer.map(|&(at, _)| at).min()
    }

    /// Returns the first of the receives that wait for a message of this peer.
    pub(super) fn awaits(&self, peer: WorldRank) -> Option<(usize, StepExecutor)> {
        let is_from = |&&(at, _): &&(usize, StepExecutor)| match self.program.step(at).action {
            StepAction::Recv { from, .. } => self.world_of(from) == peer,
            _ => false,
        };
        let of_peer = self.in_flight.iter().filter(is_from);
        of_peer.min_by_key(|(at, _)| *at).copied()
    }

    /// Marks the first `count` steps in single-round order as complete.
    pub(super) fn skip_single_round(&mut self, count: usize) {
        let program = Arc::clone(&self.program);
        let order = program
            .single_round()
            .map_or(&[][..], |single_round| &single_round.order);
        for &at in &order[..count] {
            self.began(at as usize);
            self.over(at as usize);
        }
    }

    /// Removes the receives that wait directly. Returns them in order, with the peers for which they wait.
    pub(super) fn take_waits(&mut self) -> Vec<(usize, WorldRank)> {
        let wait = |&(at, by): &(usize, StepExecutor)| match by {
            StepExecutor::Wait(peer) => Some((at, peer)),
            StepExecutor::Op(_) | StepExecutor::Job => None,
        };
        let mut waits: Vec<_> = self.in_flight.iter().filter_map(wait).collect();
        waits.sort_unstable();
        self.in_flight.retain(|flight| wait(flight).is_none());
        waits
    }

    /// Returns the location of a message's bytes.
    pub(super) fn row(&self, at: usize) -> BufferSpan {
        match self.program.step(at).action {
            StepAction::Send { from, .. } => from,
            StepAction::Recv { into, .. } => into,
            other => unreachable!("{other:?} is no message"),
        }
    }

    /// Returns true if this step is one of the few that may begin, counted from the first that is not complete.
    pub(super) fn is_near(&self, at: usize) -> bool {
        at < self.program.len() && self.program.is_in_lookahead(self.first, at)
    }

    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Returns true if all that the step waits for is complete and no step in progress conflicts with it. The second never
    /// happens in a program that was checked with its plan. In other programs it may give wrong results, but nothing worse.
    pub(super) fn may_begin(&self, at: usize) -> bool {
        if self.waits[at] != 0 {
            return false;
        }
        let action = &self.program.step(at).action;
        let has_means = self.reducer.is_some() || !matches!(action, StepAction::Reduce { .. });
        if self.in_flight.is_empty() {
            return has_means;
        }
        let other = |&(step, _): &(usize, StepExecutor)| &self.program.step(step).action;
        has_means
            && !self
                .in_flight
                .iter()
                .map(other)
                .any(|known| action.conflicts_with(known))
    }

    /// Returns the next receive to report: its source and where its message is. Receives whose bytes another step is changing are
    /// skipped.
    pub(super) fn next_block_event(&mut self) -> Option<(CommRank, BufferSpan)> {
        loop {
            let step = self.block_events.as_mut()?.pop_front()?;
            let StepAction::Recv { from, into } = self.program.step(step).action else {
                continue;
            };
            let writes = |&(at, _): &(usize, StepExecutor)| {
                let written = self.program.step(at).action.writes();
                written.is_some_and(|span| span.overlaps(&into))
            };
            if !self.in_flight.iter().any(writes) {
                return Some((from, into));
            }
        }
    }

    pub(super) fn began(&mut self, at: usize) {
        self.waits[at] = BEGUN;
        if let Some(next) = self.program.step(at).next {
            self.waits[next.index()] -= 1;
        }
    }

    /// Records what carries out a step that has begun.
    pub(super) fn flies(&mut self, at: usize, by: StepExecutor) {
        self.in_flight.push((at, by));
    }

    /// Removes a step from those that are being carried out.
    pub(super) fn landed(&mut self, at: usize) {
        let place = self.in_flight.iter().position(|&(step, _)| step == at);
        self.in_flight
            .swap_remove(place.expect("a step in flight completes once"));
    }

    pub(super) fn over(&mut self, at: usize) {
        self.waits[at] = OVER;
        for later in self.program.successors(at) {
            self.waits[later] -= 1;
        }
        while self.waits.get(self.first) == Some(&OVER) {
            self.first += 1;
        }
    }

    /// Returns true if nothing of the program is in progress and nothing more will begin.
    pub(super) fn is_over(&self) -> bool {
        let failed = self.failed.is_some();
        let over = match self.execution.task_lists() {
            Some(offloaded) => offloaded.is_over(failed),
            None => failed || self.first == self.program.len(),
        };
        over && self.in_flight.is_empty()
    }

    /// Returns the executors of the steps in progress.
    pub(super) fn flights(&self) -> Vec<StepExecutor> {
        self.in_flight.iter().map(|&(_, by)| by).collect()
    }

    /// Returns the operations of its messages in flight.
    pub(super) fn ops(&self) -> Vec<OpId> {
        let op = |&(_, by): &(usize, StepExecutor)| match by {
            StepExecutor::Op(op) => Some(op),
            StepExecutor::Job | StepExecutor::Wait(_) => None,
        };
        self.in_flight.iter().filter_map(op).collect()
    }

    /// Returns the first message for which it waits, preferring a receive.
    pub(super) fn waits_for(&self) -> Option<OpId> {
        let is_send = |at: usize| matches!(self.program.step(at).action, StepAction::Send { .. });
        let in_flight = self.in_flight.iter();
        let message = |&(at, by): &(usize, StepExecutor)| match by {
            StepExecutor::Op(op) => Some((is_send(at), at, op)),
            StepExecutor::Job | StepExecutor::Wait(_) => None,
        };
        let first = in_flight
            .filter_map(message)
            .min_by_key(|&(send, at, _)| (send, at));
        first.map(|(.., op)| op)
    }
}
