//! Puts, gets, atomics and counts, each as a short sequence of adapter operations, one at a time.
//!
//! ```text
//!   Portals                            has the adapter do the steps of commands       this file
//!   PortalsRmaSlots                    commands in flight, and the words they need    slots
//!   PortalsRmaCommand, PortalsRmaOp,
//!   PortalsRmaStep                     which step comes first, what may be repeated   steps
//! ```
//!
//! A count adds by an atomic of the owner's adapter, and then reads the value from which on the owner must be woken, as
//! [`offload`](crate::offload) requires. A counting put first checks that the counter exists, so that a put with a wrong counter
//! writes nothing.

mod slots;
mod steps;

pub(super) use self::{
    slots::PortalsRmaSlots,
    steps::{PortalsRmaCommand, PortalsRmaOp, failure, lists_lost, no_step, unreached},
};
use self::{
    slots::RmaSlotWord,
    steps::{PortalsRmaStep, is_add, operand_of},
};
use super::{
    calls::PortalsCallError,
    driver_state::{Portals, PortalsCompletion},
    event::PortalsOutcome,
    exports,
    multirail::LaneAvailability,
    peer::PortalsPeerState,
    rma_calls::RemoteTarget,
    task_lists::match_bits,
};
use crate::{
    driver::{AtomicOp, CommandFailure, CommandToken, LocalRange},
    memory::RemoteRegion,
    offload::{COUNTER_LEN, RemoteCounter},
};

impl Portals {
    /// Starts a command with a token. Returns true if there was room.
    pub(super) fn command(
        &mut self,
        to: u32,
        op: Option<PortalsRmaOp>,
        token: CommandToken,
    ) -> bool {
        let owner = self.peer(to).owner(to);
        let down = self.peer(to).state != PortalsPeerState::Up;
        let first = match op {
            _ if down => Err(CommandFailure::PeerDown),
            None => Err(CommandFailure::BadRange),
            Some(op) => op.first(owner).map(|step| (op, step)),
        };
        match first {
            Ok((op, step)) => self.begin(to, Some(token), op, step),
            Err(why) => {
                self.completions
                    .push_back(PortalsCompletion::Failed(token, why));
                true
            }
        }
    }

    /// Starts a count, unless the peer is down. Returns true if there was room.
    pub(super) fn count(&mut self, to: u32, counter: RemoteCounter, by: u64) -> bool {
        let owner = self.peer(to).owner(to);
        let Some(cell) = counter.words_key() else {
            return true;
        };
        if to == self.me
            && let Some(ct) = self.own_task_counter(cell)
        {
            // A refusal means that the interface is closed.
            let _added = self.resources.ni.ct_inc(ct, by);
            return true;
        }
        let op = PortalsRmaOp::Count(by, cell);
        match op.first(owner) {
            // Each message adds one, so zero needs none; adapters wake the owner by themselves.
            Ok(PortalsRmaStep::CountTask(0)) => true,
            Ok(step) if self.peer(to).state == PortalsPeerState::Up => {
                self.begin(to, None, op, step)
            }
            _ => true,
        }
    }

    fn begin(
        &mut self,
        to: u32,
        token: Option<CommandToken>,
        op: PortalsRmaOp,
        step: PortalsRmaStep,
    ) -> bool {
        if self.credits <= RESERVED {
            return false;
        }
        let work = PortalsRmaCommand {
            to,
            token,
            op,
            step,
        };
        let Some(slot) = self.operations.insert(work) else {
            return false;
        };
        self.peer_mut(to).met = true;
        self.take_step(slot, work);
        true
    }

    /// Starts the current step of a slot.
    fn take_step(&mut self, slot: u32, work: PortalsRmaCommand) {
        if matches!(work.step, PortalsRmaStep::Move(0)) && self.stripe(slot, &work) {
            return;
        }
        let lane = match self.lane_of(&work) {
            LaneAvailability::Lane(lane) => lane,
            LaneAvailability::Retry => return self.operations.schedule_retry(slot),
            LaneAvailability::Never if work.is_of_lists() => {
                return self.go_without(slot, work, lists_lost());
            }
            LaneAvailability::Never => return self.go_without(slot, work, unreached()),
        };
        match self.issue(slot, work, lane) {
            Ok(()) => {
                self.resources.queues.note_traffic(lane);
                self.spend_credit(work.to);
            }
            Err(refused) if self.is_for_later(&refused) => self.operations.schedule_retry(slot),
            Err(refused) => self.go_without(slot, work, CommandFailure::Transport(refused.into())),
        }
    }

    /// Handles a step that no lane can do.
    fn go_without(&mut self, slot: u32, work: PortalsRmaCommand, why: CommandFailure) {
        match work.step {
            PortalsRmaStep::CheckWaiter => self.schedule_words(work.to),
            // No token reports that the count is missing, and the peer may wait for it.
            PortalsRmaStep::Add | PortalsRmaStep::CountTask(_) if work.token.is_none() => {
                self.suspect(work.to)
            }
            _ => {}
        }
        self.finish(slot, work, Err(why));
    }

    fn lane_of(&self, work: &PortalsRmaCommand) -> LaneAvailability {
        if !work.is_of_lists() {
            self.lane_of_atomics(work.to)
        } else {
            self.lane_of_lists(work.to)
        }
    }

    fn issue(&self, slot: u32, work: PortalsRmaCommand, lane: u32) -> Result<(), PortalsCallError> {
        let user = self.operations.user_ptr(slot);
        let rail = &self.resources.rails[lane as usize];
        let words = |word, len| rail.local_span(self.operations.words(slot, word, len), user);
        let operand = |value| {
            self.operations.set_word(slot, RmaSlotWord::Operand, value);
            words(RmaSlotWord::Operand, 8).offset
        };
        let remote = |key, at, len| self.remote_target(work.to, lane, key, at, len);
        let ni = &rail.ni;
        match (work.step, work.op) {
            (PortalsRmaStep::Move(from), PortalsRmaOp::Put(local, key, _)) => {
                let (part, at) = self.piece(work.op, local, from);
                let part = self.operations.to_send(slot, part);
                ni.put(
                    rail.local_span(part, user),
                    remote(key, at, local.len())?,
                    0,
                    true,
                )
            }
            (PortalsRmaStep::Move(from), PortalsRmaOp::Get(local, key)) => {
                let (part, at) = self.piece(work.op, local, from);
                let part = self.operations.to_fill(slot, part);
                ni.get(rail.local_span(part, user), remote(key, at, local.len())?)
            }
            (PortalsRmaStep::Combine, PortalsRmaOp::Atomic(op, key)) => {
                let operand = operand(operand_of(op));
                ni.atomic(
                    words(RmaSlotWord::Before, 8),
                    operand,
                    remote(key, 0, 8)?,
                    op,
                )
            }
            (step, op) => {
                let cell = op.cell().ok_or_else(no_step)?;
                match step {
                    PortalsRmaStep::CountTask(_) => ni.put(
                        words(RmaSlotWord::Counter, 0),
                        self.tick(work.to, cell)?,
                        0,
                        true,
                    ),
                    PortalsRmaStep::Probe => ni.get(
                        words(RmaSlotWord::Counter, 16),
                        remote(cell, 0, COUNTER_LEN)?,
                    ),
                    PortalsRmaStep::CheckWaiter => ni.get(
                        words(RmaSlotWord::Counter, 8),
                        remote(cell, 8, COUNTER_LEN)?,
                    ),
                    _ => {
                        let by = AtomicOp::Add(op.by());
                        let operand = operand(op.by());
                        let span = words(RmaSlotWord::Before, 8);
                        ni.atomic(span, operand, remote(cell, 0, COUNTER_LEN)?, by)
                    }
                }
            }
        }
    }

    /// Returns the next part of a range that one operation can move, and its offset.
    fn piece(&self, op: PortalsRmaOp, local: LocalRange, from: usize) -> (LocalRange, u64) {
        let piece = local.slice(from, self.piece_len(op, local.len() - from));
        (piece, from as u64)
    }

    fn piece_len(&self, op: PortalsRmaOp, left: usize) -> usize {
        let ni = &self.resources.ni;
        let most = match op {
            PortalsRmaOp::Get(..) => ni.limits.max_msg_size.min(ni.wire.get_max),
            _ => ni.limits.max_msg_size,
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        ni.wire.piece(left.min(most))
    }

    fn tick(&self, to: u32, cell: RemoteRegion) -> Result<RemoteTarget, PortalsCallError> {
        let peer = self.peer(to);
        let match_bits = match_bits::count(cell, peer.owner(to)).ok_or_else(no_step)?;
        Ok(RemoteTarget {
            process: peer.address.process,
            pt: peer.address.tables.lists,
            match_bits,
            offset: 0,
        })
    }

    /// Returns the location of a peer's memory on a lane.
    pub(super) fn remote_target(
        &self,
        to: u32,
        lane: u32,
        key: RemoteRegion,
        at: u64,
        len: usize,
    ) -> Result<RemoteTarget, PortalsCallError> {
        let peer = self.peer(to);
        let named = exports::target(key, peer.owner(to), len);
        let (match_bits, offset) = named.ok_or_else(no_step)?;
        let (process, pt) = self.place(to, lane).ok_or_else(no_step)?;
        Ok(RemoteTarget {
            process,
            pt,
            match_bits,
            offset: offset + at,
        })
    }

    /// Handles the completion of a step.
    pub(super) fn handle_step(
        &mut self,
        slot: u32,
        generation: u32,
        end: PortalsOutcome,
        moved: u64,
        rail: u32,
    ) {
        let Some(mut work) = self.operations.work(slot, generation) else {
            return;
        };
        if end != PortalsOutcome::Success {
            return self.handle_bad_step(slot, work, end, rail);
        }
        self.peers[work.to as usize].answers += 1;
        if work.falls_beside(moved) {
            return self.finish(slot, work, Err(CommandFailure::BadRange));
        }
        if let (PortalsRmaStep::Move(from), PortalsRmaOp::Get(local, _)) = (work.step, work.op) {
            let moved = usize::try_from(moved).unwrap_or(usize::MAX);
            let piece = local.slice(from, moved.min(self.piece_len(work.op, local.len() - from)));
            self.operations.land(slot, piece);
        }
        if let (PortalsRmaStep::Add, Some(token)) =
            (work.step, work.token.take_if(|_| is_add(work.step)))
        {
            self.completions
                .push_back(PortalsCompletion::Complete(token));
        }
        let next = self.next_step(slot, &work, moved);
        self.go_to(slot, work, next);
    }

    fn handle_bad_step(
        &mut self,
        slot: u32,
        work: PortalsRmaCommand,
        end: PortalsOutcome,
        rail: u32,
    ) {
        let again = match end {
            PortalsOutcome::Undeliverable if work.is_repeatable() => self.fail_lane(work.to, rail),
            PortalsOutcome::Undeliverable => {
                // Whether the step was done is unknown, so the peer is given up, and notified of that by another lane.
                self.fail_lane(work.to, rail);
                self.suspect(work.to);
                false
            }
            PortalsOutcome::Dropped => work.waits_for_entry(),
            // A word with the new location is on its way.
            PortalsOutcome::Moved => self.rails.are_several(),
            _ => false,
        };
        if again && self.peer(work.to).state == PortalsPeerState::Up {
            self.operations.keep(slot, work);
            return self.operations.schedule_retry(slot);
        }
        self.finish(slot, work, Err(failure(end)));
    }

    /// Continues a command whose bytes were moved by several lanes, or could not be.
    pub(super) fn moved(
        &mut self,
        slot: u32,
        work: PortalsRmaCommand,
        how: Result<(), CommandFailure>,
    ) {
        match how {
            Ok(()) => {
                let next = self.after_move(&work);
                self.go_to(slot, work, next);
            }
            Err(why) => self.finish(slot, work, Err(why)),
        }
    }

    fn go_to(&mut self, slot: u32, mut work: PortalsRmaCommand, next: Option<PortalsRmaStep>) {
        match next {
            Some(step) => {
                work.step = step;
                self.operations.keep(slot, work);
                self.take_step(slot, work);
            }
            None => self.finish(slot, work, Ok(())),
        }
    }

    fn after_move(&self, work: &PortalsRmaCommand) -> Option<PortalsRmaStep> {
        let tick = |cell| self.is_tick(work.to, cell);
        let cell = work.op.cell()?;
        Some(if tick(cell) {
            PortalsRmaStep::CountTask(1)
        } else {
            PortalsRmaStep::Add
        })
    }

    fn next_step(
        &mut self,
        slot: u32,
        work: &PortalsRmaCommand,
        moved: u64,
    ) -> Option<PortalsRmaStep> {
        match (work.step, work.op) {
            (PortalsRmaStep::Probe, _) => Some(PortalsRmaStep::Move(0)),
            (
                PortalsRmaStep::Move(from),
                op @ (PortalsRmaOp::Put(local, ..) | PortalsRmaOp::Get(local, _)),
            ) => {
                let done = from.saturating_add(usize::try_from(moved).unwrap_or(usize::MAX));
                let left = local.len() - from;
                let all = self.piece_len(op, left) == left || moved == 0;
                if !all && done < local.len() {
                    Some(PortalsRmaStep::Move(done))
                } else {
                    self.after_move(work)
                }
            }
            (PortalsRmaStep::Add, _) => Some(PortalsRmaStep::CheckWaiter),
            (PortalsRmaStep::CheckWaiter, op) => {
                let after = self
                    .operations
                    .word(slot, RmaSlotWord::Before)
                    .wrapping_add(op.by());
                if after >= !self.operations.word(slot, RmaSlotWord::Counter) {
                    // The words wake the peer. If they are not acknowledged, they are written again by another rail.
                    self.schedule_words(work.to);
                }
                None
            }
            (PortalsRmaStep::CountTask(left), _) => {
                (left > 1).then(|| PortalsRmaStep::CountTask(left - 1))
            }
            (PortalsRmaStep::Move(_) | PortalsRmaStep::Combine, _) => None,
        }
    }

    fn is_tick(&self, to: u32, cell: RemoteRegion) -> bool {
        match_bits::count(cell, self.peer(to).owner(to)).is_some()
    }

    /// Retries, in some turns, steps that found no entry at their peer or no room in the library. After one refusal for lack of
    /// room, the others need not be tried.
    pub(super) fn retry_commands(&mut self) {
        if !self.backoff.is_retry_turn() {
            return;
        }
        let mut has_room = true;
        for slot in self.operations.take_retries() {
            let Some(work) = self.operations.work_in(slot) else {
                continue;
            };
            if self.peer(work.to).state != PortalsPeerState::Up {
                self.finish(slot, work, Err(CommandFailure::PeerDown));
            } else if has_room && self.credits > RESERVED {
                let refusals = self.refusals;
                self.take_step(slot, work);
                has_room = self.refusals <= refusals;
            } else {
                self.operations.schedule_retry(slot);
            }
        }
    }

    /// Gives up operations in flight to a dead rank, for a library that never completes them.
    ///
    /// Credits are returned immediately. A late completion finds no operation, and the completion queue has extra places for such
    /// events. Memory that the library may still access is not reused.
    pub(super) fn give_up_under_way(&mut self, rank: u32) {
        let goes_on = self.resources.ni.goes_on;
        let peer = self.peer_mut(rank);
        let under_way = std::mem::take(&mut peer.under_way);
        let slots = peer.outbox.abandon_in_flight();
        self.credits += under_way;
        for (slot, flies) in slots {
            if goes_on && flies {
                self.resources.pool.lose(slot);
            } else {
                self.resources.pool.give_back(slot);
            }
        }
        for (slot, work) in self.operations.towards(rank) {
            if goes_on {
                self.operations.retire_slot(slot);
            } else {
                self.operations.remove(slot);
            }
            if let Some(token) = work.token {
                let failed = PortalsCompletion::Failed(token, CommandFailure::PeerDown);
                self.completions.push_back(failed);
            }
        }
    }

    fn finish(&mut self, slot: u32, work: PortalsRmaCommand, how: Result<(), CommandFailure>) {
        let before = self.operations.word(slot, RmaSlotWord::Before);
        self.operations.remove(slot);
        let Some(token) = work.token else {
            return;
        };
        self.completions.push_back(match (how, work.op) {
            (Err(why), _) => PortalsCompletion::Failed(token, why),
            (Ok(()), PortalsRmaOp::Atomic(..)) => PortalsCompletion::Fetched(token, before),
            (Ok(()), _) => PortalsCompletion::Complete(token),
        });
    }
}

/// Credits reserved for control words.
pub(super) const RESERVED: u32 = 2;
