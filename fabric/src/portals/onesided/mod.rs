//! Puts, gets, atomics and counts, each as a short sequence of adapter operations, one at a time.
//!
//! ```text
//!   PortalsCommands                    has the adapter do the steps of commands       this file
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
    completion::PortalsCompletion,
    event::PortalsOutcome,
    match_bits,
    multirail::LaneAvailability,
    peer::{PortalsPeerState, UserPtr},
    rma_calls::RemoteTarget,
    transport::PortalsTransport,
};
use crate::{
    driver::{AtomicOp, CommandFailure, CommandToken, LocalRange},
    memory::RemoteRegion,
    offload::{COUNTER_LEN, RemoteCounter},
};

/// Commands in flight, over the transport.
#[derive(Debug)]
pub(super) struct PortalsCommands {
    pub(super) slots: PortalsRmaSlots,
}

impl PortalsCommands {
    pub(super) const fn new(slots: PortalsRmaSlots) -> Self {
        Self { slots }
    }

    /// Returns true if a step of this slot is in flight.
    pub(super) fn awaits(&self, slot: u32, generation: u32) -> bool {
        self.slots.work(slot, generation).is_some()
    }

    /// Returns true if commands wait for a retry.
    pub(super) const fn have_retries(&self) -> bool {
        self.slots.have_retries()
    }

    /// Returns true if no step is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_idle()
    }

    /// Starts a command with a token. Returns true if there was room.
    pub(super) fn command(
        &mut self,
        transport: &mut PortalsTransport,
        to: u32,
        op: Option<PortalsRmaOp>,
        token: CommandToken,
    ) -> bool {
        let owner = transport.peer(to).owner(to);
        let down = transport.peer(to).state != PortalsPeerState::Up;
        let first = match op {
            _ if down => Err(CommandFailure::PeerDown),
            None => Err(CommandFailure::BadRange),
            Some(op) => op.first(owner).map(|step| (op, step)),
        };
        match first {
            Ok((op, step)) => self.begin(transport, to, Some(token), op, step),
            Err(why) => {
                transport
                    .completions
                    .push_back(PortalsCompletion::Failed(token, why));
                true
            }
        }
    }

    /// Starts a count, unless the peer is down. Returns true if there was room.
    pub(super) fn count(
        &mut self,
        transport: &mut PortalsTransport,
        to: u32,
        counter: RemoteCounter,
        by: u64,
    ) -> bool {
        let Some(cell) = counter.words_key() else {
            return true;
        };
        let op = PortalsRmaOp::Count(by, cell);
        match op.first(transport.peer(to).owner(to)) {
            // Each message adds one, so zero needs none; adapters wake the owner by themselves.
            Ok(PortalsRmaStep::CountTask(0)) => true,
            Ok(step) if transport.peer(to).state == PortalsPeerState::Up => {
                self.begin(transport, to, None, op, step)
            }
            _ => true,
        }
    }

    fn begin(
        &mut self,
        transport: &mut PortalsTransport,
        to: u32,
        token: Option<CommandToken>,
        op: PortalsRmaOp,
        step: PortalsRmaStep,
    ) -> bool {
        if !transport.room.is_left() {
            return false;
        }
        let work = PortalsRmaCommand {
            to,
            token,
            op,
            step,
        };
        let Some(slot) = self.slots.insert(work) else {
            return false;
        };
        transport.peer_mut(to).met = true;
        self.take_step(transport, slot, work);
        true
    }

    /// Starts the current step of a slot.
    fn take_step(&mut self, transport: &mut PortalsTransport, slot: u32, work: PortalsRmaCommand) {
        if matches!(work.step, PortalsRmaStep::Move(0)) && self.stripe(transport, slot, &work) {
            return;
        }
        let lane = match lane_of(transport, &work) {
            LaneAvailability::Lane(lane) => lane,
            LaneAvailability::Retry => return self.slots.schedule_retry(slot),
            LaneAvailability::Never if work.is_of_lists() => {
                return self.go_without(transport, slot, work, lists_lost());
            }
            LaneAvailability::Never => return self.go_without(transport, slot, work, unreached()),
        };
        match self.issue(transport, slot, work, lane) {
            Ok(()) => {
                transport.resources.queues.note_traffic(lane);
                transport.spend_credit(work.to);
            }
            Err(refused) if transport.room.is_for_later(&refused) => {
                self.slots.schedule_retry(slot)
            }
            Err(refused) => self.go_without(
                transport,
                slot,
                work,
                CommandFailure::Transport(refused.into()),
            ),
        }
    }

    /// Handles a step that no lane can do.
    fn go_without(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        work: PortalsRmaCommand,
        why: CommandFailure,
    ) {
        match work.step {
            PortalsRmaStep::CheckWaiter => transport.schedule_words(work.to),
            // No token reports that the count is missing, and the peer may wait for it.
            PortalsRmaStep::Add | PortalsRmaStep::CountTask(_) if work.token.is_none() => {
                transport.suspect(work.to)
            }
            _ => {}
        }
        self.finish(transport, slot, work, Err(why));
    }

    fn issue(
        &self,
        transport: &PortalsTransport,
        slot: u32,
        work: PortalsRmaCommand,
        lane: u32,
    ) -> Result<(), PortalsCallError> {
        let user = self.slots.user_ptr(slot);
        let rail = &transport.resources.rails[lane as usize];
        let words = |word, len| rail.local_span(self.slots.words(slot, word, len), user);
        let operand = |value| {
            self.slots.set_word(slot, RmaSlotWord::Operand, value);
            words(RmaSlotWord::Operand, 8).offset
        };
        let remote = |key, at, len| transport.remote_target(work.to, lane, key, at, len);
        let ni = &rail.ni;
        match (work.step, work.op) {
            (PortalsRmaStep::Move(from), PortalsRmaOp::Put(local, key, _)) => {
                let (part, at) = piece(transport, work.op, local, from);
                let part = self.slots.to_send(slot, part);
                ni.put(
                    rail.local_span(part, user),
                    remote(key, at, local.len())?,
                    0,
                    true,
                )
            }
            (PortalsRmaStep::Move(from), PortalsRmaOp::Get(local, key)) => {
                let (part, at) = piece(transport, work.op, local, from);
                let part = self.slots.to_fill(slot, part);
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
                        tick(transport, work.to, cell)?,
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

    /// Handles the completion of a step.
    pub(super) fn handle_step(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        generation: u32,
        end: PortalsOutcome,
        moved: u64,
        rail: u32,
    ) {
        let Some(mut work) = self.slots.work(slot, generation) else {
            return;
        };
        if end != PortalsOutcome::Success {
            return self.handle_bad_step(transport, slot, work, end, rail);
        }
        transport.peers[work.to as usize].answers += 1;
        if work.falls_beside(moved) {
            return self.finish(transport, slot, work, Err(CommandFailure::BadRange));
        }
        if let (PortalsRmaStep::Move(from), PortalsRmaOp::Get(local, _)) = (work.step, work.op) {
            let moved = usize::try_from(moved).unwrap_or(usize::MAX);
            let piece = local.slice(
                from,
                moved.min(piece_len(transport, work.op, local.len() - from)),
            );
            self.slots.land(slot, piece);
        }
        if let (PortalsRmaStep::Add, Some(token)) =
            (work.step, work.token.take_if(|_| is_add(work.step)))
        {
            transport
                .completions
                .push_back(PortalsCompletion::Complete(token));
        }
        let next = self.next_step(transport, slot, &work, moved);
        self.go_to(transport, slot, work, next);
    }

    fn handle_bad_step(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        work: PortalsRmaCommand,
        end: PortalsOutcome,
        rail: u32,
    ) {
        let again = match end {
            PortalsOutcome::Undeliverable if work.is_repeatable() => {
                transport.fail_lane(work.to, rail)
            }
            PortalsOutcome::Undeliverable => {
                // Whether the step was done is unknown, so the peer is given up, and notified of that by another lane.
                transport.fail_lane(work.to, rail);
                transport.suspect(work.to);
                false
            }
            PortalsOutcome::Dropped => work.waits_for_entry(),
            // A word with the new location is on its way.
            PortalsOutcome::Moved => transport.rails.are_several(),
            _ => false,
        };
        if again && transport.peer(work.to).state == PortalsPeerState::Up {
            self.slots.keep(slot, work);
            return self.slots.schedule_retry(slot);
        }
        self.finish(transport, slot, work, Err(failure(end)));
    }

    /// Continues a command whose bytes were moved by several lanes, or could not be.
    pub(super) fn moved(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        work: PortalsRmaCommand,
        how: Result<(), CommandFailure>,
    ) {
        match how {
            Ok(()) => {
                let next = after_move(transport, &work);
                self.go_to(transport, slot, work, next);
            }
            Err(why) => self.finish(transport, slot, work, Err(why)),
        }
    }

    fn go_to(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        mut work: PortalsRmaCommand,
        next: Option<PortalsRmaStep>,
    ) {
        match next {
            Some(step) => {
                work.step = step;
                self.slots.keep(slot, work);
                self.take_step(transport, slot, work);
            }
            None => self.finish(transport, slot, work, Ok(())),
        }
    }

    fn next_step(
        &self,
        transport: &mut PortalsTransport,
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
                let all = piece_len(transport, op, left) == left || moved == 0;
                if !all && done < local.len() {
                    Some(PortalsRmaStep::Move(done))
                } else {
                    after_move(transport, work)
                }
            }
            (PortalsRmaStep::Add, _) => Some(PortalsRmaStep::CheckWaiter),
            (PortalsRmaStep::CheckWaiter, op) => {
                let after = self
                    .slots
                    .word(slot, RmaSlotWord::Before)
                    .wrapping_add(op.by());
                if after >= !self.slots.word(slot, RmaSlotWord::Counter) {
                    // The words wake the peer. If they are not acknowledged, they are written again by another rail.
                    transport.schedule_words(work.to);
                }
                None
            }
            (PortalsRmaStep::CountTask(left), _) => {
                (left > 1).then(|| PortalsRmaStep::CountTask(left - 1))
            }
            (PortalsRmaStep::Move(_) | PortalsRmaStep::Combine, _) => None,
        }
    }

    /// Retries, in some turns, steps that found no entry at their peer or no room in the library. After one refusal for lack of
    /// room, the others need not be tried.
    pub(super) fn retry_commands(&mut self, transport: &mut PortalsTransport) {
        if !transport.room.backoff.is_retry_turn() {
            return;
        }
        let mut has_room = true;
        for slot in self.slots.take_retries() {
            let Some(work) = self.slots.work_in(slot) else {
                continue;
            };
            if transport.peer(work.to).state != PortalsPeerState::Up {
                self.finish(transport, slot, work, Err(CommandFailure::PeerDown));
            } else if has_room && transport.room.is_left() {
                let refusals = transport.room.refusals();
                self.take_step(transport, slot, work);
                has_room = transport.room.refusals() <= refusals;
            } else {
                self.slots.schedule_retry(slot);
            }
        }
    }

    /// Gives up operations in flight to a dead rank, for a library that never completes them.
    ///
    /// Credits are returned immediately. A late completion finds no operation, and the completion queue has extra places for such
    /// events. Memory that the library may still access is not reused.
    pub(super) fn give_up_in_flight(&mut self, transport: &mut PortalsTransport, rank: u32) {
        let goes_on = transport.resources.ni.goes_on;
        let peer = transport.peer_mut(rank);
        let in_flight = std::mem::take(&mut peer.in_flight);
        let slots = peer.outbox.abandon_in_flight();
        transport.room.give_back(in_flight);
        for (slot, flies) in slots {
            if goes_on && flies {
                transport.resources.pool.lose(slot);
            } else {
                transport.resources.pool.give_back(slot);
            }
        }
        for (slot, work) in self.slots.towards(rank) {
            if goes_on {
                self.slots.retire_slot(slot);
            } else {
                self.slots.remove(slot);
            }
            if let Some(token) = work.token {
                let failed = PortalsCompletion::Failed(token, CommandFailure::PeerDown);
                transport.completions.push_back(failed);
            }
        }
    }

    fn finish(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        work: PortalsRmaCommand,
        how: Result<(), CommandFailure>,
    ) {
        let before = self.slots.word(slot, RmaSlotWord::Before);
        self.slots.remove(slot);
        let Some(token) = work.token else {
            return;
        };
        transport.completions.push_back(match (how, work.op) {
            (Err(why), _) => PortalsCompletion::Failed(token, why),
            (Ok(()), PortalsRmaOp::Atomic(..)) => PortalsCompletion::Fetched(token, before),
            (Ok(()), _) => PortalsCompletion::Complete(token),
        });
    }

    /// Returns the credit of a completed operation.
    pub(super) fn regain_credit(&self, transport: &mut PortalsTransport, user: u64) {
        transport.room.note_completion();
        if transport.resources.ni.ends_to_dead {
            transport.room.give_back(1);
            return; // operations to the dead complete by themselves, so no peer needs an account
        }
        let to = match UserPtr::of(user) {
            Some(UserPtr::Message(to, _) | UserPtr::Words(to)) => Some(to),
            Some(UserPtr::Operation(slot, generation)) => {
                self.slots.work(slot, generation).map(|work| work.to)
            }
            Some(UserPtr::Piece(slot, ..)) => self.slots.work_in(slot).map(|work| work.to),
            None => None,
        };
        let peer = to.and_then(|to| transport.peers.get_mut(to as usize));
        // An operation that was given up may still complete. Its credit has been returned already.
        if let Some(peer) = peer.filter(|peer| peer.in_flight > 0) {
            peer.in_flight -= 1;
            transport.room.give_back(1);
        }
    }
}

fn lane_of(transport: &PortalsTransport, work: &PortalsRmaCommand) -> LaneAvailability {
    if !work.is_of_lists() {
        transport.lane_of_atomics(work.to)
    } else {
        transport.lane_of_lists(work.to)
    }
}

/// Returns the next part of a range that one operation can move, and its offset.
fn piece(
    transport: &PortalsTransport,
    op: PortalsRmaOp,
    local: LocalRange,
    from: usize,
) -> (LocalRange, u64) {
    let piece = local.slice(from, piece_len(transport, op, local.len() - from));
    (piece, from as u64)
}

fn piece_len(transport: &PortalsTransport, op: PortalsRmaOp, left: usize) -> usize {
    let ni = &transport.resources.ni;
    let most = match op {
        PortalsRmaOp::Get(..) => ni.limits.max_msg_size.min(ni.wire.get_max),
        _ => ni.limits.max_msg_size,
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    ni.wire.piece(left.min(most))
}

fn tick(
    transport: &PortalsTransport,
    to: u32,
    cell: RemoteRegion,
) -> Result<RemoteTarget, PortalsCallError> {
    let peer = transport.peer(to);
    let match_bits = match_bits::count(cell, peer.owner(to)).ok_or_else(no_step)?;
    Ok(RemoteTarget {
        process: peer.address.process,
        pt: peer.address.tables.lists,
        match_bits,
        offset: 0,
    })
}

fn after_move(transport: &PortalsTransport, work: &PortalsRmaCommand) -> Option<PortalsRmaStep> {
    let tick = |cell| is_tick(transport, work.to, cell);
    let cell = work.op.cell()?;
    Some(if tick(cell) {
        PortalsRmaStep::CountTask(1)
    } else {
        PortalsRmaStep::Add
    })
}

fn is_tick(transport: &PortalsTransport, to: u32, cell: RemoteRegion) -> bool {
    match_bits::count(cell, transport.peer(to).owner(to)).is_some()
}
