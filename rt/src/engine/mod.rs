//! The engine of one runtime: connects operations, protocols and the driver. No other module knows all three.
//!
//! Budget of a small message, from `send` to `post` and from arrival to wake: no allocation, no system call, one uncontended
//! lock each. `ripstop perf` counts them for each message.
//!
//! The driver hands arrivals to [`EngineCore`], which must not call the driver back. It puts commands into
//! [`EngineCore::commands`] and into the queues of peers, and [`Engine::flush`] posts them right after. Wakers and the buffers of
//! detached operations are collected. The caller wakes and drops them when it holds no lock, because both run code of the
//! application.

mod close;
mod commons;
mod down;
mod down_ranks;
mod exposed_keys;
mod flush;
mod footprint;
mod groups;
mod hw_matching;
mod liveness;
mod message;
mod out_of_order_fetch;
mod own_messages;
mod peer;
mod pending_ops;
mod placed_recv;
mod preconnect;
mod program;
mod published;
mod rank_map;
mod recovery;
mod recv;
mod rendezvous;
mod self_deadlock;
mod send;
mod shrink;
mod sink;
mod sleeper;
mod split_rendezvous;
#[cfg(test)]
mod tests;
mod unexpected_quota;
mod unreceived;
mod window;

use ripstop_fabric::{
    driver::{ArmResult, Driver},
    memory::RemoteRegion,
    offload::RemoteCounter,
};
use std::{collections::BTreeSet, sync::Arc, task::Waker};

use self::{
    close::RetiredDriver, commons::EngineCommons, message::MessageStore, peer::EnginePeers,
};
pub use self::{
    footprint::{Footprint, Pool},
    window::Combine,
};
pub(crate) use self::{
    peer::UnexpectedLimits,
    pending_ops::PendingOpReport,
    program::{ProgramJob, RunCall, RunOutcome, RunTicket, SingleRoundPoll, SingleRoundRun},
    recovery::{AgreementId, FailureCursor, survivors},
    send::SendStart,
    sleeper::SleeperId,
    window::{
        EpochCounters, FenceMethod, FencePoll, FenceResult, NotifyResult, NumberType,
        PeerEndMemory, TargetRanges, WakeReason, WindowExtent, WindowId, WindowLockKind,
        WindowMemory, WindowOpKind, WindowWaiterSlot, begin_accesses,
    },
};
use crate::{
    buffer::RecvBuf,
    clock::ClockTime,
    error::ErrorKind,
    evidence::KnownFailures,
    group::WorldRank,
    ops::{ErasedBuffer, MessageStatus, OpInfo, OpOutcome, OpTable, OpTicket},
    proto::{header_quota::FetchTracker, matching::Matching, path::PathTables, wire::OpId},
    reactor::{SleepWatch, TimerId, Timers},
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
}

/// The state of an engine without its driver. It is the driver's sink of arrivals and completions.
pub(crate) struct EngineCore {
    pub(crate) common: EngineCommons,
    matching: Matching<OpId, u32>,
    messages: MessageStore,
    /// Least length in bytes of a receive buffer that is lent to the driver. `None` if its adapter does not match tags.
    hw_matching_min: Option<usize>,
    splits: split_rendezvous::SplitTable,
    preconnected: Option<preconnect::PreconnectedPeers>,
    /// True if both ends move a long message together, while messages go in one direction only.
    may_split_long: bool,
    /// Tracks which senders to ask for messages that have not arrived.
    fetches: FetchTracker,
    /// A message fetched for a probe, not for a receive.
    parked: Option<Box<out_of_order_fetch::ParkedMessage>>,
    sleepers: sleeper::SleeperTable,
    liveness: Option<Box<liveness::LivenessMonitor>>,
    /// Failed ranks, and how each failure was detected.
    pub(crate) evidence: Arc<KnownFailures>,
    own: own_messages::OwnMessages,
    /// Failed members not yet reported to any wildcard receive, as pairs of context and rank.
    unreported_failures: BTreeSet<(u32, WorldRank)>,
    own_wait: Option<Box<self_deadlock::SelfDeadlock>>,
    unreceived: Option<Box<unreceived::UnreceivedMessages>>,
    /// Time since which tables have been larger than they need to be.
    bloated_since: Option<ClockTime>,
    shrinks_after: ClockTime,
    programs: program::LazyProgramTable,
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
        let own_by_processor = driver.caps_to(setup.rank).by_processor;
        let lends = driver.tag_matching().map(|tags| tags.shortest_body());
        let has_slots = driver.named_slots().is_some();
        let lists = program::list_max(&mut *driver) > 0;
        let caps = driver.caps();
        let watches = !caps.detects_death;
        let peers = EnginePeers::new(
            setup.size,
            setup.store,
            caps.reliable && caps.ordered,
            setup.seed,
        );
        let common = EngineCommons {
            ops: OpTable::new(),
            peers,
            paths: setup.paths,
            commands: Vec::new(),
            exposed: exposed_keys::ExposedKeys::new(caps.pins_exposed),
            offers: 0,
            groups: groups::GroupTable::default(),
            timers: Timers::default(),
            watches,
            has_slots: caps.reliable && caps.ordered && caps.detects_death && has_slots,
            awaited_peers_changed: false,
            revokes: false,
            leaving: false,
            promised: 0,
            closing: false,
            ended: false,
            refused: 0,
            wakers: Vec::new(),
            garbage: Vec::new(),
            jobs: Vec::new(),
            now: ClockTime::default(),
            commands_in_flight: 0,
        };
        let core = EngineCore {
            common,
            matching: Matching::new(),
            messages: MessageStore::new(),
            hw_matching_min: lends,
            splits: split_rendezvous::SplitTable::default(),
            preconnected: connects.then(preconnect::PreconnectedPeers::default),
            may_split_long: setup.may_split_long,
            fetches: FetchTracker::default(),
            parked: None,
            sleepers: sleeper::SleeperTable::default(),
            liveness: watches
                .then(|| Box::new(liveness::LivenessMonitor::new(setup.detect, setup.rank))),
            evidence: Arc::new(KnownFailures::new(!watches)),
            own: own_messages::OwnMessages::new(
                setup.rank,
                own_by_processor && caps.reliable && caps.ordered,
            ),
            unreported_failures: BTreeSet::new(),
            own_wait: None,
            unreceived: None,
            bloated_since: None,
            shrinks_after: ClockTime::default(),
            programs: program::LazyProgramTable::new(setup.rank, lists),
            recovery: recovery::LazyRecovery::default(),
            windows: window::LazyWindowTable::new(setup.rank),
            on_failure: None,
        };
        Self {
            driver,
            retired_driver: None,
            core,
            watch: SleepWatch::default(),
        }
    }

    /// Makes one turn: handles arrivals, expired timers and queued commands. Returns the number of events.
    #[inline]
    pub(crate) fn turn(&mut self, now: ClockTime) -> u32 {
        self.core.common.now = now;
        let mut events = self.driver.progress(ARRIVALS_MAX, &mut self.core).events;
        if self.core.programs.has_slot_waiters() {
            events += self.poll_collective_slots();
        }
        self.core.expire(now);
        if self.core.common.watches {
            self.check_liveness(now, events < ARRIVALS_MAX);
        }
        if self.core.common.peers.reliable {
            self.flush();
        } else {
            self.core.common.peers.mark_due(now);
            self.flush();
            self.core.common.peers.set_clocks(now);
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
        if self.has_slot_messages() {
            ArmResult::Busy
        } else {
            self.core.common.peers.set_armed();
            ArmResult::Ready
        }
    }

    /// Returns the time at which a sleeping thread must wake up at the latest.
    pub(crate) fn deadline(&mut self) -> Option<ClockTime> {
        let next_look = self.next_liveness_check();
        let EngineCommons { timers, peers, .. } = &self.core.common;
        [timers.next(), peers.deadline(), next_look]
            .into_iter()
            .flatten()
            .min()
    }

    /// Creates a receive and posts it.
    #[inline]
    pub(crate) fn recv<B: RecvBuf>(&mut self, info: &OpInfo, buf: B) -> OpTicket<B> {
        let ticket = self.core.common.ops.hold_recv(*info, buf);
        self.post(ticket.op);
        ticket
    }

    /// Posts a receive that already owns its buffer.
    #[inline]
    pub(crate) fn post(&mut self, op: OpId) {
        self.core.recv(op);
        if let Some(least) = self.core.hw_matching_min {
            self.post_tag_buffer(op, least);
        }
        self.flush();
    }

    /// Receives a message that was probed.
    pub(crate) fn recv_probed(&mut self, op: OpId, landed: &MessageStatus) {
        if let Some(stored) = landed.stored {
            self.core.recv_probed(op, stored, landed.arrival);
            self.flush();
        }
    }

    /// Returns a probed message that will not be received to its place among the unexpected messages.
    pub(crate) fn return_probed(&mut self, landed: &MessageStatus) {
        if let Some(stored) = landed.stored {
            self.core.return_probed(stored, landed.arrival);
            self.flush();
        }
    }

    /// Returns true if operations are in flight, or have begun to wait, without the knowledge of the sleeping thread.
    #[inline]
    pub(crate) fn needs_wakeup(&mut self, now: impl FnOnce() -> ClockTime) -> bool {
        let core = &self.core;
        // Commands that found no room do not count: the sleeping thread retries them, because it asked the driver to be woken
        // when there is room.
        core.common.commands_in_flight > 0
            || core.common.leaving
            || !core.common.commands.is_empty()
            || core.common.peers.needs_arming()
            || self.watch.is_asleep() && self.oversleeps(now)
    }

    /// Returns true if something is due before the sleeping thread wakes up.
    #[cold]
    fn oversleeps(&mut self, now: impl FnOnce() -> ClockTime) -> bool {
        self.core.arm_stall_probe(true, now);
        self.report_awaited_peers();
        let deadline = self.deadline();
        self.core.common.peers.has_new_work() || self.watch.oversleeps(deadline)
    }

    pub(crate) fn driver(&mut self) -> &mut dyn Driver {
        &mut *self.driver
    }
}

impl EngineCore {
    /// Returns true if a receive is posted.
    pub(crate) fn is_receiving(&self) -> bool {
        self.matching.is_receiving()
    }

    /// Returns true if the next turn needs the current time.
    pub(crate) fn needs_time(&self) -> bool {
        self.common.timers.next().is_some() || !self.common.peers.reliable || self.common.watches
    }

    /// Returns the time of the last turn, which may be stale.
    pub(crate) fn time(&self) -> ClockTime {
        self.common.now
    }

    #[inline]
    pub(crate) fn is_done(&mut self, op: OpId) -> bool {
        self.common.ops.live(op).state.is_done()
    }

    /// Sets the waker to call when the operation completes.
    pub(crate) fn set_waker(&mut self, op: OpId, waker: &Waker) {
        let before = self.common.ops.remember(op, waker);
        self.let_go(before);
    }

    /// Drops a waker as soon as no lock is held, because its drop may run code of the application.
    fn let_go(&mut self, waker: Option<Waker>) {
        self.common.garbage.extend(waker.map(ErasedBuffer::of));
    }

    /// Detaches an operation whose future was dropped. A send then completes on its own.
    pub(crate) fn detach(&mut self, op: OpId) {
        let Some(slot) = self.common.ops.get(op) else {
            return; // its outcome was taken, but its future panicked before recording that
        };
        slot.orphan = true;
        let waker = slot.waker.take();
        let (done, timer) = (slot.state.is_done(), slot.timer.take());
        self.let_go(waker);
        self.cancel_timer(timer); // the time limit was the future's
        if done {
            self.release(op);
        }
    }

    /// Sets the time at which an operation times out. Replaces an earlier one.
    pub(crate) fn set_timer(&mut self, deadline: ClockTime, op: OpId) {
        let timer = self.common.timers.insert(deadline, op.pack());
        let before = self.common.ops.live(op).timer.replace(timer);
        self.cancel_timer(before);
    }

    fn cancel_timer(&mut self, timer: Option<TimerId>) {
        if let Some(timer) = timer {
            self.common.timers.cancel(timer);
        }
    }

    /// Takes the outcome and the buffer of a send if it is complete.
    #[inline]
    pub(crate) fn take_send<B: Send + 'static>(
        &mut self,
        ticket: &OpTicket<B>,
    ) -> Option<(OpOutcome, B)> {
        self.common.ops.take(ticket, &mut self.common.timers)
    }

    /// Takes the outcome and the buffer of a receive if it is complete.
    #[inline]
    pub(crate) fn take_recv<B: RecvBuf>(&mut self, ticket: &OpTicket<B>) -> Option<(OpOutcome, B)> {
        self.common.ops.take_recv(ticket, &mut self.common.timers)
    }

    /// Ends the operations and sleeps whose time limit has passed.
    fn expire(&mut self, now: ClockTime) {
        while let Some(key) = self.common.timers.pop_expired(now) {
            if key >= sleeper::KEYS {
                self.expire_sleeper(key);
                continue;
            }
            if key == program::STALL_PROBE_KEY {
                self.ask_for_programs(now);
                continue;
            }
            let op = OpId::unpack(key);
            let Some(slot) = self.common.ops.get(op) else {
                continue;
            };
            if slot.state.is_sending() {
                self.withdraw(op, ErrorKind::TimedOut);
            } else {
                self.unpost(op, ErrorKind::TimedOut);
            }
        }
    }

    /// Returns true if there is something to do before this thread may sleep.
    ///
    /// Commands that wait for room are no work: the driver wakes this rank when there is room. Only new commands count.
    fn has_work(&self) -> bool {
        self.has_deferred()
            || self.common.peers.has_new_work()
            || self
                .liveness
                .as_ref()
                .is_some_and(|liveness| !liveness.asides.is_empty())
            || self.programs.has_events()
    }

    /// Returns true if there are wakers to call, values to drop or jobs to run once no lock is held.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.common.wakers.len() | self.common.garbage.len() | self.common.jobs.len() != 0
    }

    /// Completes an operation. Its waker is collected, to be called without a lock. An operation without a future is released.
    fn complete_op(&mut self, id: OpId, outcome: Result<MessageStatus, ErrorKind>) {
        self.common.exposed.close(id);
        let slot = self.common.ops.live(id);
        if slot.lent {
            return self.fail_lent(id, outcome);
        }
        self.common.offers -= usize::from(slot.state.is_offered());
        let waker = match outcome {
            Ok(landed) => slot.land(landed),
            Err(why) => slot.fail(why),
        };
        self.common.wakers.extend(waker);
        if slot.orphan {
            self.release(id);
        } else if slot.in_program {
            self.programs.notify_message(id);
        }
    }

    /// Releases an operation. No peer and no driver may write to its buffer any more.
    fn release(&mut self, id: OpId) {
        let timer = self.common.ops.live(id).timer.take();
        self.cancel_timer(timer);
        let held = self.common.ops.release(id);
        self.common.garbage.extend(held);
    }
}
