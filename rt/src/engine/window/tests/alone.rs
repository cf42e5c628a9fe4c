//! Ranks that have no other part of the engine than windows, over drivers in this process.

use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DownCause, Driver, PayloadView, Sink},
    loopback,
    memory::MemoryRegion,
    random::SeededRandom,
};

pub(super) use crate::engine::commons::lone_rank::{CTX, LoneFlush, op_info, settle};
use crate::{
    buffer::TypeSig,
    engine::{
        EngineCommons, OneSidedCommand,
        commons::{
            lone_rank::{ARRIVALS_MAX, lone_setup},
            transmit::FlushResult,
        },
        window::{
            LazyWindowTable, WindowExtent, WindowId, WindowMemory, WindowPart, WindowProgress,
            locks::WindowLockState,
        },
    },
    group::{RankGroup, WorldRank},
    ops::OpInfo,
    proto::wire::{self, OpId},
};

/// The window of all ranks.
pub(super) const ID: WindowId = WindowId::new(CTX, 0);

/// Length of an element in bytes.
pub(super) const ELEMENT: usize = size_of::<u64>();

/// A rank with nothing but windows.
pub(super) struct LoneEnd {
    driver: Box<dyn Driver>,
    pub(super) core: LoneEndSink,
    late_counts: Option<LateCounts>,
}

/// Counts that others may overtake, because drivers promise no order of counts.
struct LateCounts {
    random: SeededRandom,
    held: Vec<OneSidedCommand>,
}

/// What the driver reports to. Messages of other parts are refused.
pub(super) struct LoneEndSink {
    pub(super) common: EngineCommons,
    windows: LazyWindowTable,
}

pub(super) fn lone_ends(size: u32) -> Vec<LoneEnd> {
    let ends = (0..).zip(loopback::world(size)).map(|(me, driver)| {
        let setup = lone_setup(&driver, me, size);
        let mut driver: Box<dyn Driver> = Box::new(driver);
        let mut common = EngineCommons::new(&mut *driver, setup, false);
        common.groups.join(CTX, &RankGroup::First(size));
        let windows = LazyWindowTable::default();
        let core = LoneEndSink { common, windows };
        LoneEnd {
            driver,
            core,
            late_counts: None,
        }
    });
    ends.collect()
}

/// Returns the description of an operation on the memory of `target`.
pub(super) fn remote_info(target: WorldRank) -> OpInfo {
    OpInfo {
        ctx: ID.context,
        elem: ELEMENT,
        ..op_info(Some(target.0), Some(ID.sequence))
    }
}

impl LoneEnd {
    /// Opens this rank's end with this number of zeros, and returns its memory.
    pub(super) fn open(&mut self, elements: usize) -> MemoryRegion {
        let len = elements * ELEMENT;
        let region = self.driver.allocate(len).expect("there is memory");
        let memory = WindowMemory {
            sig: TypeSig(7),
            len,
            region: region.clone(),
            start: 0,
            has_spare_line: false,
        };
        self.windows().open_window(ID, WindowExtent::Fixed(memory));
        region
    }

    pub(super) fn windows(&mut self) -> WindowProgress<'_> {
        WindowProgress {
            driver: &mut *self.driver,
            part: self.core.windows(),
        }
    }

    /// Lets counts overtake each other from now on.
    pub(super) fn reorder_counts(&mut self, seed: u64) {
        self.late_counts = Some(LateCounts {
            random: SeededRandom::new(seed),
            held: Vec::new(),
        });
    }

    /// Handles what the driver has, and posts what that asks for. Returns true if anything happened or is still held.
    pub(super) fn turn(&mut self) -> bool {
        let events = self.driver.progress(ARRIVALS_MAX, &mut self.core).events;
        self.flush();
        let is_one_held = self.post_late_count();
        self.core.common.wakers.clear();
        self.core.common.garbage.clear();
        is_one_held || events > 0
    }

    /// Posts one of the held counts, or none yet. Returns true if there were any.
    fn post_late_count(&mut self) -> bool {
        let Some(LateCounts { random, held }) = &mut self.late_counts else {
            return false;
        };
        if held.is_empty() {
            return false;
        }
        if random.chance(0.3) {
            let nth = usize::try_from(random.within(0..held.len() as u64));
            let count = held.swap_remove(nth.expect("few"));
            let (driver, common) = self.driver_and_commons();
            if !common.post_one_sided(driver, count) {
                common.commands.push(count);
            }
        }
        true
    }

    /// Returns true if this rank neither holds the lock of a rank's memory nor has requested it.
    pub(super) fn is_outside(&mut self, target: WorldRank) -> bool {
        let peer_end = self.core.windows.peer_end(ID, target);
        peer_end.is_none_or(|peer_end| peer_end.lock == WindowLockState::Outside)
    }

    /// Checks that nothing is in flight, and that this rank has no end of a window any more.
    pub(super) fn check_end(&mut self) {
        let LoneEndSink { common, windows } = &mut self.core;
        let me = common.me;
        assert_eq!(common.refused, 0, "messages that rank {me} refused");
        let left = common.ops.select(|_| true);
        assert!(left.is_empty(), "operations left at rank {me}: {left:?}");
        assert_eq!(common.commands_in_flight, 0, "commands of rank {me}");
        assert!(common.commands.is_empty() && !common.peers.any_to_flush());
        assert!(windows.ends.is_empty(), "ends left at rank {me}");
        assert!(windows.watching.is_empty(), "watches of rank {me}");
        let is_idle = windows.lines.values().all(|line| line.is_idle());
        assert!(is_idle, "updates of rank {me} that wait");
    }
}

impl LoneFlush for LoneEnd {
    fn driver_and_commons(&mut self) -> (&mut dyn Driver, &mut EngineCommons) {
        (&mut *self.driver, &mut self.core.common)
    }

    fn post_command(&mut self, command: OneSidedCommand) -> bool {
        if let OneSidedCommand::Greet { id, rank } = command {
            self.windows().greet(id, rank);
            return true;
        }
        if let OneSidedCommand::Count { .. } = command
            && let Some(late) = &mut self.late_counts
            && late.random.chance(0.5)
        {
            late.held.push(command);
            return true;
        }
        let (driver, common) = self.driver_and_commons();
        common.post_one_sided(driver, command)
    }

    fn flush_queues(&mut self, rank: WorldRank) -> FlushResult {
        self.windows().flush_updates(rank)
    }
}

impl LoneEndSink {
    pub(super) fn windows(&mut self) -> WindowPart<'_> {
        let Self { common, windows } = self;
        WindowPart { windows, common }
    }
}

impl Sink for LoneEndSink {
    fn message(&mut self, rank: WorldRank, header: &[u8], body: PayloadView<'_>) {
        let understood = wire::read_base(header)
            .and_then(|(kind, _)| self.windows().handle_window_kind(rank, kind, header, body));
        if understood.is_none() {
            self.common.refused += 1;
        }
    }

    fn complete(&mut self, token: CommandToken) {
        self.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        if self.common.ops.get(op).is_some() {
            self.windows().remote_part_over(op, Ok(()));
        }
    }

    fn fetched(&mut self, _: CommandToken, _: u64) {
        unreachable!("windows ask for no atomics of the driver");
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        let slot = self.common.ops.get(op);
        if let Some(target) = slot.and_then(|slot| slot.state.partner(&slot.info)) {
            self.windows().remote_failed(op, target, why);
        }
    }

    fn reached(&mut self, token: CommandToken) {
        self.windows().window_reached(token);
    }

    fn triggered(&mut self, _: CommandToken) {
        unreachable!("there is no task list");
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        if self.common.peers.fall(peer, why) {
            self.windows().lose_windows(peer, why);
        }
    }
}
