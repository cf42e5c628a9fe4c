//! Posting commands, as far as there is room: resolving their keys, registering their memory, and cutting them into pieces.

use super::super::{
    core::index,
    host_counters::CounterId,
    inbox::BODY_MAX,
    lane::{FIRST, PeerLane},
    link::VerbsLink,
    objects::{LocalSge, MrAccess, RemoteAddress, STEP_MAX, WorkOp, WorkRequest},
    outbox::{CommandStep, FlightContent, QpFlight, VerbsOutbox, quiet},
    regions::{ENTRY_LEN, KeyResolution, MemoryTarget, RegionEntry, entry_of},
    rma_op::VerbsRmaOp,
    wire::VerbsControlWord,
};
use super::{OneSidedCommands, RailSges};
use crate::{
    driver::{AtomicOp, CommandFailure, WorldRank},
    lanes::RAILS_MAX,
    memory::RemoteRegion,
};

/// Reason why a command cannot continue.
pub(super) enum PostStall {
    /// There is no room, or no connection yet.
    Room,
    /// The peer has no buffer for the completion that it gets.
    Credits,
    /// This entry of the peer's table must be read first.
    Slot(u32),
    /// The peer must give this name first.
    Name(u64),
    /// The command fails.
    Fails(CommandFailure),
}

impl From<CommandFailure> for PostStall {
    fn from(why: CommandFailure) -> Self {
        Self::Fails(why)
    }
}

/// Targets of a command: the peer's memory, and its counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostTargets {
    pub(super) main: RemoteAddress,
    pub(super) cell: Option<CounterTarget>,
}

/// Way to add to a peer's counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum CounterTarget {
    /// By the peer's device.
    ByDevice(RemoteAddress),
    /// By the peer's processor, which is notified.
    ByHost(CounterId),
}

impl OneSidedCommands<'_> {
    /// Returns where a command goes by the first lane, if both its keys are known to be valid.
    pub(super) fn find_targets(
        &mut self,
        peer: WorldRank,
        rma: &VerbsRmaOp,
    ) -> Result<PostTargets, PostStall> {
        let (main, count) = rma.keys();
        let main = self
            .resolve_key(PeerLane::first(peer), main, false)?
            .on(FIRST);
        let cell = count.map(|key| self.find_cell(peer, key)).transpose()?;
        Ok(PostTargets { main, cell })
    }

    /// Checks the key of a command that moves nothing. Any lane can tell.
    pub(super) fn check_key(&mut self, peer: WorldRank, rma: &VerbsRmaOp) -> Result<(), PostStall> {
        let lane = self.links.get_or_new(peer).home;
        let (main, _) = rma.keys();
        self.resolve_key(PeerLane { peer, lane }, main, false)
            .map(|_| ())
    }

    /// Returns how to add to a counter. With several lanes, a notification is in no order with data by other lanes, so the device
    /// adds.
    fn find_cell(
        &mut self,
        peer: WorldRank,
        key: RemoteRegion,
    ) -> Result<CounterTarget, PostStall> {
        let place = self.resolve_key(PeerLane::first(peer), key, false)?;
        let link = self.links.get(peer);
        let narrow = link.filter(|link| !link.is_wide());
        let tally = narrow.and_then(|link| link.imports.counter_id(key));
        Ok(tally.map_or_else(
            || CounterTarget::ByDevice(place.on(FIRST)),
            CounterTarget::ByHost,
        ))
    }

    /// Returns where the range of a key is, by all lanes if `widely`. If that is not known, begins to read it from the owner's
    /// table.
    pub(super) fn resolve_key(
        &mut self,
        to: PeerLane,
        key: RemoteRegion,
        widely: bool,
    ) -> Result<MemoryTarget, PostStall> {
        let PeerLane { peer, lane } = to;
        let Self {
            links,
            outbox,
            peers,
            ..
        } = self;
        let link = links.get_mut(peer).filter(|link| link.has_room(lane, 1));
        let link = link.ok_or(PostStall::Room)?;
        let slot = match link.imports.find(key, widely)? {
            KeyResolution::There(place) => return Ok(place),
            KeyResolution::Asked(slot) => return Err(PostStall::Slot(slot)),
            KeyResolution::Naming(name) => return Err(PostStall::Name(name)),
            KeyResolution::Unnamed(name) => {
                link.imports.ask_name(name);
                self.links
                    .queue_control(peer, VerbsControlWord::ResolveName(name));
                return Err(PostStall::Name(name));
            }
            KeyResolution::Unknown(slot) => slot,
        };
        let answer = outbox
            .has_room(lane, 1)
            .then(|| outbox.answer())
            .flatten()
            .ok_or(PostStall::Room)?;
        let into = outbox.answer_at(lane, answer, 0..ENTRY_LEN / 8);
        let table = link.table(peers[index(peer)].table, lane);
        let from = entry_of(table, slot);
        let what = WorkOp::Read { from, into };
        let work = WorkRequest {
            id: quiet(peer),
            op: what,
            signaled: false,
            solicited: false,
        };
        let what = FlightContent::LookUp { slot };
        link.imports.ask(slot);
        let posted = outbox.post(link, QpFlight::new(to, what, Some(answer)), &[work]);
        if let Err(why) = posted {
            self.links.note_broken(to, why);
        }
        Err(PostStall::Slot(slot))
    }

    /// Handles that an entry of a peer's table was read, or could not be.
    pub(in super::super) fn handle_entry(
        &mut self,
        peer: WorldRank,
        slot: u32,
        answer: Option<u32>,
        read: bool,
    ) {
        let words = answer
            .map(|answer| self.outbox.take_answer(answer))
            .filter(|_| read);
        let link = self.links.get_or_new(peer);
        let _again_if_not = link
            .imports
            .answer(slot, words.and_then(RegionEntry::parse));
        for _ in 0..link.asking.count(slot) {
            // Commands are taken one at a time, as in `retry_backlog`.
            let Some(id) = self.links.get_or_new(peer).asking.pop(slot) else {
                break;
            };
            self.advance_or_queue(id);
        }
        self.links.get_or_new(peer).imports.drop_empty(slot);
    }

    pub(super) fn post_pieces(
        &mut self,
        id: u32,
        peer: WorldRank,
        places: PostTargets,
        put: bool,
    ) -> Result<(), PostStall> {
        let here = self.local_memory(id)?[FIRST];
        loop {
            let op = self.commands.ops.get(id).ok_or(PostStall::Room)?;
            let (at, whole) = (op.posted, op.rma.bytes());
            let len = (whole - at).min(self.rails[FIRST].device.request_max);
            let (piece, there) = (here.part(at, len), places.main.at(at as u64));
            let last = at + len == whole;
            let from = (len > 0).then_some(piece);
            let what = if put {
                WorkOp::Write { from, into: there }
            } else {
                WorkOp::Read {
                    from: there,
                    into: piece,
                }
            };
            match places.cell.filter(|_| last) {
                Some(CounterTarget::ByDevice(cell)) => {
                    self.post_add(id, peer, cell, 1, Some(what))?
                }
                Some(CounterTarget::ByHost(tally)) => {
                    self.post_told(id, peer, tally, from, there)?
                }
                None => self.post_step(id, peer, CommandStep::Move, None, &[what])?,
            }
            if let Some(op) = self.commands.ops.get_mut(id) {
                op.posted += len;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Returns the command's memory of this rank, as the devices know it.
    pub(super) fn local_memory(&mut self, id: u32) -> Result<RailSges, PostStall> {
        let op = self.commands.ops.get_mut(id).ok_or(PostStall::Room)?;
        if let Some(here) = op.local {
            return Ok(here);
        }
        let (range, access) = match &op.rma {
            VerbsRmaOp::Offer { landing, .. } => {
                let filled = self.outbox.fill(&[bytemuck::bytes_of(landing)]);
                let (chunk, len) = filled.ok_or(PostStall::Room)?;
                let here = self.outbox.chunk_everywhere(chunk, len);
                (op.chunk, op.local) = (Some(chunk), Some(here));
                return Ok(here);
            }
            VerbsRmaOp::Put { from, .. } => (*from, MrAccess::Read),
            VerbsRmaOp::Get { into, .. } => (*into, MrAccess::Write),
            VerbsRmaOp::Atomic { .. } | VerbsRmaOp::Count { .. } => return Err(PostStall::Room),
        };
        let here = if let Some(own) = self.exports.local(range) {
            own
        } else if range.len() <= BOUNCE_MAX {
            let put = access == MrAccess::Read;
            let chunk = self.outbox.bounce(range, put).ok_or(PostStall::Room)?;
            op.chunk = Some(chunk);
            self.counters.copies.add(1);
            self.counters.bytes_copied.add(range.len() as u64);
            self.outbox.chunk_everywhere(chunk, range.len())
        } else {
            // A command for the first lane needs only its device.
            let devices = if op.allows_any_lane() { RAILS_MAX } else { 1 };
            let taken = self.registrations.take(range, access, devices);
            let registered = taken
                .map_err(CommandFailure::Transport)?
                .ok_or(PostStall::Room)?;
            op.registered = Some(registered);
            let here = self.registrations.local(registered, range);
            here.ok_or(PostStall::Room)?
        };
        op.local = Some(here);
        Ok(here)
    }

    /// Posts a count.
    pub(super) fn post_count(
        &mut self,
        id: u32,
        peer: WorldRank,
        places: PostTargets,
        by: u64,
    ) -> Result<(), PostStall> {
        match places.cell {
            Some(CounterTarget::ByHost(tally)) if by == 1 => {
                self.post_told(id, peer, tally, None, places.main)
            }
            Some(CounterTarget::ByHost(tally)) => {
                if self.links.queue_count(peer, tally, by) {
                    Ok(())
                } else {
                    Err(PostStall::Room)
                }
            }
            Some(CounterTarget::ByDevice(cell)) => self.post_add(id, peer, cell, by, None),
            None => Ok(()),
        }
    }

    /// Puts, if there are any bytes, and makes the owner of a counter count 1 when they have arrived.
    fn post_told(
        &mut self,
        id: u32,
        peer: WorldRank,
        tally: CounterId,
        from: Option<LocalSge>,
        into: RemoteAddress,
    ) -> Result<(), PostStall> {
        let word = tally.0;
        let tell = WorkOp::WriteImm { from, into, word };
        self.post_step(id, peer, CommandStep::Move, None, &[tell])
    }

    /// Adds to a counter after `before`, and reads it.
    fn post_add(
        &mut self,
        id: u32,
        peer: WorldRank,
        cell: RemoteAddress,
        by: u64,
        before: Option<WorkOp<'static>>,
    ) -> Result<(), PostStall> {
        let answer = self.outbox.answer().ok_or(PostStall::Room)?;
        let old = self.outbox.answer_at(FIRST, answer, 0..1);
        let both = self.outbox.answer_at(FIRST, answer, 1..3);
        let add = WorkOp::FetchAdd { at: cell, by, old };
        let look = WorkOp::Read {
            from: cell,
            into: both,
        };
        match before {
            Some(before) => self.post_step(
                id,
                peer,
                CommandStep::Count,
                Some(answer),
                &[before, add, look],
            ),
            None => self.post_step(id, peer, CommandStep::Count, Some(answer), &[add, look]),
        }
    }

    pub(super) fn post_atomic(
        &mut self,
        id: u32,
        peer: WorldRank,
        at: RemoteAddress,
        op: AtomicOp,
        known: Option<u64>,
    ) -> Result<(), PostStall> {
        let (expected, wanted) = match (op, known) {
            (AtomicOp::CompareSwap { expected, new }, _) => (Some(expected), new),
            (AtomicOp::Add(_) | AtomicOp::Fetch, _) | (_, None) => (None, 0),
            (_, Some(known)) => (Some(known), op.after(known)),
        };
        if expected == Some(wanted) && known.is_some() {
            if let Some(op) = self.commands.ops.get_mut(id) {
                op.old = wanted; // the word would not change
            }
            return Ok(());
        }
        let answer = self.outbox.answer().ok_or(PostStall::Room)?;
        let old = self.outbox.answer_at(FIRST, answer, 0..1);
        let what = match (expected, op) {
            (Some(expected), _) => WorkOp::CompareSwap {
                at,
                expected,
                new: wanted,
                old,
            },
            (None, AtomicOp::Add(by)) => WorkOp::FetchAdd { at, by, old },
            (None, _) => WorkOp::FetchAdd { at, by: 0, old },
        };
        self.post_step(
            id,
            peer,
            CommandStep::Atomic { expected },
            Some(answer),
            &[what],
        )
    }

    /// Posts a step by the first lane.
    fn post_step(
        &mut self,
        id: u32,
        peer: WorldRank,
        step: CommandStep,
        answer: Option<u32>,
        chain: &[WorkOp<'static>],
    ) -> Result<(), PostStall> {
        let requests = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let Self {
            commands,
            links,
            outbox,
            ..
        } = self;
        let link = links.get_mut(peer).ok_or(PostStall::Room)?;
        let to = PeerLane::first(peer);
        let tells = chain
            .iter()
            .any(|what| matches!(what, WorkOp::WriteImm { .. }));
        let heard = !tells || link.may_send();
        let room = link.has_room(FIRST, requests) && outbox.has_room(FIRST, requests);
        if !heard || !room {
            answer
                .into_iter()
                .for_each(|answer| outbox.free_answer(answer));
            return Err(if room {
                PostStall::Credits
            } else {
                PostStall::Room
            });
        }
        let flight = QpFlight::new(to, FlightContent::Step { op: id, step }, answer);
        let first = WorkRequest {
            id: quiet(peer),
            op: chain[0],
            signaled: false,
            solicited: tells && link.take_credit_for_count(),
        };
        let mut works = [first; STEP_MAX];
        for (work, what) in works.iter_mut().zip(chain) {
            work.op = *what;
        }
        let posted = outbox.post_step(link, flight, &works[..chain.len()]);
        if let Some(op) = commands.ops.get_mut(id) {
            op.flights += 1;
        }
        if let Err(why) = posted {
            self.links.note_broken(to, why);
        }
        Ok(())
    }
}

impl VerbsOutbox {
    /// Returns the first bytes of a chunk, for each lane.
    fn chunk_everywhere(&self, chunk: u32, len: usize) -> RailSges {
        let lanes = self.lanes.len();
        std::array::from_fn(|lane| self.chunk(lane.min(lanes - 1), chunk, len))
    }
}

impl VerbsLink {
    /// Returns a peer's table of regions, as a lane reaches it.
    pub(in super::super) fn table(&self, table: RemoteAddress, lane: usize) -> RemoteAddress {
        let key = self
            .remote_ports
            .get(lane)
            .map_or(table.key, |remote| remote.table);
        RemoteAddress { key, ..table }
    }
}

/// Bytes up to which memory is copied: copying them takes about as long as registering does.
const BOUNCE_MAX: usize = BODY_MAX;
