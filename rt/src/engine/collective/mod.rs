//! Programs: collectives that progress on any driver while the application computes.
//!
//! A program's messages are operations like all others, in areas of its memory and without a future. When one completes, the
//! program is notified. The notification is queued, because handlers must not call the driver. [`CollectiveProgress`] then
//! begins the steps that have waited for the message. So each thread that makes turns, of the application or of the agent,
//! carries programs on, and there is only one waker, for the end.
//!
//! Reductions run code of the application, and long copies take time. So both are [`ProgramJob`](super::ProgramJob)s: the thread
//! that made the turn runs them after it has released the lock, and then [reports](CollectivePart::note_job_over) them.
//!
//! A program keeps its buffers until all its messages and jobs are complete, even if it fails.

mod block_events;
mod borrowed_call;
mod call_descriptions;
mod collective_slots;
mod compare;
mod creation;
mod direct_recv;
mod disagreements;
mod end;
mod execute;
mod execution;
mod fail;
mod offloaded;
mod polled_baseline;
mod quiesce;
mod run;
mod single_round;
mod stall_answers;
mod task_list_slots;

use std::{
    collections::BTreeMap,
    mem,
    ops::{Deref, DerefMut},
    panic::Location,
    sync::Arc,
};

pub(crate) use self::{
    borrowed_call::BorrowedCall,
    end::RunOutcome,
    execution::{CollectiveExecution, ExecutionRequest},
    single_round::{SingleRoundPoll, SingleRoundProgress, SingleRoundRun},
};
pub(super) use self::{fail::AbortResult, offloaded::list_max, single_round::LeftSingleRound};
use ripstop_fabric::driver::{DownCause, Driver};

use self::{
    block_events::BlockCallSites,
    run::{ProgramRun, RunExecution, RunScratch},
    task_list_slots::{TaskListSlot, TaskListSlotId},
};
use super::{PointToPoint, point_to_point::MessageTransmitter, stall_probe::StallProbe};
use crate::{
    buffer::{RecvBuf, SendBuf, TypeSig},
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    offload::{BufferLens, CollectiveProgram},
    ops::{BufferArea, ErasedReducer, OpInfo, OpTicket, PanicPayload, ProgramBuffers, RunMemory},
    proto::collective_id::CollectiveId,
    proto::wire::{OpId, ProgramHeader},
};

/// Maximum number of completed programs whose memory is kept for the next ones. Usually no more are in flight at a time.
const SPARE_MAX: usize = 8;

/// Part of the signature of programs that run as task lists.
const BY_LISTS: u64 = 0x11_575;

/// The programs of one runtime, and the records of collectives on its communicators.
///
/// Allocates nothing before the first program, so that an idle rank of a large simulation takes little memory.
#[derive(Default)]
pub(super) struct LazyProgramTable(Option<Box<ProgramTable>>);

pub(super) struct ProgramTable {
    runs: Vec<Option<Box<ProgramRun>>>,
    free: Vec<u32>,
    /// Completed programs whose memory is reused.
    #[expect(clippy::vec_box, reason = "they come from boxes and go to boxes")]
    spare: Vec<Box<ProgramRun>>,
    /// Program and step of each message, by the slot of its operation.
    messages: Vec<ProgramMessage>,
    descriptions: call_descriptions::CallDescriptions,
    compared: compare::CallComparisons,
    /// Panics of reductions, for the futures of their programs.
    panics: Vec<(OpId, PanicPayload)>,
    /// Timer that [asks](super::stall_probe) the peers of a stalled program.
    pub(super) stall_probe: Option<StallProbe>,
    /// Shared resources of programs that run as task lists, by context and slot number.
    slots: BTreeMap<TaskListSlotId, TaskListSlot>,
    /// Serial number of the last program that ran as task lists.
    serial: u32,
    block_call_sites: BlockCallSites,
    /// Programs in flight whose messages may arrive in collective slots.
    slot_waiters: usize,
    /// Events of peers that must wait until the collective slots were checked.
    pub(super) deferred_events: Vec<DeferredPeerEvent>,
    /// Scratch of single-round runs.
    scratch: Vec<u128>,
    /// Single-round runs that completed immediately.
    single_round_count: u32,
    /// Turns in which programs checked collective slots.
    slot_turns: u32,
}

/// The programs, with all that they use of the rest of the engine.
pub(crate) struct CollectivePart<'a> {
    pub(super) programs: &'a mut LazyProgramTable,
    pub(super) p2p: &'a mut PointToPoint,
}

/// The programs with the driver, which carries their messages and their task lists.
pub(crate) struct CollectiveProgress<'a> {
    pub(super) driver: &'a mut dyn Driver,
    pub(super) part: CollectivePart<'a>,
}

impl CollectiveProgress<'_> {
    /// Returns what posts messages.
    #[inline]
    fn transmitter(&mut self) -> MessageTransmitter<'_> {
        MessageTransmitter {
            driver: &mut *self.driver,
            p2p: &mut *self.part.p2p,
        }
    }
}

/// A peer's last event. It is handled after the peer's messages in collective slots, because those were sent before it.
pub(super) enum DeferredPeerEvent {
    Down(WorldRank, DownCause),
    Over(WorldRank, ProgramHeader),
}

#[derive(Clone, Copy, Default)]
struct ProgramMessage {
    run: u32,
    step: u32,
}

/// Parameters of a collective call.
#[derive(Debug)]
pub(crate) struct RunCall {
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
    /// Source line of the call.
    pub(crate) at: &'static Location<'static>,
    pub(crate) group: RankGroup,
    pub(crate) program: Arc<CollectiveProgram>,
    pub(crate) reducer: Option<ErasedReducer>,
    /// The caller's error, if it is known before the program begins.
    pub(crate) refused: Option<String>,
    /// How the program is to run.
    pub(crate) request: ExecutionRequest,
    /// True if the application may wait for single blocks of the result.
    pub(crate) with_block_events: bool,
}

/// The claim of a future to a program in flight and to its two buffers.
pub(crate) struct RunTicket<I, O> {
    pub(crate) buffers: OpTicket<(I, O)>,
    /// Index of the program, valid while it is in flight.
    pub(in crate::engine) run: u32,
}

impl Deref for LazyProgramTable {
    type Target = ProgramTable;

    #[inline]
    fn deref(&self) -> &ProgramTable {
        self.0.as_deref().unwrap_or(ProgramTable::EMPTY)
    }
}

impl DerefMut for LazyProgramTable {
    #[inline]
    fn deref_mut(&mut self) -> &mut ProgramTable {
        self.0.get_or_insert_with(first_state)
    }
}

#[cold]
fn first_state() -> Box<ProgramTable> {
    Box::new(ProgramTable::new())
}

impl ProgramTable {
    const EMPTY: &Self = &Self::new();

    const fn new() -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            messages: Vec::new(),
            descriptions: call_descriptions::CallDescriptions::new(),
            compared: compare::CallComparisons::new(),
            panics: Vec::new(),
            stall_probe: None,
            slots: BTreeMap::new(),
            serial: 0,
            block_call_sites: BlockCallSites::new(),
            slot_waiters: 0,
            deferred_events: Vec::new(),
            scratch: Vec::new(),
            single_round_count: 0,
            slot_turns: 0,
        }
    }

    /// Returns true if any program is in flight.
    pub(super) fn any(&self) -> bool {
        self.runs.len() > self.free.len()
    }

    /// Returns true if messages of programs in flight may arrive in collective slots.
    #[inline]
    pub(super) fn has_slot_waiters(&self) -> bool {
        self.slot_waiters > 0
    }

    /// Returns scratch memory for the next program. Reuses that of a completed program if it is large enough.
    ///
    /// # Errors
    /// There is not enough memory.
    fn scratch(&mut self, bytes: usize, align: usize) -> Result<Vec<u128>, ErrorKind> {
        let last = self.spare.last_mut();
        let left = last.map_or_else(Vec::new, |run| run.memory.take_scratch());
        RunMemory::scratch(left, bytes, align).ok_or_else(|| {
            ErrorKind::InvalidArgument(format!("no memory for {bytes} bytes of scratch"))
        })
    }

    /// Adds a program, in the memory of a completed one if there is any. Returns its index.
    fn add(&mut self, run: impl FnOnce(RunScratch) -> ProgramRun) -> u32 {
        let run = Some(match self.spare.pop() {
            Some(mut old) => {
                *old = run(old.take_room());
                old
            }
            None => Box::new(run(RunScratch::default())),
        });
        if let Some(index) = self.free.pop() {
            self.runs[index as usize] = run;
            return index;
        }
        self.runs.push(run);
        u32::try_from(self.runs.len() - 1).expect("fewer than 2^32 programs in flight")
    }

    /// Removes a completed program, and keeps its memory. It holds no value of the application any more.
    fn remove(&mut self, index: u32) {
        let run = self.runs[index as usize].take();
        self.slot_waiters -= usize::from(run.as_ref().is_some_and(|run| run.uses_slots));
        self.free.push(index);
        if self.spare.len() < SPARE_MAX {
            self.spare.extend(run);
        }
    }

    fn get(&mut self, index: u32) -> Option<&mut ProgramRun> {
        self.runs.get_mut(index as usize)?.as_deref_mut()
    }

    fn indices(&self) -> Vec<u32> {
        let runs = (0..).zip(&self.runs);
        runs.filter_map(|(index, run)| run.as_ref().map(|_| index))
            .collect()
    }

    /// Shrinks the tables that are indexed by operation slots to `ops` slots.
    pub(in crate::engine) fn shrink(&mut self, ops: usize) {
        self.messages.truncate(ops);
        self.messages.shrink_to_fit();
    }

    fn set_message(&mut self, op: OpId, part: ProgramMessage) {
        let slot = op.slot as usize;
        if self.messages.len() <= slot {
            self.messages.resize(slot + 1, ProgramMessage::default());
        }
        self.messages[slot] = part;
    }
}

impl CollectivePart<'_> {
    /// Begins a program, none of whose steps begin yet.
    pub(in crate::engine) fn begin_run<I: SendBuf, O: RecvBuf>(
        &mut self,
        call: RunCall,
        buffers: ProgramBuffers<I, O>,
        over: Option<usize>,
    ) -> RunTicket<I, O> {
        let (buffers, areas) = self.p2p.common.ops.hold_pair(call.op_info(), buffers);
        self.trace_run(&call, buffers.op);
        let run = self.begin(call, buffers.op, areas, over);
        RunTicket { buffers, run }
    }

    fn begin(
        &mut self,
        mut call: RunCall,
        buffers: OpId,
        areas: [BufferArea; 2],
        over: Option<usize>,
    ) -> u32 {
        // The caller's own mistake comes first: it is a better explanation than an error that a peer reported.
        let wrong = call.wrong(areas);
        let facts = call.borrowed().execution_facts(&self.p2p.common, false);
        let execution = CollectiveExecution::choose(call.request, facts, || false);
        if execution == CollectiveExecution::TaskLists {
            // Ranks that run the same program over messages must not match ranks that run it as task lists.
            call.sig = TypeSig(call.sig).and(BY_LISTS).0;
        }
        let (lens, align) = (call.program.lens(), call.program.elem().align);
        let fine = wrong
            .or_else(|| self.begin_error(&call.borrowed(), over.is_some()))
            .map_or(Ok(()), Err);
        let scratch = fine.and_then(|()| self.programs.scratch(lens.scratch, align));
        let (lens, scratch, wrong) = match scratch {
            Ok(scratch) => (lens, scratch, None),
            Err(wrong) => (BufferLens::default(), Vec::new(), Some(wrong)),
        };
        let (id, sig, reducer) = (call.id(), call.sig, call.reducer.take());
        if self.p2p.common.calls.any_asked() {
            self.p2p.common.calls.forget_asked(id);
        }
        let directly = self.may_wait_directly()
            && call.program.recv_max() <= self.p2p.common.paths.eager_max_of_all();
        let uses_slots = execution.uses_slots(facts);
        let execution = match execution {
            CollectiveExecution::TaskLists if wrong.is_none() => {
                self.p2p.common.awaited_peers_changed = true;
                let tells =
                    call.with_block_events && self.programs.block_call_sites.may_watch(call.at);
                RunExecution::TaskLists(self.programs.list(id, call.group.len(), tells))
            }
            CollectiveExecution::Polled => RunExecution::Polled { has_news: false },
            CollectiveExecution::AtCall
            | CollectiveExecution::SingleRound
            | CollectiveExecution::Messages
            | CollectiveExecution::TaskLists => RunExecution::Messages,
        };
        self.programs.slot_waiters += usize::from(uses_slots);
        let index = self.programs.add(|room| {
            let memory = RunMemory::new(areas, lens, align, scratch);
            let mut run = ProgramRun::new(call, buffers, memory, room);
            (run.reducer, run.waits_directly, run.uses_slots) = (reducer, directly, uses_slots);
            run.execution = execution;
            run.skip_single_round(over.unwrap_or(0));
            run
        });
        self.p2p.common.calls.begin(id, sig, index);
        if let Some(kind) = wrong {
            self.fail(index, kind);
        }
        index
    }
}

impl RunCall {
    /// Returns a call of `program` with empty fields, for the caller to fill.
    pub(crate) fn of(program: Arc<CollectiveProgram>) -> Self {
        Self {
            ctx: 0,
            tag: 0,
            sig: 0,
            at: Location::caller(),
            group: RankGroup::First(0),
            program,
            reducer: None,
            refused: None,
            request: ExecutionRequest::Messages,
            with_block_events: false,
        }
    }

    /// Takes the call out, and leaves an empty one.
    fn leave(&mut self) -> Self {
        mem::replace(self, Self::of(Arc::clone(CollectiveProgram::nothing())))
    }

    /// Returns true if the call was taken out.
    pub(crate) fn is_left(&self) -> bool {
        Arc::ptr_eq(&self.program, CollectiveProgram::nothing())
    }

    /// Returns the collective that is called.
    pub(super) const fn id(&self) -> CollectiveId {
        CollectiveId::new(self.ctx, self.tag)
    }

    fn op_info(&self) -> OpInfo {
        OpInfo {
            ctx: self.ctx,
            peer: None,
            tag: Some(self.tag),
            sig: self.sig,
            elem: 1,
            synchronous: false,
            probe: false,
            at: self.at,
        }
    }

    /// Returns the caller's error, if there is one. `areas` are those of the two buffers.
    fn wrong(&self, areas: [BufferArea; 2]) -> Option<ErrorKind> {
        let sentence = match &self.refused {
            Some(sentence) => sentence.clone(),
            None => self.borrowed().misfit(areas)?,
        };
        Some(ErrorKind::InvalidArgument(sentence))
    }
}
