//! What all parts of the engine use: the operations, the queues of the peers, the commands for the driver, and what is collected
//! for the time after the lock.

pub(super) mod collective_registry;
mod down_ranks;
mod exposed_keys;
mod groups;
mod library_events;
#[cfg(test)]
pub(super) mod lone_rank;
pub(super) mod op_recorders;
pub(super) mod packing_blocks;
pub(super) mod peer;
pub(super) mod program_events;
pub(super) mod rank_map;
mod revoked_contexts;
pub(super) mod transmit;

use std::task::Waker;

use ripstop_fabric::driver::Driver;

use self::{
    collective_registry::LazyCollectiveRegistry,
    exposed_keys::ExposedKeys,
    groups::GroupTable,
    op_recorders::OpRecorders,
    packing_blocks::PackingBlocks,
    peer::EnginePeers,
    program_events::{ProgramEvent, ProgramJob},
};
pub(crate) use self::{
    library_events::LibraryEvent,
    packing_blocks::{BlockReader, PAGE, PackingBlock},
};
use super::{EngineSetup, OneSidedCommand};
use crate::{
    buffer::RecvBuf,
    clock::ClockTime,
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::{
        ErasedBuffer, MessageStatus, OpOutcome, OpState, OpTable, OpTicket, PlacedBytes,
        ReservedMessage, TRACED,
    },
    proto::{
        path::PathTables,
        wire::{self, OpId, WireKind},
    },
    reactor::{TimerId, Timers},
};

/// What is known of the engine since it was used for anything but the short way (rt/src/engine/calm.rs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalmState {
    /// Nothing.
    Disturbed,
    /// Nothing unusual is known.
    Calm,
    /// Nothing unusual is known, and a receive is expected.
    Expecting,
}

/// The state of an engine that all its parts borrow.
pub(crate) struct EngineCommons {
    /// World rank of this process.
    pub(super) me: WorldRank,
    pub(crate) ops: OpTable,
    pub(super) peers: EnginePeers,
    pub(super) paths: PathTables,
    /// One-sided commands that are not posted yet.
    pub(super) commands: Vec<OneSidedCommand>,
    pub(super) exposed: ExposedKeys,
    pub(super) packing_blocks: PackingBlocks,
    /// Sends of this rank whose offer has no answer yet, except those in packing blocks. While there are any, both ends are taken
    /// to be busy, so that no message is shared.
    pub(super) offers: u32,
    pub(super) groups: GroupTable,
    pub(super) timers: Timers,
    /// What is known of the collectives on each communicator, also for the messages that belong to them.
    pub(super) calls: LazyCollectiveRegistry,
    /// Notifications to programs. The newest is handled first.
    pub(super) program_events: Vec<ProgramEvent>,
    /// True if the driver does not detect failed peers, so that the engine pings the peers it waits for.
    pub(super) watches: bool,
    /// True if the driver runs task lists.
    pub(super) has_lists: bool,
    /// True if collectives may use the driver's collective slots.
    pub(super) has_slots: bool,
    /// True if an operation began to wait since the driver was last notified which peers are waited for.
    pub(super) awaited_peers_changed: bool,
    /// True if a communicator was revoked, or this rank records a trace, so that each operation must be looked at.
    pub(super) unusual: bool,
    /// True while a closing runtime still completes the programs that are in flight or promised. No other program may begin.
    pub(super) leaving: bool,
    /// Collectives that have their place in the order and have not begun yet.
    pub(crate) promised: u32,
    /// True once this rank receives no more.
    pub(super) closing: bool,
    /// True once the driver is released.
    pub(super) ended: bool,
    pub(super) calm: CalmState,
    /// Malformed or stale messages that were dropped.
    pub(crate) refused: u64,
    pub(crate) wakers: Vec<Waker>,
    pub(crate) garbage: Vec<ErasedBuffer>,
    /// Jobs to run with no lock held. Each is then [reported](super::Engine::complete_job) to the engine.
    pub(crate) jobs: Vec<ProgramJob>,
    pub(super) now: ClockTime,
    /// One-sided commands in flight at the driver.
    pub(super) commands_in_flight: u32,
    pub(super) recorders: OpRecorders,
}

impl EngineCommons {
    pub(super) fn new(driver: &mut dyn Driver, setup: EngineSetup, has_lists: bool) -> Self {
        let has_slots = driver.named_slots().is_some();
        let caps = driver.caps();
        let is_ordered = caps.reliable && caps.ordered;
        Self {
            me: setup.rank,
            has_lists,
            program_events: Vec::new(),
            calls: LazyCollectiveRegistry::default(),
            ops: OpTable::new(),
            peers: EnginePeers::new(setup.size, setup.store, is_ordered, setup.seed),
            paths: setup.paths,
            commands: Vec::new(),
            exposed: ExposedKeys::new(caps.pins_exposed),
            packing_blocks: PackingBlocks::default(),
            offers: 0,
            groups: GroupTable::default(),
            timers: Timers::default(),
            watches: !caps.detects_death,
            has_slots: is_ordered && caps.detects_death && has_slots,
            awaited_peers_changed: false,
            unusual: false,
            leaving: false,
            promised: 0,
            closing: false,
            ended: false,
            calm: CalmState::Disturbed,
            refused: 0,
            wakers: Vec::new(),
            garbage: Vec::new(),
            jobs: Vec::new(),
            now: ClockTime::default(),
            commands_in_flight: 0,
            recorders: OpRecorders::default(),
        }
    }

    /// Returns the time of the last turn, which may be stale.
    pub(crate) fn time(&self) -> ClockTime {
        self.now
    }

    /// Returns true if the next turn needs the current time.
    pub(crate) fn needs_time(&self) -> bool {
        !self.timers.is_empty() || !self.peers.reliable || self.watches
    }

    #[inline]
    pub(crate) fn is_done(&mut self, op: OpId) -> bool {
        self.ops.live(op).state.is_done()
    }

    /// Sets the waker to call when the operation completes.
    pub(crate) fn set_waker(&mut self, op: OpId, waker: &Waker) {
        self.note_wait(op);
        let before = self.ops.remember(op, waker);
        self.let_go(before);
    }

    /// Drops a waker as soon as no lock is held, because its drop may run code of the application.
    pub(super) fn let_go(&mut self, waker: Option<Waker>) {
        self.garbage.extend(waker.map(ErasedBuffer::of));
    }

    /// Detaches an operation whose future was dropped. A send then completes on its own.
    pub(crate) fn detach(&mut self, op: OpId) {
        let Some(slot) = self.ops.get(op) else {
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
        if self.is_done(op) {
            return; // The result waits for its future, which needs no limit any more.
        }
        let timer = self.timers.insert(deadline, op.pack());
        let before = self.ops.live(op).timer.replace(timer);
        self.cancel_timer(before);
    }

    pub(super) fn cancel_timer(&mut self, timer: Option<TimerId>) {
        if let Some(timer) = timer {
            self.timers.cancel(timer);
        }
    }

    /// Takes the outcome and the buffer of a send if it is complete.
    #[inline]
    pub(crate) fn take_send<B: Send + 'static>(
        &mut self,
        ticket: &OpTicket<B>,
    ) -> Option<(OpOutcome, B)> {
        self.ops.take(ticket, &mut self.timers)
    }

    /// Takes the outcome and the buffer of a receive if it is complete.
    #[inline]
    pub(crate) fn take_recv<B: RecvBuf>(&mut self, ticket: &OpTicket<B>) -> Option<(OpOutcome, B)> {
        self.ops.take_recv(ticket, &mut self.timers)
    }

    /// Takes the outcome of a receive if it is complete. Copies the message from the place of its slot to its own buffer.
    pub(crate) fn take_place<B: RecvBuf>(
        &mut self,
        ticket: &OpTicket<PlacedBytes>,
        buf: &mut B,
    ) -> Option<OpOutcome> {
        self.ops.take_place(ticket, buf, &mut self.timers)
    }

    /// Returns true if there are wakers to call, values to drop or jobs to run once no lock is held.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.wakers.len() | self.garbage.len() | self.jobs.len() != 0
    }

    /// Completes a receive for which a future waits, and which belongs to no program. Its waker is collected.
    pub(super) fn land_awaited(&mut self, op: OpId, landed: MessageStatus) {
        let slot = self.ops.live(op);
        self.recorders.note_end(slot, Some(&landed));
        self.wakers.extend(slot.land(landed));
    }

    /// Completes an operation. Its waker is collected, to be called without a lock. An operation without a future is released.
    pub(super) fn complete_op(&mut self, id: OpId, outcome: Result<MessageStatus, ErrorKind>) {
        self.exposed.close(id);
        let slot = self.ops.live(id);
        if slot.lent {
            return self.fail_lent(id, outcome);
        }
        self.offers -= u32::from(slot.is_busy_offer());
        self.recorders.note_end(slot, outcome.as_ref().ok());
        let is_detached_send = slot.marks != 0 && slot.orphan && slot.state.is_sending();
        let waker = match outcome {
            Ok(landed) => slot.land(landed),
            Err(why) => {
                self.packing_blocks.retire(slot.area);
                slot.fail(why)
            }
        };
        self.wakers.extend(waker);
        if slot.orphan {
            if is_detached_send {
                self.trace_end(id);
            }
            self.release(id);
        } else if slot.is_in_program() {
            self.notify_message(id);
        } else if slot.marks != 0 {
            self.trace_end(id);
        }
    }

    /// Releases an operation. No peer and no driver may write to its buffer any more.
    pub(super) fn release(&mut self, id: OpId) {
        let slot = self.ops.live(id);
        let (timer, marks) = (slot.timer.take(), slot.marks);
        self.cancel_timer(timer);
        if marks & TRACED != 0 {
            self.trace_drop(id);
        }
        let held = self.ops.release(id);
        self.garbage.extend(held);
    }

    /// Returns the members of this communicator.
    pub(super) fn members(&self, ctx: u32) -> Option<&RankGroup> {
        self.groups.get(ctx)
    }

    /// Returns true if this rank has dropped this communicator.
    pub(super) fn has_left(&self, ctx: u32) -> bool {
        self.groups.has_left(ctx)
    }

    /// Ends a receive whose buffer is lent, with this message or an error. It completes once the buffer is back.
    pub(super) fn recall_buffer(&mut self, op: OpId, kept: Option<ReservedMessage>) {
        self.ops.live(op).state = OpState::Recalled(kept);
        self.commands
            .push(OneSidedCommand::TakeBackTagBuffer { op });
    }

    /// Fails a receive whose buffer is lent, in place of [`complete_op`](Self::complete_op).
    #[cold]
    pub(super) fn fail_lent(&mut self, op: OpId, outcome: Result<MessageStatus, ErrorKind>) {
        let why = outcome.expect_err("what succeeds has its buffer");
        self.ops.live(op).blame(why);
        self.recall_buffer(op, None);
    }

    /// Records that the buffer of a receive is not lent any more.
    pub(super) fn take_over_buffer(&mut self, op: OpId) {
        if let Some(slot) = self.ops.get(op) {
            slot.lent = false;
        }
    }

    pub(super) fn send_control(&mut self, rank: WorldRank, kind: WireKind, op: OpId, status: u64) {
        self.peers
            .control(rank, &wire::OpHeader::new(kind, op, status));
    }

    #[cold]
    pub(super) fn say_credits(&mut self, rank: WorldRank) {
        self.peers
            .control(rank, &wire::BareHeader::new(WireKind::Credit));
    }

    /// Returns the reason why nothing can be sent to this rank, if there is one.
    pub(crate) fn unreachable(&self, rank: WorldRank) -> Option<ErrorKind> {
        if self.closing {
            return Some(ErrorKind::Closed);
        }
        if self.peers.downs() == 0 {
            return None;
        }
        self.peers
            .down(rank)
            .map(|down| ErrorKind::of_down(rank, down))
    }

    /// Returns true if this rank begins no collective and no agreement any more. It is closing, and every promised collective has
    /// begun.
    pub(super) const fn begins_no_more(&self) -> bool {
        self.closing || self.leaving && self.promised == 0
    }

    /// Returns true if this rank has closed but cannot exit before peers receive what it sends.
    pub(super) fn is_kept_by_sends(&self) -> bool {
        self.closing && !self.ops.select(|slot| slot.state.is_sending()).is_empty()
    }
}
