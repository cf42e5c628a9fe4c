//! Puts, gets, atomics and counts, each as a short sequence of adapter operations, one at a time.
//!
//! ```text
//!   Portals             has the adapter do the steps of commands       this file
//!   Operations          commands under way, and the words they need    slots
//!   Work, Deed, Step    which step comes first, what may be repeated   steps
//! ```
//!
//! A count adds by an atomic of the owner's adapter, and then reads the value from which on the owner must be woken, as
//! [`offload`](crate::offload) requires. A counting put first checks that the counter exists, so that a put with a wrong counter
//! writes nothing.

mod slots;
mod steps;

pub(super) use self::{
    slots::Operations,
    steps::{Deed, Work, failure, lists_lost, no_step, unreached},
};
use self::{
    slots::Word,
    steps::{Step, is_add, operand_of},
};
use super::{
    calls::Refused,
    event::End,
    exports,
    task_lists::match_bits,
    rma_calls::{Far, Near},
    peer::Life,
    prepare::Ground,
    multirail::Bound,
    driver_state::{Portals, Told},
};
use crate::{
    driver::{AtomicOp, Failure, LocalRange, Token},
    memory::RemoteRegion,
    offload::{CELL_LEN, RemoteCounter},
};

impl Portals {
    /// Starts a command with a token. Returns true if there was room.
    pub(super) fn command(&mut self, to: u32, deed: Option<Deed>, token: Token) -> bool {
        let owner = self.peer(to).owner(to);
        let down = self.peer(to).life != Life::Up;
        let first = match deed {
            _ if down => Err(Failure::PeerDown),
            None => Err(Failure::BadRange),
            Some(deed) => deed.first(owner).map(|step| (deed, step)),
        };
        match first {
            Ok((deed, step)) => self.begin(to, Some(token), deed, step),
            Err(why) => {
                self.told.push_back(Told::Failed(token, why));
                true
            }
        }
    }

    /// Starts a count, unless the peer is down. Returns true if there was room.
    pub(super) fn count(&mut self, to: u32, counter: RemoteCounter, by: u64) -> bool {
        let owner = self.peer(to).owner(to);
        let Some(cell) = counter.cell() else {
            return true;
        };
        if to == self.me
            && let Some(ct) = self.own_cell(cell)
        {
            // A refusal means that the interface is closed.
            let _added = self.ground.ni.ct_inc(ct, by);
            return true;
        }
        let deed = Deed::Count(by, cell);
        match deed.first(owner) {
            Ok(Step::Tick(0)) => true, // each message adds one, so zero needs none; adapters wake the owner by themselves
            Ok(step) if self.peer(to).life == Life::Up => self.begin(to, None, deed, step),
            _ => true,
        }
    }

    fn begin(&mut self, to: u32, token: Option<Token>, deed: Deed, step: Step) -> bool {
        if self.credits <= RESERVED {
            return false;
        }
        let work = Work {
            to,
            token,
            deed,
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
    fn take_step(&mut self, slot: u32, work: Work) {
        if matches!(work.step, Step::Move(0)) && self.stripe(slot, &work) {
            return;
        }
        let lane = match self.lane_of(&work) {
            Bound::By(lane) => lane,
            Bound::Later => return self.operations.try_later(slot),
            Bound::Never if work.is_of_lists() => {
                return self.go_without(slot, work, lists_lost());
            }
            Bound::Never => return self.go_without(slot, work, unreached()),
        };
        match self.issue(slot, work, lane) {
            Ok(()) => {
                self.ground.queues.expect(lane);
                self.spend_credit(work.to);
            }
            Err(refused) if self.is_for_later(&refused) => self.operations.try_later(slot),
            Err(refused) => self.go_without(slot, work, Failure::Transport(refused.into())),
        }
    }

    /// Handles a step that no lane can do.
    fn go_without(&mut self, slot: u32, work: Work, why: Failure) {
        match work.step {
            Step::Look => self.say_words(work.to),
            // No token reports that the count is missing, and the peer may wait for it.
            Step::Add | Step::Tick(_) if work.token.is_none() => self.suspect(work.to),
            _ => {}
        }
        self.finish(slot, work, Err(why));
    }

    fn lane_of(&self, work: &Work) -> Bound {
        if !work.is_of_lists() {
            self.lane_of_atomics(work.to)
        } else {
            self.lane_of_lists(work.to)
        }
    }

    fn issue(&self, slot: u32, work: Work, lane: u32) -> Result<(), Refused> {
        let user = self.operations.ticket(slot);
        let rail = &self.ground.rails[lane as usize];
        let words = |word, len| rail.near(self.operations.words(slot, word, len), user);
        let operand = |value| {
            self.operations.set_word(slot, Word::Operand, value);
            words(Word::Operand, 8).offset
        };
        let far = |key, at, len| self.far(work.to, lane, key, at, len);
        let ni = &rail.ni;
        match (work.step, work.deed) {
            (Step::Move(from), Deed::Put(local, key, _)) => {
                let (part, at) = self.piece(work.deed, local, from);
                let part = self.operations.to_send(slot, part);
                ni.put(rail.near(part, user), far(key, at, local.len())?, 0, true)
            }
            (Step::Move(from), Deed::Get(local, key)) => {
                let (part, at) = self.piece(work.deed, local, from);
                let part = self.operations.to_fill(slot, part);
                ni.get(rail.near(part, user), far(key, at, local.len())?)
            }
            (Step::Combine, Deed::Atomic(op, key)) => {
                let operand = operand(operand_of(op));
                ni.atomic(words(Word::Before, 8), operand, far(key, 0, 8)?, op)
            }
            (step, deed) => {
                let cell = deed.cell().ok_or_else(no_step)?;
                match step {
                    Step::Tick(_) => {
                        ni.put(words(Word::Cell, 0), self.tick(work.to, cell)?, 0, true)
                    }
                    Step::Probe => ni.get(words(Word::Cell, 16), far(cell, 0, CELL_LEN)?),
                    Step::Look => ni.get(words(Word::Cell, 8), far(cell, 8, CELL_LEN)?),
                    _ => {
                        let by = AtomicOp::Add(deed.by());
                        let operand = operand(deed.by());
                        let near = words(Word::Before, 8);
                        ni.atomic(near, operand, far(cell, 0, CELL_LEN)?, by)
                    }
                }
            }
        }
    }

    /// Returns the next part of a range that one operation can move, and its offset.
    fn piece(&self, deed: Deed, local: LocalRange, from: usize) -> (LocalRange, u64) {
        let piece = local.slice(from, self.piece_len(deed, local.len() - from));
        (piece, from as u64)
    }

    fn piece_len(&self, deed: Deed, left: usize) -> usize {
        let ni = &self.ground.ni;
        let most = match deed {
            Deed::Get(..) => ni.limits.max_msg_size.min(ni.wire.get_most),
            _ => ni.limits.max_msg_size,
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        ni.wire.piece(left.min(most))
    }

    fn tick(&self, to: u32, cell: RemoteRegion) -> Result<Far, Refused> {
        let peer = self.peer(to);
        let match_bits = match_bits::count(cell, peer.owner(to)).ok_or_else(no_step)?;
        Ok(Far {
            process: peer.address.process,
            pt: peer.address.tables.lists,
            match_bits,
            offset: 0,
        })
    }

    /// Returns the location of a peer's memory on a lane.
    pub(super) fn far(
        &self,
        to: u32,
        lane: u32,
        key: RemoteRegion,
        at: u64,
        len: usize,
    ) -> Result<Far, Refused> {
        let peer = self.peer(to);
        let named = exports::target(key, peer.owner(to), len);
        let (match_bits, offset) = named.ok_or_else(no_step)?;
        let (process, pt) = self.place(to, lane).ok_or_else(no_step)?;
        Ok(Far {
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
        end: End,
        moved: u64,
        rail: u32,
    ) {
        let Some(mut work) = self.operations.work(slot, generation) else {
            return;
        };
        if end != End::Well {
            return self.handle_bad_step(slot, work, end, rail);
        }
        self.peers[work.to as usize].answers += 1;
        if work.falls_beside(moved) {
            return self.finish(slot, work, Err(Failure::BadRange));
        }
        if let (Step::Move(from), Deed::Get(local, _)) = (work.step, work.deed) {
            let moved = usize::try_from(moved).unwrap_or(usize::MAX);
            let piece = local.slice(
                from,
                moved.min(self.piece_len(work.deed, local.len() - from)),
            );
            self.operations.land(slot, piece);
        }
        if let (Step::Add, Some(token)) = (work.step, work.token.take_if(|_| is_add(work.step))) {
            self.told.push_back(Told::Complete(token));
        }
        let next = self.next_step(slot, &work, moved);
        self.go_to(slot, work, next);
    }

    fn handle_bad_step(&mut self, slot: u32, work: Work, end: End, rail: u32) {
        let again = match end {
            End::Undeliverable if work.is_repeatable() => self.fail_lane(work.to, rail),
            End::Undeliverable => {
                // Whether the step was done is unknown, so the peer is given up, and told so by another lane.
                self.fail_lane(work.to, rail);
                self.suspect(work.to);
                false
            }
            End::Dropped => work.waits_for_entry(),
            // A word with the new location is on its way.
            End::Moved => self.rails.are_several(),
            _ => false,
        };
        if again && self.peer(work.to).life == Life::Up {
            self.operations.keep(slot, work);
            return self.operations.try_later(slot);
        }
        self.finish(slot, work, Err(failure(end)));
    }

    /// Continues a command whose bytes were moved by several lanes, or could not be.
    pub(super) fn moved(&mut self, slot: u32, work: Work, how: Result<(), Failure>) {
        match how {
            Ok(()) => {
                let next = self.after_move(&work);
                self.go_to(slot, work, next);
            }
            Err(why) => self.finish(slot, work, Err(why)),
        }
    }

    fn go_to(&mut self, slot: u32, mut work: Work, next: Option<Step>) {
        match next {
            Some(step) => {
                work.step = step;
                self.operations.keep(slot, work);
                self.take_step(slot, work);
            }
            None => self.finish(slot, work, Ok(())),
        }
    }

    fn after_move(&self, work: &Work) -> Option<Step> {
        let tick = |cell| self.is_tick(work.to, cell);
        let cell = work.deed.cell()?;
        Some(if tick(cell) { Step::Tick(1) } else { Step::Add })
    }

    fn next_step(&mut self, slot: u32, work: &Work, moved: u64) -> Option<Step> {
        match (work.step, work.deed) {
            (Step::Probe, _) => Some(Step::Move(0)),
            (Step::Move(from), deed @ (Deed::Put(local, ..) | Deed::Get(local, _))) => {
                let done = from.saturating_add(usize::try_from(moved).unwrap_or(usize::MAX));
                let left = local.len() - from;
                let all = self.piece_len(deed, left) == left || moved == 0;
                if !all && done < local.len() {
                    Some(Step::Move(done))
                } else {
                    self.after_move(work)
                }
            }
            (Step::Add, _) => Some(Step::Look),
            (Step::Look, deed) => {
                let after = self
                    .operations
                    .word(slot, Word::Before)
                    .wrapping_add(deed.by());
                if after >= !self.operations.word(slot, Word::Cell) {
                    // The words wake the peer. If they are not acknowledged, they are written again by another rail.
                    self.say_words(work.to);
                }
                None
            }
            (Step::Tick(left), _) => (left > 1).then(|| Step::Tick(left - 1)),
            (Step::Move(_) | Step::Combine, _) => None,
        }
    }

    fn is_tick(&self, to: u32, cell: RemoteRegion) -> bool {
        match_bits::count(cell, self.peer(to).owner(to)).is_some()
    }

    /// Retries, in some turns, steps that found no entry at their peer or no room in the library. After one refusal for lack of
    /// room, the others need not be tried.
    pub(super) fn try_again(&mut self) {
        if !self.naps.asks() {
            return;
        }
        let mut has_room = true;
        for slot in self.operations.take_later() {
            let Some(work) = self.operations.work_in(slot) else {
                continue;
            };
            if self.peer(work.to).life != Life::Up {
                self.finish(slot, work, Err(Failure::PeerDown));
            } else if has_room && self.credits > RESERVED {
                let refusals = self.refusals;
                self.take_step(slot, work);
                has_room = self.refusals <= refusals;
            } else {
                self.operations.try_later(slot);
            }
        }
    }

    /// Gives up operations in flight to a dead rank, for a library that never completes them.
    ///
    /// Credits are returned immediately. A late completion finds no operation, and the completion queue has extra places for such
    /// events. Memory that the library may still access is not reused.
    pub(super) fn give_up_under_way(&mut self, rank: u32) {
        let goes_on = self.ground.ni.goes_on;
        let peer = self.peer_mut(rank);
        let under_way = std::mem::take(&mut peer.under_way);
        let slots = peer.outbox.forsake();
        self.credits += under_way;
        for (slot, flies) in slots {
            if goes_on && flies {
                self.ground.pool.lose(slot);
            } else {
                self.ground.pool.give_back(slot);
            }
        }
        for (slot, work) in self.operations.towards(rank) {
            if goes_on {
                self.operations.lose(slot);
            } else {
                self.operations.remove(slot);
            }
            if let Some(token) = work.token {
                let failed = Told::Failed(token, Failure::PeerDown);
                self.told.push_back(failed);
            }
        }
    }

    fn finish(&mut self, slot: u32, work: Work, how: Result<(), Failure>) {
        let before = self.operations.word(slot, Word::Before);
        self.operations.remove(slot);
        let Some(token) = work.token else {
            return;
        };
        self.told.push_back(match (how, work.deed) {
            (Err(why), _) => Told::Failed(token, why),
            (Ok(()), Deed::Atomic(..)) => Told::Fetched(token, before),
            (Ok(()), _) => Told::Complete(token),
        });
    }
}

impl Ground {
    /// Returns local memory in the form that operations on the first rail use.
    pub(super) fn near(&self, range: LocalRange, user: u64) -> Near {
        self.rails[0].near(range, user)
    }
}

/// Credits reserved for control words.
pub(super) const RESERVED: u32 = 2;
