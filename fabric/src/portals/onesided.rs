//! Puts, gets, atomics and counts: each a short row of operations of the adapter, one at a time.
//!
//! A count adds by an atomic of the owner's adapter, and then reads from which value on the owner waits to be woken, as
//! [`offload`](crate::offload) asks. A put that counts looks first whether the counter is there, so that one with a wrong counter
//! writes nothing.

use super::{
    calls::Refused,
    event::End,
    exports,
    lists::bits,
    moves::{Far, Near},
    peer::{Life, Ticket},
    prepare::Ground,
    rails::Bound,
    state::{Portals, Told},
};
use crate::{
    driver::{AtomicOp, Failure, LocalRange, Token},
    memory::{Region, RemoteRegion},
    offload::{CELL_LEN, RemoteCounter},
};

/// Operations under way, and the words that they need.
#[derive(Debug)]
pub(super) struct Operations {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// For each slot: an operand, what was there before, and a counter's two words.
    words: Region,
    /// What has no entry at its peer yet: a name that is not given, or no room for a count.
    later: Vec<u32>,
    /// Turns since those were tried last.
    patience: u32,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    work: Option<Work>,
}

/// A command under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) to: u32,
    /// Who is to be told; nobody after that.
    token: Option<Token>,
    pub(super) deed: Deed,
    step: Step,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    Put(LocalRange, RemoteRegion, Option<RemoteRegion>),
    Get(LocalRange, RemoteRegion),
    Atomic(AtomicOp, RemoteRegion),
    Count(u64, RemoteRegion),
}

/// What the adapter does now.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Look whether a counter is there.
    Probe,
    /// Move the bytes from this one on.
    Move(usize),
    /// The command's atomic.
    Combine,
    /// Add to a counter.
    Add,
    /// Look whether its owner waits for that.
    Look,
    /// Count at a counter of tasks, so many times.
    Tick(u64),
}

impl Operations {
    pub(super) fn new(count: u32) -> std::io::Result<Self> {
        let len = count.max(1) as usize * WORDS_LEN;
        Ok(Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            free: (0..count).rev().collect(),
            words: Region::anonymous(len)?,
            later: Vec::new(),
            patience: 0,
        })
    }

    pub(super) fn range(&self) -> LocalRange {
        self.words.range()
    }

    pub(super) const fn waits_for_entries(&self) -> bool {
        !self.later.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() + self.later.len() == self.slots.len()
    }

    fn insert(&mut self, work: Work) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize].work = Some(work);
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.work = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
    }

    fn work(&self, slot: u32, generation: u32) -> Option<Work> {
        let entry = self.slots.get(slot as usize)?;
        entry.work.filter(|_| entry.generation == generation)
    }

    /// What is under way in a slot.
    pub(super) fn work_in(&self, slot: u32) -> Option<Work> {
        self.slots.get(slot as usize)?.work
    }

    fn word(&self, slot: u32, word: Word) -> u64 {
        self.words
            .atomic_u64(place(slot, word))
            .load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// The words of a slot.
#[derive(Clone, Copy, Debug)]
enum Word {
    Operand = 0,
    Before = 1,
    Cell = 2,
}

const fn place(slot: u32, word: Word) -> usize {
    slot as usize * WORDS_LEN + 8 * word as usize
}

impl Work {
    /// Whether nothing was done, because a name is that of something else.
    fn falls_beside(&self, moved: u64) -> bool {
        let named = match (self.step, self.deed) {
            (Step::Move(from), Deed::Put(local, key, _) | Deed::Get(local, key)) => {
                key.name().is_some() && from < local.len()
            }
            (Step::Combine, Deed::Atomic(_, key)) => key.name().is_some(),
            _ => false,
        };
        named && moved == 0
    }

    /// Whether it has to go by the first rail, where task lists and names are.
    fn is_of_lists(&self) -> bool {
        let key = match self.deed {
            Deed::Put(_, key, _) | Deed::Get(_, key) | Deed::Atomic(_, key) => key,
            Deed::Count(_, cell) => cell,
        };
        match self.step {
            Step::Tick(_) => true,
            Step::Move(_) | Step::Combine => key.name().is_some(),
            Step::Probe | Step::Add | Step::Look => false,
        }
    }

    /// Whether it may be done once more when nobody knows whether it was done.
    const fn is_repeatable(&self) -> bool {
        matches!(self.step, Step::Probe | Step::Look)
    }

    /// Whether its peer may have an entry for it later.
    fn waits_for_entry(&self) -> bool {
        match (self.step, self.deed) {
            (Step::Tick(_), _) => true,
            (Step::Move(_), Deed::Put(_, key, _) | Deed::Get(_, key)) => key.name().is_some(),
            (Step::Combine, Deed::Atomic(_, key)) => key.name().is_some(),
            _ => false,
        }
    }
}

impl Deed {
    /// The first step, if all keys are right as far as can be seen from here.
    fn first(self, owner: exports::Owner) -> Result<Step, Failure> {
        let known = |key, len| exports::target(key, owner, len).ok_or(Failure::BadRange);
        match self {
            Self::Put(from, into, None) => known(into, from.len()).map(|_| Step::Move(0)),
            Self::Put(from, into, Some(cell)) if bits::count(cell, owner).is_some() => {
                known(into, from.len()).map(|_| Step::Move(0))
            }
            Self::Put(from, into, Some(cell)) => {
                known(into, from.len())?;
                known(cell, CELL_LEN).map(|_| Step::Probe)
            }
            Self::Get(into, from) => known(from, into.len()).map(|_| Step::Move(0)),
            Self::Atomic(_, at) => {
                let (_, offset) = known(at, 8)?;
                let aligned = offset.is_multiple_of(8);
                aligned.then_some(Step::Combine).ok_or(Failure::BadRange)
            }
            Self::Count(by, cell) if bits::count(cell, owner).is_some() => Ok(Step::Tick(by)),
            Self::Count(_, cell) => known(cell, CELL_LEN).map(|_| Step::Add),
        }
    }

    /// The counter.
    const fn cell(self) -> Option<RemoteRegion> {
        match self {
            Self::Put(_, _, cell) => cell,
            Self::Count(_, cell) => Some(cell),
            Self::Get(..) | Self::Atomic(..) => None,
        }
    }

    const fn by(self) -> u64 {
        match self {
            Self::Count(by, _) => by,
            _ => 1,
        }
    }
}

impl Portals {
    /// Starts a command that has a token. Whether there was room.
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

    /// Starts a count, unless nobody can be there to see it. Whether there was room.
    pub(super) fn count(&mut self, to: u32, counter: RemoteCounter, by: u64) -> bool {
        let owner = self.peer(to).owner(to);
        let Some(cell) = counter.cell() else {
            return true;
        };
        if to == self.me
            && let Some(ct) = self.own_cell(cell)
        {
            // The interface is closed if it is refused.
            let _added = self.ground.ni.ct_inc(ct, by);
            return true;
        }
        let deed = Deed::Count(by, cell);
        match deed.first(owner) {
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

    /// Has the adapter do the step of a slot.
    fn take_step(&mut self, slot: u32, work: Work) {
        if matches!(work.step, Step::Move(0)) && self.stripe(slot, &work) {
            return;
        }
        let lane = match self.lane_of(&work) {
            Bound::By(lane) => lane,
            Bound::Later => return self.operations.later.push(slot),
            Bound::Never if work.is_of_lists() => {
                return self.finish(slot, work, Err(lists_lost()));
            }
            Bound::Never => return self.finish(slot, work, Err(unreached())),
        };
        match self.issue(slot, work, lane) {
            Ok(()) => {
                self.ground.queues.expect(lane);
                self.credits -= 1;
            }
            Err(refused) => self.finish(slot, work, Err(Failure::Transport(refused.into()))),
        }
    }

    fn lane_of(&self, work: &Work) -> Bound {
        if !work.is_of_lists() {
            self.lane_of_atomics(work.to)
        } else {
            self.lane_of_lists(work.to)
        }
    }

    fn issue(&self, slot: u32, work: Work, lane: u32) -> Result<(), Refused> {
        let generation = self.operations.slots[slot as usize].generation;
        let user = Ticket::Operation(slot, generation).bits();
        let rail = &self.ground.rails[lane as usize];
        let words = |word, len| {
            let words = self.operations.range();
            rail.near(words.slice(place(slot, word), len), user)
        };
        let operand = |value: u64| {
            let at = place(slot, Word::Operand);
            let word = self.operations.words.atomic_u64(at);
            word.store(value, std::sync::atomic::Ordering::SeqCst);
            words(Word::Operand, 8).offset
        };
        let far = |key, at, len| self.far((work.to, lane), key, at, len);
        let ni = &rail.ni;
        match (work.step, work.deed) {
            (Step::Move(from), Deed::Put(local, key, _)) => {
                let (part, at) = self.piece(local, from);
                ni.put(rail.near(part, user), far(key, at, local.len())?, 0, true)
            }
            (Step::Move(from), Deed::Get(local, key)) => {
                let (part, at) = self.piece(local, from);
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

    /// The next part of a range that one operation can move, and where it starts.
    fn piece(&self, local: LocalRange, from: usize) -> (LocalRange, u64) {
        let most = usize::try_from(self.ground.ni.limits.max_msg_size).unwrap_or(usize::MAX);
        let piece = local.slice(from, (local.len() - from).min(most));
        (piece, from as u64)
    }

    fn tick(&self, to: u32, cell: RemoteRegion) -> Result<Far, Refused> {
        let peer = self.peer(to);
        let match_bits = bits::count(cell, peer.owner(to)).ok_or_else(no_step)?;
        Ok(Far {
            process: peer.address.process,
            pt: peer.address.tables.lists,
            match_bits,
            offset: 0,
        })
    }

    /// Memory of a peer, as it is reached by a lane.
    pub(super) fn far(
        &self,
        (to, lane): (u32, u32),
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

    /// A step has ended.
    pub(super) fn handle_step(
        &mut self,
        (slot, generation): (u32, u32),
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
        if work.falls_beside(moved) {
            return self.finish(slot, work, Err(Failure::BadRange));
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
                // Nobody knows whether it was done.
                self.suspect(work.to);
                false
            }
            End::Dropped => work.waits_for_entry(),
            // The word that says where to is on its way.
            End::Moved => self.rails.are_several(),
            _ => false,
        };
        if again && self.peer(work.to).life == Life::Up {
            self.operations.slots[slot as usize].work = Some(work);
            return self.operations.later.push(slot);
        }
        self.finish(slot, work, Err(failure(end)));
    }

    /// All bytes of a put or a get have moved, by several lanes, or will not.
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
                self.operations.slots[slot as usize].work = Some(work);
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

    fn next_step(&self, slot: u32, work: &Work, moved: u64) -> Option<Step> {
        match (work.step, work.deed) {
            (Step::Probe, _) => Some(Step::Move(0)),
            (Step::Move(from), Deed::Put(local, ..) | Deed::Get(local, _)) => {
                let done = from.saturating_add(usize::try_from(moved).unwrap_or(usize::MAX));
                let most = usize::try_from(self.ground.ni.limits.max_msg_size);
                let all = local.len() - from <= most.unwrap_or(usize::MAX) || moved == 0;
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
                    self.wake(work.to);
                }
                None
            }
            (Step::Tick(left), _) => (left > 1).then(|| Step::Tick(left - 1)),
            (Step::Move(_) | Step::Combine, _) => None,
        }
    }

    fn is_tick(&self, to: u32, cell: RemoteRegion) -> bool {
        bits::count(cell, self.peer(to).owner(to)).is_some()
    }

    /// Tries again what found no entry at its peer.
    pub(super) fn try_again(&mut self) {
        self.operations.patience += 1;
        if self.operations.patience < PATIENCE {
            return;
        }
        self.operations.patience = 0;
        for slot in std::mem::take(&mut self.operations.later) {
            let Some(work) = self.operations.slots[slot as usize].work else {
                continue;
            };
            if self.peer(work.to).life != Life::Up {
                self.finish(slot, work, Err(Failure::PeerDown));
            } else if self.credits > RESERVED {
                self.take_step(slot, work);
            } else {
                self.operations.later.push(slot);
            }
        }
    }

    /// Ends the sleep of a rank. Nothing comes back.
    fn wake(&self, to: u32) {
        let peer = self.peer(to);
        let (rail, process) = self.home(to);
        let near = rail.near(self.words.range().slice(0, 0), 0);
        let far = Far {
            process,
            pt: peer.address.tables.board,
            match_bits: peer.address.control_bits(self.me),
            offset: 0,
        };
        // Refused only when the interface is closed, or nobody is there.
        let _sent = rail.ni.put(near, far, 0, false);
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
    /// Local memory, as an operation by the first rail names it.
    pub(super) fn near(&self, range: LocalRange, user: u64) -> Near {
        self.rails[0].near(range, user)
    }
}

const fn is_add(step: Step) -> bool {
    matches!(step, Step::Add)
}

const fn operand_of(op: AtomicOp) -> u64 {
    match op {
        AtomicOp::Add(n)
        | AtomicOp::And(n)
        | AtomicOp::Or(n)
        | AtomicOp::Xor(n)
        | AtomicOp::Max(n)
        | AtomicOp::Min(n)
        | AtomicOp::Swap(n)
        | AtomicOp::CompareSwap { new: n, .. } => n,
        AtomicOp::Fetch => 0,
    }
}

pub(super) fn failure(end: End) -> Failure {
    match end {
        End::Undeliverable => Failure::PeerDown,
        End::Dropped | End::Forbidden => Failure::BadRange,
        End::Well | End::PtDisabled | End::Moved | End::Other(_) => {
            let why = format!("the Portals adapter ended an operation with {end:?}");
            Failure::Transport(std::io::Error::other(why))
        }
    }
}

/// Task lists and names are on the first rail, and that does not reach the peer any more.
pub(super) fn lists_lost() -> Failure {
    let why = "the first rail to this peer has failed, and task lists and names go by no other: \
               set RIPSTOP_COLLECTIVES=messages, or leave that interface out of RIPSTOP_PORTALS_IFACES";
    Failure::Transport(std::io::Error::other(why))
}

/// What no lane can do.
pub(super) fn unreached() -> Failure {
    let why =
        "memory of this peer is reached by no rail that works: look at the links of both ranks";
    Failure::Transport(std::io::Error::other(why))
}

/// Keys were looked at before the first step, and deeds only take steps of theirs.
pub(super) fn no_step() -> Refused {
    Refused::Code("a step that its command does not have".to_owned())
}

/// Turns between two looks for an entry at a peer, which costs both a packet.
const PATIENCE: u32 = 64;
/// Bytes of a slot's words.
const WORDS_LEN: usize = 32;
/// Events that are kept for words on boards.
pub(super) const RESERVED: u32 = 2;
