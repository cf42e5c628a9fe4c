//! The engine of one runtime: connects operations, protocols and the driver. No other module knows all three.
//!
//! Budget of a small message, from `send` to `post` and from arrival to wake: no allocation, no system call, one uncontended
//! lock each. `ripstop perf` counts them for each message.
//!
//! The driver hands arrivals to [`EngineCore`], which must not call the driver back. It puts commands into
//! [`EngineCommons::commands`] and into the queues of peers, and [`Engine::flush`] posts them right after. Wakers and the buffers
//! of detached operations are collected. The caller wakes and drops them when it holds no lock, because both run code of the
//! application.

mod calm;
mod close;
mod collective;
mod collective_calls;
mod commons;
mod down;
mod flush;
mod footprint;
mod in_place;
mod liveness;
mod noted_ops;
mod pending_ops;
mod point_to_point;
mod preconnect;
mod published;
mod recovery;
mod revocation;
mod self_deadlock;
mod send;
mod shrink;
mod sink;
mod sleeper;
mod stall_probe;
#[cfg(test)]
mod tests;
mod traced_ops;
mod window;
mod window_calls;

use ripstop_fabric::{
    driver::{ArmResult, Driver},
    memory::RemoteRegion,
    offload::RemoteCounter,
};
use std::sync::Arc;

#[cfg(test)]
pub(crate) use self::calm::calm_switch;
use self::{close::RetiredDriver, point_to_point::MessageTransmitter};
pub(crate) use self::{
    collective::{
        BorrowedCall, CollectiveExecution, CollectivePart, CollectiveProgress, ExecutionRequest,
        RunCall, RunOutcome, RunTicket, SingleRoundPoll, SingleRoundProgress, SingleRoundRun,
    },
    commons::{
        BlockReader, EngineCommons, LibraryEvent, PAGE, PackingBlock,
        collective_registry::CreationCall, peer::UnexpectedLimits, program_events::ProgramJob,
    },
    pending_ops::PendingOpReport,
    point_to_point::{PointToPoint, SendStart},
    recovery::{AgreementId, FailureCursor, RecoveryPart, survivors},
    sleeper::{SleepCall, SleeperId},
    window::{
        AwaitedFenceCounter, BulkUpdate, EpochCounters, FenceMethod, FenceResult, MappedEnd,
        NotifyResult, NumberType, PeerEndMemory, TargetRanges, UpdateGuard, UpdateLock, WakeReason,
        WideElement, WindowExtent, WindowId, WindowLockKind, WindowMemory, WindowOpKind,
        WindowPart, WindowProgress, WindowWaiterSlot, begin_accesses, differing_fences, fence_name,
    },
};
pub use self::{
    footprint::{Footprint, Pool},
    window::Combine,
};
use crate::{
    clock::ClockTime,
    error::ErrorKind,
    evidence::KnownFailures,
    group::WorldRank,
    ops::MessageStatus,
    proto::{path::PathTables, wire::OpId},
    reactor::SleepWatch,
};

/// Arrivals and completions handled in one turn. With more, threads that submit operations would wait too long for the lock.
const ARRIVALS_MAX: u32 = 64;

/// The engine of one runtime; used by one thread at a time.
pub(crate) struct Engine {
    driver: Box<dyn Driver>,
    /// Driver of a closed runtime, kept while epochs of this rank can store to memory of peers.
    retired_driver: Option<Box<RetiredDriver>>,
    pub(crate) core: EngineCore,
    pub(crate) watch: SleepWatch,
    /// Messages found by [`look_for_expected`](Self::look_for_expected) since it last asked for a turn.
    looks: u32,
}

/// The state of an engine without its driver. It is the driver's sink of arrivals and completions.
pub(crate) struct EngineCore {
    pub(crate) p2p: PointToPoint,
    preconnected: Option<preconnect::PreconnectedPeers>,
    sleepers: sleeper::SleeperTable,
    liveness: Option<Box<liveness::LivenessMonitor>>,
    /// Failed ranks, and how each failure was detected.
    pub(crate) evidence: Arc<KnownFailures>,
    own_wait: Option<Box<self_deadlock::SelfDeadlock>>,
    /// Time since which tables have been larger than they need to be.
    bloated_since: Option<ClockTime>,
    shrinks_after: ClockTime,
    programs: collective::LazyProgramTable,
    recovery: recovery::LazyRecovery,
    windows: window::LazyWindowTable,
    /// Called with each peer that failed.
    pub(crate) on_failure: Option<FailureCallback>,
}

/// Called with the rank of each failed peer, before the application can learn of the failure.
pub(crate) type FailureCallback = Box<dyn Fn(WorldRank) + Send>;

/// A one-sided command for the operation that owns the local memory.
#[derive(Clone, Copy, Debug)]
enum OneSidedCommand {
    /// `at` is where the bytes begin in the operation's buffer.
    Get {
        op: OpId,
        key: RemoteRegion,
        at: usize,
    },
    Put {
        op: OpId,
        key: RemoteRegion,
        at: usize,
    },
    Claim {
        op: OpId,
        claim: RemoteRegion,
        receiver: OpId,
    },
    /// Not a command: gets the front half of a message, while its sender puts the rear half.
    Split { op: OpId, key: RemoteRegion },
    /// Not a command: sends the sender a key to put to, if the driver can make one.
    Invite { op: OpId },
    /// Not a command: sends an offer ahead of earlier messages, because the receiver asked for it.
    Answer { op: OpId, first: bool },
    /// Not a command: takes the lent buffer of a receive back from the driver.
    TakeBackTagBuffer { op: OpId },
    /// Not a command: introduces a window to a neighbor.
    Greet { id: WindowId, rank: WorldRank },
    /// Withdraws the name of a memory region.
    Unname { name: u64 },
    /// Adds to a counter of a peer. No operation waits for this command.
    Count {
        rank: WorldRank,
        counter: RemoteCounter,
        by: u64,
    },
}

impl OneSidedCommand {
    /// Returns the target rank of a command that belongs to no operation.
    fn peer(&self) -> Option<WorldRank> {
        match self {
            Self::Greet { rank, .. } | Self::Count { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

/// Parameters of an engine.
pub(crate) struct EngineSetup {
    pub(crate) rank: WorldRank,
    pub(crate) size: u32,
    pub(crate) paths: PathTables,
    /// Limits of the unexpected messages that a runtime holds, of all peers together.
    pub(crate) store: UnexpectedLimits,
    /// True if both ends may move a message at the same time, because each rank has a processor.
    pub(crate) may_split_long: bool,
    /// Seed of random choices, different on each rank.
    pub(crate) seed: u64,
    /// Nanoseconds of silence after which a peer is pinged. Used only if the driver does not detect failed peers.
    pub(crate) detect: u64,
}

impl Engine {
    pub(crate) fn new(mut driver: Box<dyn Driver>, setup: EngineSetup) -> Self {
        let connects = driver.connect_ahead().is_some();
        let has_lists = collective::list_max(&mut *driver) > 0;
        let watches = !driver.caps().detects_death;
        let liveness = liveness::LivenessMonitor::new(setup.detect, setup.rank);
        let core = EngineCore {
            p2p: PointToPoint::new(&mut *driver, setup, has_lists),
            preconnected: connects.then(preconnect::PreconnectedPeers::default),
            sleepers: sleeper::SleeperTable::default(),
            liveness: watches.then(|| Box::new(liveness)),
            evidence: Arc::new(KnownFailures::new(!watches)),
            own_wait: None,
            bloated_since: None,
            shrinks_after: ClockTime::default(),
            programs: collective::LazyProgramTable::default(),
            recovery: recovery::LazyRecovery::default(),
            windows: window::LazyWindowTable::default(),
            on_failure: None,
        };
        Self {
            driver,
            retired_driver: None,
            core,
            watch: SleepWatch::default(),
            looks: 0,
        }
    }

    /// Makes one turn: handles arrivals, expired timers and queued commands. Returns the number of events.
    #[inline]
    pub(crate) fn turn(&mut self, now: ClockTime) -> u32 {
        self.core.p2p.common.now = now;
        let mut events = self.driver.progress(ARRIVALS_MAX, &mut self.core).events;
        self.core.p2p.common.note_events(events);
        if self.core.programs.has_slot_waiters() {
            self.disturb();
            events += self.collectives().poll_collective_slots();
            self.core.handle_deferred_events();
        }
        if !self.core.p2p.common.timers.is_empty() {
            self.core.expire(now);
        }
        if self.core.p2p.common.watches {
            self.disturb();
            self.check_liveness(now, events < ARRIVALS_MAX);
        }
        if self.core.p2p.common.calm != commons::CalmState::Disturbed {
            return events; // nothing waits to be posted
        }
        if self.core.p2p.common.peers.downs() > 0 {
            self.note_losses();
        }
        if self.core.p2p.common.peers.reliable {
            self.flush();
        } else {
            self.core.p2p.common.peers.mark_due(now);
            self.flush();
            self.core.p2p.common.peers.set_clocks(now);
        }
        events
    }

    /// Arms the driver for a sleep. Returns `Busy` if there is still work to do, so that the caller must not sleep.
    pub(crate) fn arm(&mut self) -> ArmResult {
        if self.core.has_work() {
            return ArmResult::Busy;
        }
        self.report_awaited_peers();
        if self.driver.arm() == ArmResult::Busy {
            return ArmResult::Busy;
        }
        // A filled collective slot does not make the driver busy, so look once more after arming. A peer that fills a collective
        // slot from now on wakes this rank.
        if self.collectives().has_slot_messages() {
            ArmResult::Busy
        } else {
            self.core.p2p.common.peers.set_armed();
            ArmResult::Ready
        }
    }

    /// Returns the time at which a sleeping thread must wake up at the latest.
    pub(crate) fn deadline(&mut self) -> Option<ClockTime> {
        let next_look = self.next_liveness_check();
        let EngineCommons { timers, peers, .. } = &self.core.p2p.common;
        [timers.next(), peers.deadline(), next_look]
            .into_iter()
            .flatten()
            .min()
    }

    /// Posts a receive that already owns its buffer.
    #[inline]
    pub(crate) fn post(&mut self, op: OpId) {
        self.transmitter().post_recv(op);
        self.flush();
    }

    /// Receives a message that was probed.
    pub(crate) fn recv_probed(&mut self, op: OpId, landed: &MessageStatus) {
        if let Some(stored) = landed.stored {
            self.core.p2p.recv_probed(op, stored, landed.arrival);
            self.core.p2p.common.trace_recv(op);
            self.flush();
        }
    }

    /// Returns a probed message that will not be received to its place among the unexpected messages.
    pub(crate) fn return_probed(&mut self, landed: &MessageStatus) {
        if let Some(stored) = landed.stored {
            self.core.p2p.return_probed(stored, landed.arrival);
            self.flush();
        }
    }

    /// Returns true if operations are in flight, or have begun to wait, without the knowledge of the sleeping thread.
    #[inline]
    pub(crate) fn needs_wakeup(&mut self, now: impl FnOnce() -> ClockTime) -> bool {
        let core = &self.core;
        // Commands that found no room do not count: the sleeping thread retries them, because it asked the driver to be woken
        // when there is room.
        core.p2p.common.commands_in_flight > 0
            || core.p2p.common.leaving
            || !core.p2p.common.commands.is_empty()
            || core.p2p.common.peers.needs_arming()
            || self.watch.is_asleep() && self.oversleeps(now)
    }

    /// Returns true if something is due before the sleeping thread wakes up.
    #[cold]
    fn oversleeps(&mut self, now: impl FnOnce() -> ClockTime) -> bool {
        self.core.arm_stall_probe(true, now);
        self.report_awaited_peers();
        let deadline = self.deadline();
        self.core.p2p.common.peers.has_new_work() || self.watch.oversleeps(deadline)
    }

    /// Returns what posts messages.
    #[inline]
    fn transmitter(&mut self) -> MessageTransmitter<'_> {
        MessageTransmitter {
            driver: &mut *self.driver,
            p2p: &mut self.core.p2p,
        }
    }

    /// Returns the collectives, with the driver.
    #[inline]
    pub(crate) fn collectives(&mut self) -> CollectiveProgress<'_> {
        CollectiveProgress {
            driver: &mut *self.driver,
            part: self.core.collectives(),
        }
    }

    /// Returns the windows, with the driver.
    #[inline]
    pub(crate) fn windows(&mut self) -> WindowProgress<'_> {
        WindowProgress {
            driver: &mut *self.driver,
            part: self.core.windows(),
        }
    }

    pub(crate) fn driver(&mut self) -> &mut dyn Driver {
        &mut *self.driver
    }
}

impl EngineCore {
    #[inline]
    pub(crate) fn collectives(&mut self) -> CollectivePart<'_> {
        let Self { programs, p2p, .. } = self;
        CollectivePart { programs, p2p }
    }

    /// Returns true if nothing unusual is known about the collectives of this rank alone that have this context.
    #[inline(always)]
    pub(crate) fn is_calm_alone(&self, ctx: u32) -> bool {
        self.p2p.common.is_calm_alone(ctx)
    }

    /// Returns true if a turn is due, because collectives that complete in their first poll make none.
    pub(crate) fn is_turn_due(&mut self) -> bool {
        self.programs.is_turn_due()
    }

    #[inline]
    pub(crate) fn windows(&mut self) -> WindowPart<'_> {
        let Self { windows, p2p, .. } = self;
        WindowPart {
            windows,
            common: &mut p2p.common,
        }
    }

    pub(crate) fn recovery(&mut self) -> RecoveryPart<'_> {
        let Self { recovery, p2p, .. } = self;
        RecoveryPart {
            recovery,
            common: &mut p2p.common,
        }
    }

    /// Ends the operations and sleeps whose time limit has passed.
    fn expire(&mut self, now: ClockTime) {
        while let Some(key) = self.p2p.common.timers.pop_expired(now) {
            self.p2p.disturb();
            if key >= sleeper::KEYS {
                self.expire_sleeper(key);
                continue;
            }
            if key == stall_probe::KEY {
                self.ask_for_programs(now);
                continue;
            }
            let op = OpId::unpack(key);
            let Some(slot) = self.p2p.common.ops.get(op) else {
                continue;
            };
            if slot.state.is_sending() {
                self.p2p.withdraw(op, ErrorKind::TimedOut);
            } else {
                self.p2p.unpost(op, ErrorKind::TimedOut);
            }
        }
    }

    /// Returns true if there is something to do before this thread may sleep.
    ///
    /// Commands that wait for room are no work: the driver wakes this rank when there is room. Only new commands count.
    fn has_work(&self) -> bool {
        self.p2p.common.has_deferred()
            || self.p2p.common.peers.has_new_work()
            || self
                .liveness
                .as_ref()
                .is_some_and(|liveness| !liveness.asides.is_empty())
            || self.p2p.common.has_program_events()
    }
}
