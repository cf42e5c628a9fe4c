//! Posting commands, as far as there is room: resolving their keys, registering their memory, and cutting them into pieces.

use super::{
    core::{Core, index},
    host_counters::Tally,
    inbox::BODY_MAX,
    link::Link,
    objects::{Access, Local, Remote, STEP_MAX, What, Work},
    onesided::Here,
    outbox::{Cargo, Flight, Outbox, Step, quiet},
    regions::{ENTRY_LEN, Entry, Found, Place, entry_of},
    lane::{FIRST, To},
    wire::Word,
    rma_op::Wish,
};
use crate::{
    driver::{AtomicOp, Failure},
    lanes::RAILS_MAX,
    memory::RemoteRegion,
};

/// Why a command cannot go on.
pub(super) enum Stall {
    /// There is no room, or no connection yet.
    Room,
    /// The peer has no buffer for the completion that it gets.
    Credits,
    /// This entry of the peer's table must be read first.
    Slot(u32),
    /// The peer must give this name first.
    Name(u64),
    /// The command fails.
    Never(Failure),
}

impl From<Failure> for Stall {
    fn from(why: Failure) -> Self {
        Self::Never(why)
    }
}

/// Targets of a command: the peer's memory, and its counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) main: Remote,
    pub(super) cell: Option<Cell>,
}

/// Way to add to a peer's counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    /// By the peer's device.
    There(Remote),
    /// By the peer's processor, which is notified.
    Told(Tally),
}

impl Core {
    /// Returns where a command goes by the first lane, if both its keys are known to be valid.
    pub(super) fn find(&mut self, peer: u32, wish: &Wish) -> Result<Places, Stall> {
        let (main, count) = wish.keys();
        let main = self.look_up(To::first(peer), main, false)?.on(FIRST);
        let cell = count.map(|key| self.find_cell(peer, key)).transpose()?;
        Ok(Places { main, cell })
    }

    /// Checks the key of a command that moves nothing. Any lane can tell.
    pub(super) fn look_only(&mut self, peer: u32, wish: &Wish) -> Result<(), Stall> {
        let lane = self.link_or_new(peer).home;
        let (main, _) = wish.keys();
        self.look_up(To { peer, lane }, main, false).map(|_| ())
    }

    /// Returns how to add to a counter. With several lanes, a notification is in no order with data by other lanes, so the device
    /// adds.
    fn find_cell(&mut self, peer: u32, key: RemoteRegion) -> Result<Cell, Stall> {
        let place = self.look_up(To::first(peer), key, false)?;
        let link = self.links[index(peer)].as_deref();
        let narrow = link.filter(|link| !link.is_wide());
        let tally = narrow.and_then(|link| link.imports.tally(key));
        Ok(tally.map_or_else(|| Cell::There(place.on(FIRST)), Cell::Told))
    }

    /// Returns where the range of a key is, by all lanes if `widely`. If that is not known, begins to read it from the owner's
    /// table.
    pub(super) fn look_up(
        &mut self,
        to: To,
        key: RemoteRegion,
        widely: bool,
    ) -> Result<Place, Stall> {
        let To { peer, lane } = to;
        let Self {
            links,
            outbox,
            peers,
            ..
        } = self;
        let link = links[index(peer)]
            .as_deref_mut()
            .filter(|link| link.has_room(lane, 1));
        let link = link.ok_or(Stall::Room)?;
        let slot = match link.imports.find(key, widely)? {
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
            .has_room(lane, 1)
            .then(|| outbox.answer())
            .flatten()
            .ok_or(Stall::Room)?;
        let into = outbox.answer_at(lane, answer, 0..ENTRY_LEN / 8);
        let table = link.table(peers[index(peer)].table, lane);
        let from = entry_of(table, slot);
        let what = What::Read { from, into };
        let work = Work {
            id: quiet(peer),
            what,
            signaled: false,
            solicited: false,
        };
        let what = Cargo::LookUp { slot };
        link.imports.ask(slot);
        let posted = outbox.post(link, Flight::new(to, what, Some(answer)), &[work]);
        if let Err(why) = posted {
            self.note_broken(to, why);
        }
        Err(Stall::Slot(slot))
    }

    /// Handles that an entry of a peer's table was read, or could not be.
    pub(super) fn handle_entry(&mut self, peer: u32, slot: u32, answer: Option<u32>, read: bool) {
        let words = answer
            .map(|answer| self.outbox.take_answer(answer))
            .filter(|_| read);
        let link = self.link_or_new(peer);
        let _again_if_not = link.imports.answer(slot, words.and_then(Entry::parse));
        for _ in 0..link.asking.count(slot) {
            // One at a time, as in `unpark`.
            let Some(id) = self.link_or_new(peer).asking.pop(slot) else {
                break;
            };
            self.run(id);
        }
        self.link_or_new(peer).imports.drop_empty(slot);
    }

    pub(super) fn post_pieces(
        &mut self,
        id: u32,
        peer: u32,
        places: Places,
        put: bool,
    ) -> Result<(), Stall> {
        let here = self.reach(id)?[FIRST];
        loop {
            let op = self.ops.get(id).ok_or(Stall::Room)?;
            let (at, whole) = (op.posted, op.wish.bytes());
            let len = (whole - at).min(self.rails[FIRST].own.piece_max);
            let (piece, there) = (here.part(at, len), places.main.at(at as u64));
            let last = at + len == whole;
            let from = (len > 0).then_some(piece);
            let what = if put {
                What::Write { from, into: there }
            } else {
                What::Read {
                    from: there,
                    into: piece,
                }
            };
            match places.cell.filter(|_| last) {
                Some(Cell::There(cell)) => self.post_add(id, peer, cell, 1, Some(what))?,
                Some(Cell::Told(tally)) => self.post_told(id, peer, tally, from, there)?,
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

    /// Returns the command's memory of this rank, as the devices know it.
    pub(super) fn reach(&mut self, id: u32) -> Result<Here, Stall> {
        let op = self.ops.get_mut(id).ok_or(Stall::Room)?;
        if let Some(here) = op.here {
            return Ok(here);
        }
        let (range, access) = match &op.wish {
            Wish::Offer { landing, .. } => {
                let filled = self.outbox.fill(&[bytemuck::bytes_of(landing)]);
                let (chunk, len) = filled.ok_or(Stall::Room)?;
                let here = self.outbox.chunk_everywhere(chunk, len);
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
            self.outbox.chunk_everywhere(chunk, range.len())
        } else {
            // A command for the first lane needs only its device.
            let devices = if op.may_go_widely() { RAILS_MAX } else { 1 };
            let taken = self.registrations.take(range, access, devices);
            let registered = taken.map_err(Failure::Transport)?.ok_or(Stall::Room)?;
            op.registered = Some(registered);
            let here = self.registrations.local(registered, range);
            here.ok_or(Stall::Room)?
        };
        op.here = Some(here);
        Ok(here)
    }

    /// Posts a count.
    pub(super) fn post_count(
        &mut self,
        id: u32,
        peer: u32,
        places: Places,
        by: u64,
    ) -> Result<(), Stall> {
        match places.cell {
            Some(Cell::Told(tally)) if by == 1 => {
                self.post_told(id, peer, tally, None, places.main)
            }
            Some(Cell::Told(tally)) => self.say_count(peer, tally, by),
            Some(Cell::There(cell)) => self.post_add(id, peer, cell, by, None),
            None => Ok(()),
        }
    }

    /// Puts, if there are any bytes, and makes the owner of a counter count 1 when they have arrived.
    fn post_told(
        &mut self,
        id: u32,
        peer: u32,
        tally: Tally,
        from: Option<Local>,
        into: Remote,
    ) -> Result<(), Stall> {
        let word = tally.0;
        let tell = What::Tell { from, into, word };
        self.post_step(id, peer, Step::Move, None, &[tell])
    }

    /// Adds to a counter after `before`, and reads it.
    fn post_add(
        &mut self,
        id: u32,
        peer: u32,
        cell: Remote,
        by: u64,
        before: Option<What<'static>>,
    ) -> Result<(), Stall> {
        let answer = self.outbox.answer().ok_or(Stall::Room)?;
        let old = self.outbox.answer_at(FIRST, answer, 0..1);
        let both = self.outbox.answer_at(FIRST, answer, 1..3);
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

    pub(super) fn post_atomic(
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
                op.old = wanted; // the word would not change
            }
            return Ok(());
        }
        let answer = self.outbox.answer().ok_or(Stall::Room)?;
        let old = self.outbox.answer_at(FIRST, answer, 0..1);
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

    /// Posts a step by the first lane.
    fn post_step(
        &mut self,
        id: u32,
        peer: u32,
        step: Step,
        answer: Option<u32>,
        chain: &[What<'static>],
    ) -> Result<(), Stall> {
        let requests = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let Self {
            links, outbox, ops, ..
        } = self;
        let link = links[index(peer)].as_deref_mut().ok_or(Stall::Room)?;
        let to = To::first(peer);
        let tells = chain.iter().any(|what| matches!(what, What::Tell { .. }));
        let heard = !tells || link.may_send();
        let room = link.has_room(FIRST, requests) && outbox.has_room(FIRST, requests);
        if !heard || !room {
            answer
                .into_iter()
                .for_each(|answer| outbox.free_answer(answer));
            return Err(if room { Stall::Credits } else { Stall::Room });
        }
        let flight = Flight::new(to, Cargo::Step { op: id, step }, answer);
        let first = Work {
            id: quiet(peer),
            what: chain[0],
            signaled: false,
            solicited: tells && link.take_credit_to_tell(),
        };
        let mut works = [first; STEP_MAX];
        for (work, what) in works.iter_mut().zip(chain) {
            work.what = *what;
        }
        let posted = outbox.post_step(link, flight, &works[..chain.len()]);
        if let Some(op) = ops.get_mut(id) {
            op.flights += 1;
        }
        if let Err(why) = posted {
            self.note_broken(to, why);
        }
        Ok(())
    }
}

impl Outbox {
    /// Returns the first bytes of a chunk, for each lane.
    fn chunk_everywhere(&self, chunk: u32, len: usize) -> Here {
        let lanes = self.lanes.len();
        std::array::from_fn(|lane| self.chunk(lane.min(lanes - 1), chunk, len))
    }
}

impl Link {
    /// Returns a peer's table of regions, as a lane reaches it.
    pub(super) fn table(&self, table: Remote, lane: usize) -> Remote {
        let key = self.far.get(lane).map_or(table.key, |far| far.table);
        Remote { key, ..table }
    }
}

/// Bytes up to which memory is copied: copying them takes about as long as registering does.
const BOUNCE_MAX: usize = BODY_MAX;
