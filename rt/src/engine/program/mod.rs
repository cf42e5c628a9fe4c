//! Programs: collectives that progress on any driver while the application computes.
//!
//! A program's messages are operations like all others, in areas of its memory and without a future. When one completes, the
//! program is notified. The notification is queued, because handlers must not call the driver. [`Engine::flush`] then begins the
//! steps that have waited for the message. So each thread that makes turns, of the application or of the agent, carries programs
//! on, and there is only one waker, for the end.
//!
//! Reductions run code of the application, and long copies take time. So both are [`Job`]s: the thread that made the turn runs
//! them after it has released the lock, and then [reports](Engine::done) them.
//!
//! A program keeps its buffers until all its messages and jobs are complete, even if it fails.

mod creation;
mod collective_registry;
mod execute;
mod collective_slots;
mod compare;
mod direct_recv;
mod stall_probe;
mod end;
mod fail;
mod polled_baseline;
mod block_events;
mod offloaded;
mod single_round;
mod run;
mod task_list_slots;
mod quiesce;
mod call_descriptions;

use std::{
    collections::BTreeMap,
    mem,
    ops::{Deref, DerefMut},
    panic::Location,
    sync::Arc,
};

pub(super) use self::stall_probe::KEY as DOUBT;
pub(super) use self::offloaded::{Heard, is_token, list_max};
pub(crate) use self::{
    end::Taken,
    single_round::{Look, QuickRun},
};
use ripstop_fabric::driver::Down;

use self::{
    collective_registry::Calls,
    block_events::Lines,
    run::{Room, Run},
    task_list_slots::{Lot, TaskListSlotId},
};
use ripstop_fabric::driver::Token;

use super::{Core, Engine};
use crate::{
    buffer::{RecvBuf, SendBuf, TypeSig},
    error::ErrorKind,
    group::{Group, WorldRank},
    offload::{Lens, Program},
    ops::{About, Area, Memory, Pair, Panic, Reducer, Ticket, Work},
    proto::collective_id::CollectiveId,
    proto::wire::{Ask, OpId},
};

/// Maximum number of completed programs whose memory is kept for the next ones. Usually no more are in flight at a time.
const SPARE_MAX: usize = 8;

/// Part of the signature of programs that run as task lists.
const BY_LISTS: u64 = 0x11_575;

/// The programs of one runtime, and the records of collectives on its communicators.
pub(super) struct Programs {
    /// This rank.
    me: WorldRank,
    /// True if the driver runs task lists.
    lists: bool,
    /// `None` until the first program, so that an idle rank of a large simulation takes little memory.
    state: Option<Box<State>>,
}

pub(super) struct State {
    runs: Vec<Option<Box<Run>>>,
    free: Vec<u32>,
    /// Completed programs whose memory is reused.
    #[expect(clippy::vec_box, reason = "they come from boxes and go to boxes")]
    spare: Vec<Box<Run>>,
    /// Program and step of each message, by the slot of its operation.
    parts: Vec<Part>,
    told: Vec<Told>,
    calls: Calls,
    words: call_descriptions::Known,
    compared: compare::Comparisons,
    /// Panics of reductions, for the futures of their programs.
    panics: Vec<(OpId, Panic)>,
    /// Timer that [asks](doubt) the peers of a stalled program.
    doubt: Option<stall_probe::Doubt>,
    /// Shared resources of programs that run as task lists, by context and slot number.
    slots: BTreeMap<TaskListSlotId, Lot>,
    /// Serial number of the last program that ran as task lists.
    serial: u32,
    lines: Lines,
    /// Programs in flight whose messages may arrive in cells.
    looking: usize,
    /// News from peers that must wait until the cells were checked.
    news: Vec<News>,
    /// Scratch of quick programs.
    scratch: Vec<u128>,
    /// Quick programs that completed immediately.
    quick_count: u32,
    /// Turns in which programs checked cells.
    looked: u32,
}

/// A peer's last news. It is handled after the peer's messages in cells, because those were sent before it.
pub(super) enum News {
    Down(WorldRank, Down),
    Over(WorldRank, Ask),
}

#[derive(Clone, Copy, Default)]
struct Part {
    run: u32,
    step: u32,
}

/// A notification to a program.
enum Told {
    /// A message of a program is complete.
    Part(OpId),
    /// The state of this program has changed.
    Run(u32),
    /// The driver reports an event of a program's task lists.
    List(Token, Heard),
    /// A peer has sent its last calls on this communicator.
    LastCalls(u32),
}

/// Parameters of a collective call.
#[derive(Debug)]
pub(crate) struct RunCall {
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
    /// Source line of the call.
    pub(crate) at: &'static Location<'static>,
    pub(crate) group: Group,
    pub(crate) program: Arc<Program>,
    pub(crate) reducer: Option<Reducer>,
    /// The caller's error, if it is known before the program begins.
    pub(crate) refused: Option<String>,
    /// True if the program runs as task lists when the driver supports them.
    pub(crate) offload: bool,
    /// True if the application may wait for single blocks of the result.
    pub(crate) by_blocks: bool,
}

/// The claim of a future to a program in flight and to its two buffers.
pub(crate) struct RunTicket<I, O> {
    pub(crate) buffers: Ticket<(I, O)>,
    /// Index of the program, valid while it is in flight.
    run: u32,
}

/// A step of a program that must run with no lock held.
pub(crate) struct Job {
    run: u32,
    step: usize,
    work: Work,
    panic: Option<Panic>,
}

impl Job {
    /// Runs the step.
    pub(crate) fn run(&mut self) {
        self.panic = self.work.run().err();
    }
}

impl Programs {
    pub(super) fn new(me: WorldRank, lists: bool) -> Self {
        Self {
            me,
            lists,
            state: None,
        }
    }

    /// This rank.
    pub(super) fn me(&self) -> WorldRank {
        self.me
    }
}

impl Deref for Programs {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.state.as_deref().unwrap_or(State::EMPTY)
    }
}

impl DerefMut for Programs {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        self.state.get_or_insert_with(first_state)
    }
}

#[cold]
fn first_state() -> Box<State> {
    Box::new(State::new())
}

impl State {
    const EMPTY: &Self = &Self::new();

    const fn new() -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            parts: Vec::new(),
            told: Vec::new(),
            calls: Calls::new(),
            words: call_descriptions::Known::new(),
            compared: compare::Comparisons::new(),
            panics: Vec::new(),
            doubt: None,
            slots: BTreeMap::new(),
            serial: 0,
            lines: Lines::new(),
            looking: 0,
            news: Vec::new(),
            scratch: Vec::new(),
            quick_count: 0,
            looked: 0,
        }
    }

    /// Returns true if any program is in flight.
    pub(super) fn any(&self) -> bool {
        self.runs.len() > self.free.len()
    }

    /// Returns true if messages of programs in flight may arrive in cells.
    #[inline]
    pub(super) fn are_looking(&self) -> bool {
        self.looking > 0
    }

    #[inline]
    pub(super) fn are_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// Notifies a program that one of its messages is complete.
    pub(super) fn tell(&mut self, op: OpId) {
        self.told.push(Told::Part(op));
    }

    /// Notifies a program of an event of its task lists.
    pub(super) fn hear(&mut self, token: Token, heard: Heard) {
        self.told.push(Told::List(token, heard));
    }

    /// Returns scratch memory for the next program. Reuses that of a completed program if it is large enough.
    ///
    /// # Errors
    /// There is not enough memory.
    fn scratch(&mut self, bytes: usize, align: usize) -> Result<Vec<u128>, ErrorKind> {
        let last = self.spare.last_mut();
        let left = last.map_or_else(Vec::new, |run| run.memory.take_scratch());
        Memory::scratch(left, bytes, align).ok_or_else(|| {
            ErrorKind::InvalidArgument(format!("no memory for {bytes} bytes of scratch"))
        })
    }

    fn stir(&mut self, run: u32) {
        self.told.push(Told::Run(run));
    }

    /// Adds a program, in the memory of a completed one if there is any. Returns its index.
    fn add(&mut self, run: impl FnOnce(Room) -> Run) -> u32 {
        let run = Some(match self.spare.pop() {
            Some(mut old) => {
                *old = run(old.take_room());
                old
            }
            None => Box::new(run(Room::default())),
        });
        if let Some(index) = self.free.pop() {
            self.runs[index as usize] = run;
            return index;
        }
        self.runs.push(run);
        u32::try_from(self.runs.len() - 1).expect("fewer than 2^32 programs under way")
    }

    /// Removes a completed program, and keeps its memory. It holds no value of the application any more.
    fn remove(&mut self, index: u32) {
        let run = self.runs[index as usize].take();
        self.looking -= usize::from(run.as_ref().is_some_and(|run| run.looks));
        self.free.push(index);
        if self.spare.len() < SPARE_MAX {
            self.spare.extend(run);
        }
    }

    fn get(&mut self, index: u32) -> Option<&mut Run> {
        self.runs.get_mut(index as usize)?.as_deref_mut()
    }

    fn indices(&self) -> Vec<u32> {
        let runs = (0..).zip(&self.runs);
        runs.filter_map(|(index, run)| run.as_ref().map(|_| index))
            .collect()
    }

    /// Shrinks the tables that are indexed by operation slots to `ops` slots.
    pub(in crate::engine) fn shrink(&mut self, ops: usize) {
        self.parts.truncate(ops);
        self.parts.shrink_to_fit();
        self.told.shrink_to(ops);
    }

    fn part(&mut self, op: OpId, part: Part) {
        let slot = op.slot as usize;
        if self.parts.len() <= slot {
            self.parts.resize(slot + 1, Part::default());
        }
        self.parts[slot] = part;
    }
}

impl Engine {
    /// Begins a program, which then progresses by itself. If `over` is given, the program has already begun by cells, and that
    /// number of steps in quick order is complete.
    pub(crate) fn run<I: SendBuf, O: RecvBuf>(
        &mut self,
        call: RunCall,
        buffers: Pair<I, O>,
        over: Option<usize>,
    ) -> RunTicket<I, O> {
        self.meet(&call.group, &call.program);
        let (buffers, areas) = self.core.ops.hold_pair(call.about(), buffers);
        let run = self.core.begin(call, buffers.op, areas, over);
        if self.core.ended {
            self.core.end_programs();
        } else {
            self.go_on(run);
        }
        self.flush();
        RunTicket { buffers, run }
    }
}

impl Core {
    fn begin(
        &mut self,
        mut call: RunCall,
        buffers: OpId,
        areas: [Area; 2],
        over: Option<usize>,
    ) -> u32 {
        // The caller's own mistake comes first: it is a better explanation than an error that a peer reported.
        let wrong = call.wrong(areas);
        let offload = call.offload && self.programs.lists;
        if offload {
            // Ranks that run the same program over messages must not match ranks that run it as task lists.
            call.sig = TypeSig(call.sig).and(BY_LISTS).0;
        }
        let (lens, align) = (call.program.lens(), call.program.elem().align);
        let fine = wrong
            .or_else(|| self.doomed(&call, over.is_some()))
            .map_or(Ok(()), Err);
        let scratch = fine.and_then(|()| self.programs.scratch(lens.scratch, align));
        let (lens, scratch, wrong) = match scratch {
            Ok(scratch) => (lens, scratch, None),
            Err(wrong) => (Lens::default(), Vec::new(), Some(wrong)),
        };
        let (key, sig, reducer) = (
            CollectiveId::new(call.ctx, call.tag),
            call.sig,
            call.reducer.take(),
        );
        if self.programs.calls.any_asked() {
            self.programs.calls.forget_asked(key);
        }
        let directly =
            self.may_wait_directly() && call.program.recv_max() <= self.paths.eager_max_of_all();
        let looks = self.may_look(&call);
        let tells = offload && call.by_blocks && self.programs.lines.may_watch(call.at);
        self.programs.looking += usize::from(looks);
        let index = self.programs.add(|room| {
            let memory = Memory::new(areas, lens, align, scratch);
            let mut run = Run::new(call, buffers, memory, room);
            (run.reducer, run.waits_directly, run.looks) = (reducer, directly, looks);
            run.skip_quick(over.unwrap_or(0));
            run
        });
        if offload && wrong.is_none() {
            self.waits = true;
            let State { runs, .. } = &*self.programs;
            let size = runs[index as usize]
                .as_ref()
                .map_or(1, |run| run.group().len());
            let listed = self.programs.list(key, size, tells);
            if let Some(run) = self.programs.get(index) {
                run.listed = Some(listed);
            }
        }
        self.programs.calls.begin(key, sig, index);
        if let Some(kind) = wrong {
            self.fail(index, kind);
        }
        index
    }
}

impl RunCall {
    /// Returns a call of `program` with empty fields, for the caller to fill.
    pub(crate) fn of(program: Arc<Program>) -> Self {
        Self {
            ctx: 0,
            tag: 0,
            sig: 0,
            at: Location::caller(),
            group: Group::First(0),
            program,
            reducer: None,
            refused: None,
            offload: false,
            by_blocks: false,
        }
    }

    /// Takes the call out, and leaves an empty one.
    fn leave(&mut self) -> Self {
        mem::replace(self, Self::of(Arc::clone(Program::nothing())))
    }

    /// Returns true if the call was taken out.
    pub(crate) fn is_left(&self) -> bool {
        Arc::ptr_eq(&self.program, Program::nothing())
    }

    fn about(&self) -> About {
        About {
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
    #[inline]
    fn wrong(&self, areas: [Area; 2]) -> Option<ErrorKind> {
        let bytes = areas.map(|area| area.len);
        let Lens { input, output, .. } = self.program.lens();
        let (ranks, size) = (self.program.ranks(), self.group.len());
        let elem = self.program.elem().size;
        let sentence = if let Some(sentence) = &self.refused {
            sentence.clone()
        } else if ranks != size {
            format!("`program` is for {ranks} ranks, and the communicator has {size}")
        } else if bytes[0] < input {
            let (has, needed) = (bytes[0] / elem, input / elem);
            format!("`send` has {has} elements, and {needed} are needed")
        } else if bytes[1] < output {
            let (has, needed) = (bytes[1] / elem, output / elem);
            format!("`recv` has room for {has} elements, and {needed} are needed")
        } else if !self.reducer_fits() {
            "`reducer` is not for the elements of the program".to_owned()
        } else if self.program.reduces() && !self.is_aligned(areas) {
            "a buffer is not aligned for the elements of the reduction".to_owned()
        } else {
            return None;
        };
        Some(ErrorKind::InvalidArgument(sentence))
    }

    /// Returns true if both buffers are aligned for the elements of a reduction.
    fn is_aligned(&self, [input, output]: [Area; 2]) -> bool {
        let (
            Lens {
                input: reads,
                output: fills,
                ..
            },
            align,
        ) = (self.program.lens(), self.program.elem().align);
        let aligned =
            |area: Area, len: usize| len == 0 || area.start.addr().get().is_multiple_of(align);
        aligned(input, reads) && aligned(output, fills)
    }

    fn reducer_fits(&self) -> bool {
        let fits = |reducer: &Reducer| reducer.fits(self.program.elem());
        !self.program.reduces() || self.reducer.as_ref().is_some_and(fits)
    }
}
