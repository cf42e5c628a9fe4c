//! The slots of a communicator, which its programs by task lists use in turn.
//!
//! A slot has landing slots and counters. Its programs use them one after the other, in the order in which all ranks begin the
//! programs.

use std::{
    collections::{VecDeque, btree_map::Entry},
    io,
    ops::RangeInclusive,
    sync::Arc,
};

use ripstop_fabric::driver::{Driver, LocalRange};

use super::{CollectivePart, CollectiveProgress};
use super::{
    ProgramRun, ProgramTable,
    offloaded::{OffloadedRun, list_max},
};
use crate::{
    engine::{OneSidedCommand, commons::program_events::TOKENS},
    group::{RankGroup, WorldRank},
    offload::{
        BufferLens,
        lower::{AdapterMeans, AdapterReductions, ProgramLowering},
        task_lists::{OffloadMemory, OffloadSlot, PostedProgram},
    },
    ops::ErasedReducer,
    proto::collective_id::CollectiveId,
};

/// Names a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct TaskListSlotId {
    /// Context of the communicator's collectives.
    pub(super) context: u32,
    /// Number of the slot among those of the communicator.
    pub(super) nth: u32,
}

impl TaskListSlotId {
    /// Returns the number under which its ranks name the slot's counters to their drivers.
    fn region_name(self) -> u64 {
        u64::from(self.context) << 32 | u64::from(self.nth) << 1
    }

    /// Returns the slot of a collective of `size` ranks.
    pub(super) const fn of(id: CollectiveId, size: usize) -> Self {
        Self {
            context: id.context,
            nth: id.sequence % slots_of(size),
        }
    }

    /// Returns a range with all slots of a communicator.
    const fn all_of(context: u32) -> RangeInclusive<Self> {
        let (first, last) = (0, u32::MAX);
        Self {
            context,
            nth: first,
        }..=Self { context, nth: last }
    }
}

/// A slot, and the programs that use it in turn.
pub(in crate::engine) struct TaskListSlot {
    pub(super) slot: OffloadSlot,
    running: Option<u32>,
    /// Programs that wait for the slot, in order.
    waiting: VecDeque<u32>,
    /// True once the last handle of the communicator was dropped.
    left: bool,
}

/// Returns the number of programs of a communicator that may be in progress at the same time. Large ones get fewer, to save
/// memory.
pub(super) const fn slots_of(size: usize) -> u32 {
    if size <= 512 { 4 } else { 2 }
}

/// Most counters of one program for blocks that are reported as they land. If there are more blocks, several share a counter.
/// Each counter also takes a task, and adapters are short of both.
const TOLD_MAX: usize = 64;

impl ProgramTable {
    /// Returns the bytes of all landing slots.
    pub(in crate::engine) fn landing_bytes(&self) -> usize {
        self.slots.values().map(|entry| entry.slot.bytes()).sum()
    }
}

impl CollectiveProgress<'_> {
    /// Begins the program if it is its turn for the slot. Returns false if it has to wait.
    pub(super) fn take_slot(&mut self, index: u32, run: &mut ProgramRun) -> io::Result<bool> {
        let me = self.part.p2p.common.me;
        let Some(offloaded) = run.execution.task_lists_mut() else {
            return Ok(false);
        };
        let entry = match self.part.programs.slots.entry(offloaded.slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (name, group) = (offloaded.slot.region_name(), run.group.clone());
                new.insert(TaskListSlot::new(&mut *self.driver, group, me, name)?)
            }
        };
        if *entry.running.get_or_insert(index) != index {
            if !entry.waiting.contains(&index) {
                entry.waiting.push_back(index);
            }
            return Ok(false);
        }
        let program = Arc::clone(&run.program);
        let limits = self.driver.task_lists().map(|lists| lists.list_limits());
        let combining = AdapterReductions {
            how: run.reducer.as_ref().and_then(ErasedReducer::combination),
            max: limits.unwrap_or_default().combine_max,
        };
        let lanes = &mut entry.slot.lanes;
        let list_max = list_max(&mut *self.driver);
        let means = AdapterMeans {
            combining,
            list_max,
            recv_groups_max: if offloaded.tells {
                TOLD_MAX.min(list_max)
            } else {
                0
            },
        };
        let lowering = ProgramLowering::new(program, means, lanes);
        let lens = run.program.lens();
        let memory = memory_of(&mut *self.driver, lens, run.memory.ranges());
        let keys = memory.keys();
        if let Some(len) = keyless(&memory, lens) {
            keys.for_each(|key| self.part.p2p.common.exposed.withdraw(key));
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "the adapter gives no key to {len} bytes that the peers of a collective write: raise its limits \
                     (`ulimit -l`, and those that `ripstop info --settings` lists), or set RIPSTOP_COLLECTIVES=messages \
                     on all ranks"
                ),
            ));
        }
        let token = TOKENS | u64::from(offloaded.serial) << 32;
        let begun = PostedProgram::begin(
            &mut *self.driver,
            &mut entry.slot,
            lowering,
            memory,
            run.info.sig,
            token,
            &mut offloaded.duties,
        );
        if begun.is_err() {
            // Withdraw the keys, because the memory is returned without the program having begun.
            keys.for_each(|key| self.part.p2p.common.exposed.withdraw(key));
        }
        let mut posted = begun?;
        if run.block_events.is_some() {
            posted.report_receives(&mut *self.driver);
        }
        offloaded.posted = Some(posted);
        self.part.count_for(offloaded);
        Ok(true)
    }
}

impl CollectivePart<'_> {
    /// Gives the slot of a program that has ended to the next one, and closes the program's memory.
    pub(super) fn leave_slot(
        &mut self,
        index: u32,
        id: CollectiveId,
        sig: u64,
        offloaded: &mut OffloadedRun,
    ) {
        self.report_quiesced(id, sig, offloaded);
        let keys = offloaded.posted.iter().flat_map(PostedProgram::keys);
        keys.for_each(|key| self.p2p.common.exposed.withdraw(key));
        let Some(entry) = self.programs.slots.get_mut(&offloaded.slot) else {
            return;
        };
        if offloaded.over
            && offloaded.ending.is_none()
            && let Some(posted) = offloaded.posted.take()
        {
            entry.slot.keep_counters(posted);
        }
        entry.waiting.retain(|waiting| *waiting != index);
        if entry.running == Some(index) {
            entry.running = entry.waiting.pop_front();
        }
        match entry.running {
            Some(next) => self.p2p.common.mark_dirty(next),
            None if entry.left => self.forget_slots(offloaded.slot.context),
            None => {}
        }
    }

    /// Frees the slots of a communicator whose last handle was dropped, as soon as no program runs there. The slots of the world
    /// stay, because another handle may be made later, and a rank that waits for this one is notified at the end.
    pub(in crate::engine) fn forget_slots(&mut self, ctx: u32) {
        if ctx <= 1 || self.programs.slots.is_empty() {
            return;
        }
        let slots = &mut self.programs.slots;
        for entry in slots.range_mut(TaskListSlotId::all_of(ctx)) {
            entry.1.left = true;
        }
        let gone = slots.extract_if(TaskListSlotId::all_of(ctx), |_, entry| {
            entry.running.is_none()
        });
        for (key, entry) in gone.collect::<Vec<_>>() {
            self.turn_down(key, &entry);
            self.unname(&entry);
        }
    }

    /// Removes the slot's names, so that peers no longer find it.
    pub(super) fn unname(&mut self, entry: &TaskListSlot) {
        let unname = |name| OneSidedCommand::Unname { name };
        self.p2p
            .common
            .commands
            .extend(entry.slot.names().map(unname));
    }
}

impl TaskListSlot {
    fn new(
        driver: &mut dyn Driver,
        group: RankGroup,
        world: WorldRank,
        name: u64,
    ) -> io::Result<Self> {
        Ok(Self {
            slot: OffloadSlot::new(driver, group, world, name)?,
            running: None,
            waiting: VecDeque::new(),
            left: false,
        })
    }
}

/// Returns the length of a buffer that needs a key and has none. A driver gives no key when its limits are reached.
fn keyless(memory: &OffloadMemory, lens: BufferLens) -> Option<usize> {
    [
        (lens.output, memory.output_key),
        (lens.scratch, memory.scratch_key),
    ]
    .into_iter()
    .find_map(|(len, key)| (len > 0 && key.is_none()).then_some(len))
}

/// Returns the memory of a program's steps, with keys for peers.
fn memory_of(driver: &mut dyn Driver, lens: BufferLens, ranges: [LocalRange; 3]) -> OffloadMemory {
    let [input, output, scratch] = ranges;
    let mut key = |len: usize, range| (len > 0).then(|| driver.expose(range)).flatten();
    OffloadMemory {
        output_key: key(lens.output, output),
        scratch_key: key(lens.scratch, scratch),
        input,
        output,
        scratch,
    }
}
