//! Requests in flight from this rank, and the memory that they use.
//!
//! A queue pair works in order, so short messages ask for no completion of their own. One of every few messages does, and its
//! completion covers the messages before it. No more requests are posted than the completion queue has room for, so it never
//! overruns.

use std::{collections::VecDeque, io, ops::Range, sync::Arc};

use super::{
    VerbsConfig,
    abi::IbvWc,
    inbox::BUFFER_LEN,
    lane::PeerLane,
    objects::{LocalSge, MrAccess, VerbsCq, VerbsMr, VerbsPd, WorkRequest},
    regions::ENTRY_LEN,
    slab::VerbsSlab,
};
use crate::{
    counters::DriverStats, driver::LocalRange, driver::WorldRank, lanes::PieceId,
    memory::MemoryRegion,
};

/// Requests in flight.
#[derive(Debug)]
pub(super) struct VerbsOutbox {
    /// Requests of each device.
    pub(super) lanes: Vec<RailSendQueue>,
    /// Short messages of which one asks for a completion.
    pub(super) signal_every: u32,
    /// True while steps are gathered rather than posted; `gathered` has the lanes that some are gathered for.
    pub(super) gathers: bool,
    pub(super) gathered: Vec<PeerLane>,
    pub(super) counters: Arc<DriverStats>,
    flights: VerbsSlab<QpFlight>,
    chunks: OutboxPool,
    answers: OutboxPool,
    done: VecDeque<(usize, IbvWc)>,
    /// True if anything completed since this was last cleared.
    pub(super) got_completion: bool,
}

/// Requests in flight on one device.
#[derive(Debug)]
pub(super) struct RailSendQueue {
    pub(super) cq: Arc<VerbsCq>,
    /// Requests that may still complete.
    used: u32,
    /// Most requests that may be in flight.
    room: u32,
}

/// A signaled request, and the unsignaled ones before it that its completion covers.
#[derive(Debug)]
pub(super) struct QpFlight {
    pub(super) to: PeerLane,
    /// Number of requests that complete with this flight. It is set when the flight is posted.
    pub(super) requests: u32,
    pub(super) content: FlightContent,
    /// Number of messages and control words that have arrived when the flight completes, if they are kept until then.
    pub(super) sent: u64,
    /// Place where the device writes its answer.
    pub(super) answer: Option<u32>,
    /// Earlier flights of the same chain, which complete with this one.
    pub(super) before: Vec<Self>,
}

/// Purpose of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightContent {
    /// Messages, and the chunk that one of them lies in.
    Message { chunk: Option<u32> },
    /// A step of a one-sided command.
    Step { op: u32, step: CommandStep },
    /// A read of an entry of a peer's table of regions.
    LookUp { slot: u32 },
}

/// A step of a one-sided command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandStep {
    /// A part of a put or get.
    Move,
    /// A piece of a command that may go by any lane.
    Piece(PieceId),
    /// A count, and a read of the counter.
    Count,
    /// An atomic; `expected` is the value that it compares with, if it does.
    Atomic { expected: Option<u64> },
}

/// Registered memory in pieces of equal length.
#[derive(Debug)]
struct OutboxPool {
    /// Registrations with each device.
    mrs: Vec<VerbsMr>,
    memory: MemoryRegion,
    piece: usize,
    free: Vec<u32>,
}

impl QpFlight {
    pub(super) const fn new(to: PeerLane, what: FlightContent, answer: Option<u32>) -> Self {
        Self {
            to,
            requests: 0,
            sent: 0,
            content: what,
            answer,
            before: Vec::new(),
        }
    }
}

impl VerbsOutbox {
    /// Makes an outbox on devices with these queues, with room for `room` requests on each.
    pub(super) fn new(
        devices: &[(&Arc<VerbsPd>, &Arc<VerbsCq>)],
        room: u32,
        config: &VerbsConfig,
    ) -> io::Result<Self> {
        let sends = |(_, cq): &(_, &Arc<VerbsCq>)| RailSendQueue {
            cq: Arc::clone(cq),
            used: 0,
            room,
        };
        // Messages that are kept until they have arrived keep their chunks, so chunks limit how many may ask for no completion.
        let silent = if devices.len() > 1 { CHUNKS } else { room } / 2;
        let pds: Vec<_> = devices.iter().map(|(pd, _)| *pd).collect();
        Ok(Self {
            lanes: devices.iter().map(sends).collect(),
            signal_every: (silent / config.ranks.max(1)).clamp(1, SIGNAL_EVERY_MAX),
            gathers: false,
            gathered: Vec::new(),
            counters: Arc::clone(&config.counters),
            flights: VerbsSlab::new(),
            chunks: OutboxPool::new(&pds, BUFFER_LEN, CHUNKS)?,
            answers: OutboxPool::new(&pds, ANSWER_LEN, ANSWERS)?,
            done: VecDeque::with_capacity(BATCH),
            got_completion: false,
        })
    }

    pub(super) fn has_room(&self, lane: usize, requests: u32) -> bool {
        let sends = &self.lanes[lane];
        sends.used + requests <= sends.room
    }

    pub(super) fn is_idle(&self, lane: usize) -> bool {
        self.lanes[lane].used == 0
    }

    /// Counts requests that were posted.
    pub(super) fn add(&mut self, lane: usize, requests: u32) {
        self.lanes[lane].used += requests;
    }

    /// Subtracts requests that have completed, or never will.
    pub(super) fn subtract(&mut self, lane: usize, requests: u32) {
        self.lanes[lane].used -= requests;
    }

    pub(super) fn launch(&mut self, flight: QpFlight) -> u64 {
        u64::from(self.flights.insert(flight))
    }

    pub(super) fn flight(&mut self, id: u64) -> Option<QpFlight> {
        self.flights.remove(u32::try_from(id).ok()?)
    }

    /// Returns the flights by a lane.
    pub(super) fn flights_of(&self, to: PeerLane) -> Vec<u32> {
        self.flights.all(|flight| flight.to == to)
    }

    /// Returns the number of requests that these flights cover.
    pub(super) fn requests_of(&self, flights: &[u64]) -> u32 {
        let flight = |id: &u64| self.flights.get(u32::try_from(*id).ok()?);
        let flights = flights.iter().filter_map(flight);
        flights
            .flat_map(|flight| flight.before.iter().chain([flight]))
            .map(|flight| flight.requests)
            .sum()
    }

    /// Drops completions of a queue pair that was destroyed, since their requests do not exist any more.
    pub(super) fn forget(&mut self, lane: usize, qpn: u32) {
        while self.take_from(lane) {}
        let is_of_pair = |(of, over): &(usize, IbvWc)| *of == lane && over.qp_num == qpn;
        self.done.retain(|over| !is_of_pair(over));
    }

    /// Polls the devices if no completion waits. Returns true if there are completions.
    pub(super) fn poll_completions(&mut self) -> bool {
        if self.done.is_empty() {
            for lane in 0..self.lanes.len() {
                self.take_from(lane);
            }
        }
        !self.done.is_empty()
    }

    fn take_from(&mut self, lane: usize) -> bool {
        let mut batch = [IbvWc::default(); BATCH];
        let polled = self.lanes[lane].cq.poll(&mut batch);
        self.done
            .extend(batch[..polled].iter().map(|over| (lane, *over)));
        self.got_completion |= polled > 0;
        polled > 0
    }

    /// Returns the next completion, and its lane.
    pub(super) fn next(&mut self) -> Option<(usize, IbvWc)> {
        self.poll_completions()
            .then(|| self.done.pop_front())
            .flatten()
    }

    /// Copies the parts into a free chunk, one behind the other. Returns the chunk and their length.
    pub(super) fn fill(&mut self, parts: &[&[u8]]) -> Option<(u32, usize)> {
        let chunk = self.chunks.free.pop()?;
        let mut at = self.chunks.at(chunk);
        for part in parts {
            self.chunks.memory.write(at, part);
            at += part.len();
        }
        Some((chunk, at - self.chunks.at(chunk)))
    }

    pub(super) fn has_chunk(&self) -> bool {
        !self.chunks.free.is_empty()
    }

    /// Takes a chunk for the bytes of a range. The bytes are copied into it if `copied` is true.
    pub(super) fn bounce(&mut self, range: LocalRange, copied: bool) -> Option<u32> {
        let chunk = self.chunks.free.pop()?;
        if copied {
            self.chunks.memory.copy_in(self.chunks.at(chunk), range);
        }
        Some(chunk)
    }

    /// Returns the first `len` bytes of a chunk, for a request by this lane.
    pub(super) fn chunk(&self, lane: usize, chunk: u32, len: usize) -> LocalSge {
        self.chunks.local(lane, chunk, 0..len)
    }

    /// Overwrites bytes of a chunk.
    pub(super) fn rewrite(&self, chunk: u32, offset: usize, bytes: &[u8]) {
        self.chunks
            .memory
            .write(self.chunks.at(chunk) + offset, bytes);
    }

    /// Copies the bytes that a get brought into a chunk to their destination.
    pub(super) fn copy_out(&self, chunk: u32, into: LocalRange) {
        self.chunks.memory.copy_out(self.chunks.at(chunk), into);
    }

    pub(super) fn free_chunk(&mut self, chunk: u32) {
        self.chunks.free.push(chunk);
    }

    /// Takes a place for the value that an atomic finds.
    pub(super) fn answer(&mut self) -> Option<u32> {
        self.answers.free.pop()
    }

    /// Releases an answer that is not needed.
    pub(super) fn free_answer(&mut self, answer: u32) {
        self.answers.free.push(answer);
    }

    /// Returns words of an answer, for a request by this lane.
    pub(super) fn answer_at(&self, lane: usize, answer: u32, words: Range<usize>) -> LocalSge {
        let bytes = 8 * words.start..8 * words.end;
        self.answers.local(lane, answer, bytes)
    }

    /// Returns the words that the device wrote, and releases the answer.
    pub(super) fn take_answer(&mut self, answer: u32) -> [u64; ANSWER_LEN / 8] {
        let mut words = [0; ANSWER_LEN / 8];
        let at = self.answers.at(answer);
        self.answers
            .memory
            .read(at, bytemuck::cast_slice_mut(&mut words));
        self.free_answer(answer);
        words
    }
}

impl OutboxPool {
    fn new(pds: &[&Arc<VerbsPd>], piece: usize, pieces: u32) -> io::Result<Self> {
        let memory = MemoryRegion::anonymous(piece * pieces as usize)?;
        let mr = |pd: &&Arc<VerbsPd>| VerbsMr::new(pd, memory.range(), MrAccess::Write);
        let mrs = pds.iter().map(mr).collect::<io::Result<_>>()?;
        let free = (0..pieces).rev().collect();
        Ok(Self {
            mrs,
            memory,
            piece,
            free,
        })
    }

    const fn at(&self, nth: u32) -> usize {
        nth as usize * self.piece
    }

    fn local(&self, lane: usize, nth: u32, bytes: Range<usize>) -> LocalSge {
        self.mrs[lane].piece(self.at(nth) + bytes.start, bytes.len())
    }
}

/// Returns the number of a request that completes only if it fails. The number contains the peer.
pub(super) const fn quiet(peer: WorldRank) -> u64 {
    QUIET | peer.0 as u64
}

/// Returns the peer of a request, if it has such a number.
pub(super) fn quiet_peer(id: u64) -> Option<WorldRank> {
    (id & QUIET != 0).then(|| WorldRank(u32::try_from(id & !QUIET).unwrap_or(u32::MAX)))
}

/// Returns the same request, which now asks for a completion with the number `id`.
pub(super) const fn signaled<'a>(work: WorkRequest<'a>, id: u64) -> WorkRequest<'a> {
    WorkRequest {
        id,
        signaled: true,
        ..work
    }
}

const QUIET: u64 = 1 << 63;

/// Chunks for messages that are too long to be posted with their bytes, and for short puts and gets: 2 MiB.
const CHUNKS: u32 = 256;

/// Bytes of an answer: the value that an atomic finds and two words of a counter, or an entry of a table of regions.
const ANSWER_LEN: usize = ENTRY_LEN;
const ANSWERS: u32 = 1280;

const SIGNAL_EVERY_MAX: u32 = 16;
const BATCH: usize = 16;
