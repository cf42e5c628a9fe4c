//! Puts, gets, atomics and counts: done by the devices, with nobody's help at the target.
//!
//! A count adds to the counter and reads it in one go, together with the threshold that its owner waits for; whoever finds the
//! threshold reached wakes the owner. Memory of this rank that is no region of its own is registered for the command, or,
//! when it is short, copied.

use std::sync::atomic::AtomicU64;

use super::{
    abi::{WC_FLUSHED, WC_RETRIES_EXCEEDED, WC_SUCCESS},
    core::{Core, News, index},
    inbox::BODY_MAX,
    objects::{Access, CHAIN_MAX, Local, Remote, What, Work},
    outbox::{Cargo, Flight, Step, quiet},
    regions::{ENTRY_LEN, Entry, Found, check, entry_of},
    wire::Word,
};
use crate::{
    driver::{AtomicOp, Command, Failure, LocalRange, Token},
    memory::RemoteRegion,
    offload::{CELL_LEN, Landing, RemoteCounter},
};

/// A command under way.
#[derive(Debug)]
pub(super) struct Op {
    peer: u32,
    owner: Owner,
    wish: Wish,
    /// Bytes that are posted, and whether nothing is left to post.
    posted: usize,
    all_posted: bool,
    flights: u32,
    why: Option<Failure>,
    old: u64,
    /// The memory here as the device knows it, and what is given back at the end.
    here: Option<Local>,
    registered: Option<u32>,
    chunk: Option<u32>,
}

/// Who hears of the end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nobody: it is a count.
    Nobody,
    Caller(Token),
    /// A task of a list, by its number.
    Task(u64),
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    Put {
        from: LocalRange,
        into: RemoteRegion,
        count: Option<RemoteRegion>,
    },
    /// A put of these few words.
    Offer {
        landing: Landing,
        into: RemoteRegion,
        count: Option<RemoteRegion>,
    },
    Get {
        from: RemoteRegion,
        into: LocalRange,
    },
    /// `known`: what the word was when it was last looked at.
    Atomic {
        at: RemoteRegion,
        op: AtomicOp,
        known: Option<u64>,
    },
    Count {
        cell: RemoteRegion,
        by: u64,
    },
}

/// Why a command cannot go on.
enum Stall {
    /// There is no room, or no connection yet.
    Room,
    /// Until this slot of the peer's table is read.
    Slot(u32),
    /// Until the peer has given this name.
    Name(u64),
    Never(Failure),
}

impl From<Failure> for Stall {
    fn from(why: Failure) -> Self {
        Self::Never(why)
    }
}

/// Where a command goes: its memory, and its counter.
type Places = (Remote, Option<Remote>);

impl Core {
    /// Takes a command about a peer's memory. Whether there was room.
    pub(super) fn move_bytes(&mut self, command: &Command<'_>) -> bool {
        let (to, owner, wish) = match *command {
            Command::Put {
                to,
                from,
                into,
                count,
                token,
            } => {
                let owner = Owner::Caller(token);
                match cell_of(count) {
                    Ok(count) => (to, owner, Wish::Put { from, into, count }),
                    Err(_) => return self.refuse(token),
                }
            }
            Command::Get {
                to,
                from,
                into,
                token,
            } => (to, Owner::Caller(token), Wish::Get { from, into }),
            Command::Atomic { to, at, op, token } => {
                let known = None;
                (to, Owner::Caller(token), Wish::Atomic { at, op, known })
            }
            Command::Count { to, counter, by } => match Wish::count(counter, by) {
                Some(wish) => (to, Owner::Nobody, wish),
                None => return true,
            },
            ref other => unreachable!("{other:?} is not about a peer's memory"),
        };
        self.begin(to.0, owner, wish)
    }

    /// Takes a command. Whether there was room.
    pub(super) fn begin(&mut self, peer: u32, owner: Owner, wish: Wish) -> bool {
        assert!(
            index(peer) < self.peers.len(),
            "rank {peer} in a job of {}",
            self.peers.len()
        );
        if self.ops.len() >= OPS_MAX {
            self.refused = true;
            return false;
        }
        let id = self.ops.insert(Op::new(peer, owner, wish));
        self.link_or_new(peer).counts += wish.counts();
        if self.link_or_new(peer).gone.is_some() {
            self.abandon(id, Failure::PeerDown);
        } else if let Err(why) = wish.check(peer) {
            self.abandon(id, why);
        } else {
            if !self.link_or_new(peer).open {
                self.dial(peer);
            }
            self.run(id);
            if self.stirred.contains(&peer) {
                self.flush(peer);
            }
        }
        true
    }

    /// A command that cannot be right ends at once.
    fn refuse(&mut self, token: Token) -> bool {
        self.news.push_back(News::Failed(token, Failure::BadRange));
        true
    }

    /// Goes on with the commands that waited for room.
    pub(super) fn unpark(&mut self, peer: u32) {
        let Some(link) = self.link(peer).filter(|link| link.open) else {
            return;
        };
        for id in std::mem::take(&mut link.parked) {
            self.run(id);
        }
    }

    pub(super) fn run(&mut self, id: u32) {
        let stall = self.advance(id);
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let peer = op.peer;
        match stall {
            Ok(()) => {
                self.settle_posted(id);
                self.finish_if_over(id);
            }
            Err(Stall::Never(why)) => self.abandon(id, why),
            Err(Stall::Room) if self.link_or_new(peer).gone.is_some() => {
                self.abandon(id, Failure::PeerDown);
            }
            Err(Stall::Room) => {
                self.link_or_new(peer).parked.push_back(id);
                self.stir(peer);
            }
            Err(Stall::Slot(slot)) => self.link_or_new(peer).asking.push((slot, id)),
            Err(Stall::Name(name)) => self.link_or_new(peer).naming.push((name, id)),
        }
    }

    /// Posts as much of a command as there is room for.
    fn advance(&mut self, id: u32) -> Result<(), Stall> {
        let Some(op) = self.ops.get(id) else {
            return Ok(());
        };
        let (peer, wish) = (op.peer, op.wish);
        let places = self.find(peer, &wish)?;
        match wish {
            Wish::Put {
                from, count: None, ..
            } if from.is_empty() => Ok(()),
            Wish::Get { into, .. } if into.is_empty() => Ok(()),
            Wish::Put { .. } | Wish::Offer { .. } => self.post_pieces(id, peer, places, true),
            Wish::Get { .. } => self.post_pieces(id, peer, places, false),
            Wish::Count { by, .. } => self.post_count(id, peer, places.0, by, None),
            Wish::Atomic { op, known, .. } => self.post_atomic(id, peer, places.0, op, known),
        }
    }

    /// Where a command goes, if both its keys are known to be good.
    fn find(&mut self, peer: u32, wish: &Wish) -> Result<Places, Stall> {
        let (main, count) = wish.keys();
        let main = self.look_up(peer, main)?;
        let count = count.map(|count| self.look_up(peer, count)).transpose()?;
        Ok((main, count))
    }

    /// Where a key's range is, or a look at the owner's table under way.
    fn look_up(&mut self, peer: u32, key: RemoteRegion) -> Result<Remote, Stall> {
        let Self {
            links,
            outbox,
            peers,
            ..
        } = self;
        let link = links[index(peer)]
            .as_deref_mut()
            .filter(|link| link.has_room(1));
        let link = link.ok_or(Stall::Room)?;
        let slot = match link.imports.find(key)? {
            Found::There(place) => return Ok(place),
            Found::Asked(slot) => return Err(Stall::Slot(slot)),
            Found::Naming(name) => return Err(Stall::Name(name)),
            Found::Unnamed(name) => {
                link.imports.ask_name(name);
                self.say(peer, Word::Ask(name));
                return Err(Stall::Name(name));
            }
            Found::Unknown(slot) => slot,
        };
        let answer = outbox
            .has_room(1)
            .then(|| outbox.answer())
            .flatten()
            .ok_or(Stall::Room)?;
        let into = outbox.answer_at(answer, 0, ENTRY_LEN / 8);
        let from = entry_of(peers[index(peer)].table, slot);
        let what = What::Read { from, into };
        let work = Work {
            id: quiet(peer),
            what,
            signaled: false,
            solicited: false,
        };
        let what = Cargo::LookUp { slot };
        link.imports.ask(slot);
        let posted = outbox.post(
            link,
            Flight {
                peer,
                requests: 1,
                what,
                answer: Some(answer),
            },
            &[work],
        );
        if let Err(why) = posted {
            self.note_broken(peer, why);
        }
        Err(Stall::Slot(slot))
    }

    /// An entry of a peer's table was read, or will not be.
    pub(super) fn handle_entry(&mut self, peer: u32, slot: u32, answer: Option<u32>, read: bool) {
        let words = answer
            .map(|answer| self.outbox.take_answer(answer))
            .filter(|_| read);
        let link = self.link_or_new(peer);
        let _again_if_not = link.imports.answer(slot, words.and_then(Entry::parse));
        let asking = std::mem::take(&mut link.asking);
        for (of, id) in asking {
            if of == slot {
                self.run(id);
            } else {
                self.link_or_new(peer).asking.push((of, id));
            }
        }
        self.link_or_new(peer).imports.drop_empty(slot);
    }

    fn post_pieces(
        &mut self,
        id: u32,
        peer: u32,
        (place, count): Places,
        put: bool,
    ) -> Result<(), Stall> {
        let here = self.reach(id)?;
        let whole = here.len();
        loop {
            let at = self.ops.get(id).map_or(0, |op| op.posted);
            let len = (whole - at).min(self.own.piece_max);
            let (piece, there) = (here.part(at, len), place.at(at as u64));
            let last = at + len == whole;
            let what = if put {
                What::Write {
                    from: (len > 0).then_some(piece),
                    into: there,
                }
            } else {
                What::Read {
                    from: there,
                    into: piece,
                }
            };
            match count.filter(|_| last) {
                Some(cell) => self.post_count(id, peer, cell, 1, Some(what))?,
                None => self.post_step(id, peer, Step::Move, None, &[what])?,
            }
            if let Some(op) = self.ops.get_mut(id) {
                op.posted += len;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// The memory here as the device knows it.
    fn reach(&mut self, id: u32) -> Result<Local, Stall> {
        let op = self.ops.get_mut(id).ok_or(Stall::Room)?;
        if let Some(here) = op.here {
            return Ok(here);
        }
        let (range, access) = match &op.wish {
            Wish::Offer { landing, .. } => {
                let filled = self.outbox.fill(&[bytemuck::bytes_of(landing)]);
                let (chunk, here) = filled.ok_or(Stall::Room)?;
                (op.chunk, op.here) = (Some(chunk), Some(here));
                return Ok(here);
            }
            Wish::Put { from, .. } => (*from, Access::Read),
            Wish::Get { into, .. } => (*into, Access::Write),
            Wish::Atomic { .. } | Wish::Count { .. } => return Err(Stall::Room),
        };
        let here = if let Some(own) = self.exports.local(range) {
            own
        } else if range.len() <= BOUNCE_MAX {
            let put = access == Access::Read;
            let chunk = self.outbox.bounce(range, put).ok_or(Stall::Room)?;
            op.chunk = Some(chunk);
            self.counters.copies.add(1);
            self.counters.bytes_copied.add(range.len() as u64);
            self.outbox.chunk(chunk, range.len())
        } else {
            let taken = self.registrations.take(range, access);
            let registered = taken.map_err(Failure::Transport)?.ok_or(Stall::Room)?;
            op.registered = Some(registered);
            let here = self.registrations.local(registered, range);
            here.ok_or(Stall::Room)?
        };
        op.here = Some(here);
        Ok(here)
    }

    /// Adds to a counter after `before`, and looks at it.
    fn post_count(
        &mut self,
        id: u32,
        peer: u32,
        cell: Remote,
        by: u64,
        before: Option<What<'_>>,
    ) -> Result<(), Stall> {
        let answer = self.outbox.answer().ok_or(Stall::Room)?;
        let old = self.outbox.answer_at(answer, 0, 1);
        let both = self.outbox.answer_at(answer, 1, 2);
        let add = What::Add { at: cell, by, old };
        let look = What::Read {
            from: cell,
            into: both,
        };
        match before {
            Some(before) => {
                self.post_step(id, peer, Step::Count, Some(answer), &[before, add, look])
            }
            None => self.post_step(id, peer, Step::Count, Some(answer), &[add, look]),
        }
    }

    fn post_atomic(
        &mut self,
        id: u32,
        peer: u32,
        at: Remote,
        op: AtomicOp,
        known: Option<u64>,
    ) -> Result<(), Stall> {
        let (expected, wanted) = match (op, known) {
            (AtomicOp::CompareSwap { expected, new }, _) => (Some(expected), new),
            (AtomicOp::Add(_) | AtomicOp::Fetch, _) | (_, None) => (None, 0),
            (_, Some(known)) => (Some(known), op.after(known)),
        };
        if expected == Some(wanted) && known.is_some() {
            if let Some(op) = self.ops.get_mut(id) {
                op.old = wanted; // it would stay as it was seen
            }
            return Ok(());
        }
        let answer = self.outbox.answer().ok_or(Stall::Room)?;
        let old = self.outbox.answer_at(answer, 0, 1);
        let what = match (expected, op) {
            (Some(expected), _) => What::CompareSwap {
                at,
                expected,
                new: wanted,
                old,
            },
            (None, AtomicOp::Add(by)) => What::Add { at, by, old },
            (None, _) => What::Add { at, by: 0, old },
        };
        self.post_step(id, peer, Step::Atomic { expected }, Some(answer), &[what])
    }

    fn post_step(
        &mut self,
        id: u32,
        peer: u32,
        step: Step,
        answer: Option<u32>,
        chain: &[What<'_>],
    ) -> Result<(), Stall> {
        let requests = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let Self {
            links, outbox, ops, ..
        } = self;
        let link = links[index(peer)].as_deref_mut().ok_or(Stall::Room)?;
        if !link.has_room(requests) || !outbox.has_room(requests) {
            answer
                .into_iter()
                .for_each(|answer| outbox.free_answer(answer));
            return Err(Stall::Room);
        }
        let flight = Flight {
            peer,
            requests,
            what: Cargo::Step { op: id, step },
            answer,
        };
        let first = Work {
            id: quiet(peer),
            what: chain[0],
            signaled: false,
            solicited: false,
        };
        let mut works = [first; CHAIN_MAX];
        for (work, what) in works.iter_mut().zip(chain) {
            work.what = *what;
        }
        let posted = outbox.post(link, flight, &works[..chain.len()]);
        if let Some(op) = ops.get_mut(id) {
            op.flights += 1;
        }
        if let Err(why) = posted {
            self.note_broken(peer, why);
        }
        Ok(())
    }

    /// A step of a command is over.
    pub(super) fn handle_step(&mut self, id: u32, step: Step, answer: Option<u32>, status: i32) {
        let found = answer.map(|answer| self.outbox.take_answer(answer));
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        op.flights -= 1;
        let peer = op.peer;
        if status != WC_SUCCESS {
            let why = match status {
                WC_FLUSHED | WC_RETRIES_EXCEEDED => Failure::PeerDown,
                _ => Failure::Transport(std::io::Error::other(self.own.context.status(status))),
            };
            return self.abandon(id, why);
        }
        match (step, found) {
            (Step::Count, Some([_, count, wake_at, _])) if count >= !wake_at => {
                self.say(peer, Word::Wake)
            }
            (Step::Atomic { expected }, Some([old, ..])) => {
                op.old = old;
                if op.wish.wants_another_look(expected, old) {
                    op.all_posted = false;
                    return self.run(id);
                }
            }
            _ => {}
        }
        self.finish_if_over(id);
    }

    /// No more of a command is posted. What is under way of it still ends it.
    pub(super) fn abandon(&mut self, id: u32, why: Failure) {
        self.settle_posted(id);
        if let Some(op) = self.ops.get_mut(id) {
            op.why.get_or_insert(why);
            self.finish_if_over(id);
        }
    }

    /// No more of a command is to be posted. Messages that waited for a count may go.
    fn settle_posted(&mut self, id: u32) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let (peer, counts) = (op.peer, op.wish.counts());
        if !std::mem::replace(&mut op.all_posted, true) && counts > 0 {
            self.link_or_new(peer).counts -= counts;
            self.stir(peer);
        }
    }

    fn finish_if_over(&mut self, id: u32) {
        if !self
            .ops
            .get(id)
            .is_some_and(|op| op.all_posted && op.flights == 0)
        {
            return;
        }
        let Some(op) = self.ops.remove(id) else {
            return;
        };
        if let Some(chunk) = op.chunk {
            if let (Wish::Get { into, .. }, None) = (op.wish, &op.why) {
                self.outbox.copy_out(chunk, into);
            }
            self.outbox.free_chunk(chunk);
        }
        if let Some(registered) = op.registered {
            self.registrations.give_back(registered);
        }
        let token = match op.owner {
            Owner::Nobody => return,
            Owner::Task(serial) => return self.task_over(serial, op.why.map_or(Ok(()), Err)),
            Owner::Caller(token) => token,
        };
        self.news.push_back(match (op.why, op.wish) {
            (Some(why), _) => News::Failed(token, why),
            (None, Wish::Atomic { .. }) => News::Fetched(token, op.old),
            (None, _) => News::Complete(token),
        });
    }

    /// Ends a command of which nothing is under way.
    pub(super) fn recall(&mut self, owner: Owner) {
        let found = self.ops.find(|op| op.owner == owner && op.flights == 0);
        if let Some(id) = found {
            let peer = self.ops.get(id).map_or(self.me, |op| op.peer);
            self.link_or_new(peer).forget_op(id);
            self.abandon(id, Failure::Cancelled);
        }
    }

    /// Whether anything under way touches memory of the application.
    pub(super) fn touches_memory(&self, peer: u32) -> bool {
        self.ops.iter().any(|op| op.peer == peer && op.flights > 0)
    }
}

impl Op {
    const fn new(peer: u32, owner: Owner, wish: Wish) -> Self {
        Self {
            peer,
            owner,
            wish,
            posted: 0,
            all_posted: false,
            flights: 0,
            why: None,
            old: 0,
            here: None,
            registered: None,
            chunk: None,
        }
    }
}

impl Wish {
    /// How many counts it is by itself.
    fn counts(&self) -> u32 {
        u32::from(matches!(self, Self::Count { .. }))
    }

    /// A count, if the key can be one to a counter.
    pub(super) fn count(counter: RemoteCounter, by: u64) -> Option<Self> {
        counter.cell().map(|cell| Self::Count { cell, by })
    }

    const fn keys(&self) -> (RemoteRegion, Option<RemoteRegion>) {
        match *self {
            Self::Put { into, count, .. } | Self::Offer { into, count, .. } => (into, count),
            Self::Get { from, .. } => (from, None),
            Self::Atomic { at, .. } => (at, None),
            Self::Count { cell, .. } => (cell, None),
        }
    }

    /// Whether its keys can be keys of this peer's at all.
    fn check(&self, peer: u32) -> Result<(), Failure> {
        let word = |key: RemoteRegion, len| {
            let aligned = key.base.is_multiple_of(size_of::<u64>() as u64);
            check(key, peer, len)?;
            aligned.then_some(()).ok_or(Failure::BadRange)
        };
        match *self {
            Self::Put { from, into, count } => {
                check(into, peer, from.len())?;
                count.map_or(Ok(()), |cell| word(cell, CELL_LEN))
            }
            Self::Offer { into, count, .. } => {
                check(into, peer, size_of::<Landing>())?;
                count.map_or(Ok(()), |cell| word(cell, CELL_LEN))
            }
            Self::Get { from, into } => check(from, peer, into.len()),
            Self::Atomic { at, .. } => word(at, size_of::<u64>()),
            Self::Count { cell, .. } => word(cell, CELL_LEN),
        }
    }

    /// After a look at the word of an atomic that the device has not: whether it has to be tried (again). Notes what was seen.
    fn wants_another_look(&mut self, expected: Option<u64>, old: u64) -> bool {
        let Self::Atomic { op, known, .. } = self else {
            return false;
        };
        let native = matches!(
            op,
            AtomicOp::Add(_) | AtomicOp::Fetch | AtomicOp::CompareSwap { .. }
        );
        let done = native || expected == Some(old);
        *known = Some(old);
        !done
    }
}

/// The counter of a put, if its key can be one to a counter.
pub(super) fn cell_of(count: Option<RemoteCounter>) -> Result<Option<RemoteRegion>, Failure> {
    let cell = count.map(|count| count.cell().ok_or(Failure::BadRange));
    cell.transpose()
}

impl AtomicOp {
    /// What a word becomes by it.
    fn after(self, word: u64) -> u64 {
        let word = AtomicU64::new(word);
        self.apply(&word);
        word.into_inner()
    }
}

/// Commands that may be under way or wait.
const OPS_MAX: usize = 1024;

/// What is not longer is copied: about as long as to register it takes.
const BOUNCE_MAX: usize = BODY_MAX;
