//! The pscom baseline: messages by buffers for each peer, with one appended entry and one acknowledgment per message, and resends
//! when a message is dropped.
//!
//! Messages use a guest's port beside Ripstop's driver, which does everything else. The driver also carries an empty message to
//! each new peer, the greeting, so that each of the two ranks tells the other when it ends.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use ripstop_fabric::{
    driver::{
        ArmResult, Caps, DownCause, DownEvidence, Driver, DriverAbilities, DriverCommand,
        FailureWatch, PostResult, Sink, TurnProgress, WorldRank,
    },
    lacks_abilities, passes_abilities, passes_methods,
    portals::{
        GuestAddress, GuestCall, GuestEvent, GuestPort, GuestPutEnd, Portals, PortalsCounters,
        PreparedGuest,
    },
};

use crate::{
    arrivals::BaselineMessage,
    buffers::{ArrivedPiece, PscomBuffers},
    sinks::{DiscardSink, DriverSink},
    variables::PscomLayout,
};

/// One rank in the layout of pscom4portals.
#[derive(Debug)]
pub struct PscomDriver {
    /// Dropped before the port, because it says goodbye through the interface that the port closes.
    driver: Portals,
    port: GuestPort,
    buffers: PscomBuffers,
    peers: Vec<PscomPeer>,
    caps: Caps,
    counters: Arc<PortalsCounters>,
    /// Ends of puts that the queue still has room for.
    credits: u32,
    /// Refusals by the library since it last took anything.
    refusals: u32,
    /// One-sided commands in flight, and the most.
    commands: u32,
    commands_max: u32,
    /// Peers that the driver has reported as down, to be reported when all arrivals have been handled.
    downs: VecDeque<(WorldRank, DownCause)>,
    /// Peers that a put did not reach.
    suspects: Vec<u32>,
    /// Turns since the last one of the driver.
    turns: u32,
    /// True if the driver must make a turn in the next one, because it is armed or has commands.
    is_due: bool,
}

#[derive(Debug)]
struct PscomPeer {
    address: GuestAddress,
    /// Number of the next piece from the peer.
    expected: u32,
    is_greeted: bool,
    is_down: bool,
    /// Pieces that the peer's adapter took or dropped.
    answers: u64,
}

impl PscomDriver {
    pub(crate) fn connect(
        driver: Portals,
        guest: PreparedGuest,
        layout: &PscomLayout,
        caps: Caps,
        counters: Arc<PortalsCounters>,
        me: usize,
        addresses: Vec<GuestAddress>,
    ) -> io::Result<Self> {
        let [inbound, outbound] = layout.lens(addresses.len());
        let port = guest.allocate(inbound, outbound)?;
        let regions = [port.inbound().clone(), port.outbound().clone()];
        counters.peer_bytes.add(layout.peer_len() as u64);
        let peers = addresses
            .into_iter()
            .enumerate()
            .map(|(rank, address)| PscomPeer {
                address,
                expected: 0,
                is_greeted: rank == me,
                is_down: false,
                answers: 0,
            });
        let peers: Vec<_> = peers.collect();
        let mut rank = Self {
            buffers: PscomBuffers::new(layout, peers.len(), regions),
            driver,
            port,
            peers,
            caps,
            counters,
            credits: layout.eq_size - 1,
            refusals: 0,
            commands: 0,
            commands_max: layout.max_rndv_reqs,
            downs: VecDeque::new(),
            suspects: Vec::new(),
            turns: 0,
            is_due: true,
        };
        let ranks = 0..u32::try_from(rank.peers.len()).unwrap_or(u32::MAX);
        let receives = rank.buffers.receives();
        let each = |from| (0..receives).map(move |nth| (from, nth));
        rank.buffers.missing = ranks.flat_map(each).collect();
        rank.append_missing();
        if rank.buffers.missing.is_empty() {
            return Ok(rank);
        }
        let why = "the Portals library has too few list entries for the buffers of all peers: use fewer ranks, or a smaller \
                   PSP_PORTALS_RECVQ_SIZE";
        Err(io::Error::other(why))
    }

    /// Appends the buffers for which the library had no entry before.
    fn append_missing(&mut self) {
        while let Some((from, nth)) = self.buffers.missing.pop() {
            let (at, len) = (self.buffers.inbox_at(from, nth), self.buffers.size());
            let address = self.peers[from as usize].address;
            if self.port.append(at, len, address, user(from, nth)) != GuestCall::Done {
                return self.buffers.missing.push((from, nth));
            }
            self.counters.all.entries.add(1);
        }
    }

    /// Queues a message. Returns true if there was room.
    fn send(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        if self.peers[to as usize].is_down {
            return true;
        }
        let (len, label) = (header.len() + body.len(), header.len());
        let pieces = self.buffers.pieces(len);
        if pieces > self.buffers.room(to) || pieces > self.credits as usize || !self.greet(to) {
            return false;
        }
        let label = u32::try_from(label).unwrap_or(u32::MAX);
        let slots = self.buffers.fill(to, label, [header, body]);
        let all = &self.counters.all;
        all.messages_sent.add(1);
        all.copies.add(u64::from(len > 0));
        all.bytes_copied.add(len as u64);
        slots.into_iter().for_each(|slot| self.put_piece(to, slot));
        true
    }

    /// Sends the greeting to a peer before the first message. Returns false if there is no room for it.
    fn greet(&mut self, to: u32) -> bool {
        if self.peers[to as usize].is_greeted {
            return true;
        }
        let greeting = DriverCommand::Message {
            to: WorldRank(to),
            header: &[],
            body: &[],
        };
        let greeted = matches!(self.driver.post(greeting), PostResult::Posted);
        self.peers[to as usize].is_greeted = greeted;
        greeted
    }

    fn put_piece(&mut self, to: u32, slot: u32) {
        let Some(piece) = self.buffers.piece(to, slot) else {
            return;
        };
        let at = self.buffers.outbox_at(to, slot);
        let header = u64::from(piece.label) << 32 | u64::from(piece.number);
        let address = self.peers[to as usize].address;
        if self.credits == 0 {
            return self.buffers.unsent.push_back((to, slot));
        }
        match self
            .port
            .put(at, piece.len, address, user(to, slot), header)
        {
            GuestCall::Done => {
                self.credits -= 1;
                self.refusals = 0;
            }
            GuestCall::Later if self.refusals < REFUSALS_MAX => {
                self.refusals += 1;
                self.buffers.unsent.push_back((to, slot));
            }
            GuestCall::Later | GuestCall::Refused => {
                self.buffers.taken(to, slot);
                self.suspects.push(to);
            }
        }
    }

    /// Puts the pieces that the library has refused so far.
    fn transmit(&mut self) {
        let unsent = self.buffers.unsent.len();
        for _ in 0..unsent {
            if let Some((to, slot)) = self.buffers.unsent.pop_front() {
                self.put_piece(to, slot);
            }
        }
    }

    fn handle_event(&mut self, event: GuestEvent, sink: &mut dyn Sink) {
        let is_known = match event {
            GuestEvent::Arrived { user, header, len } => self.handle_piece(user, header, len, sink),
            GuestEvent::Ended { user, end } => self.handle_end(user, end),
            GuestEvent::Nonsense => false,
        };
        self.counters.nonsense.add(u64::from(!is_known));
    }

    /// Handles the end of a put. A dropped piece is put again immediately, without limit.
    fn handle_end(&mut self, user: u64, end: GuestPutEnd) -> bool {
        let [slot, to] = halves(user);
        if to as usize >= self.peers.len() || !self.buffers.is_sent(to, slot) {
            return true; // a library may report a failure twice
        }
        self.counters.ends.add(1);
        self.credits += 1;
        let peer = &mut self.peers[to as usize];
        peer.answers += u64::from(end != GuestPutEnd::Unreachable);
        if end == GuestPutEnd::Dropped {
            self.counters.refused.add(1);
            if !peer.is_down {
                self.put_piece(to, slot);
                return true;
            }
        }
        self.buffers.taken(to, slot);
        if end == GuestPutEnd::Unreachable {
            self.suspects.push(to);
        }
        true
    }

    /// Handles an arrived piece. Its buffer is appended again afterwards. Returns false if no rank can have sent it.
    fn handle_piece(&mut self, user: u64, header: u64, len: u64, sink: &mut dyn Sink) -> bool {
        let [nth, from] = halves(user);
        let known = (from as usize) < self.peers.len() && nth < self.buffers.receives();
        let Some(place) = self.buffers.place(from, nth, len).filter(|_| known) else {
            return false;
        };
        let taken = self.take_piece(place, header, sink);
        self.buffers.missing.push((from, nth));
        self.append_missing();
        taken
    }

    fn take_piece(&mut self, place: ArrivedPiece, header: u64, sink: &mut dyn Sink) -> bool {
        let [number, label] = halves(header);
        let from = place.from;
        let expected = self.peers[from as usize].expected;
        if number != expected {
            if number.wrapping_sub(expected) < u32::MAX / 2 {
                let bytes = self.buffers.read(place);
                self.buffers.keep(from, number, label, bytes);
            }
            self.counters.repeated.add(1);
            return true;
        }
        self.peers[from as usize].expected = expected.wrapping_add(1);
        let mut good = if self.buffers.is_whole(from, label) {
            let whole = BaselineMessage::InPlace(&self.buffers, place);
            self.hand_over(from, label, place.len, &whole, sink)
        } else {
            let bytes = self.buffers.read(place);
            self.join(from, label, bytes, sink)
        };
        while let Some((label, bytes)) = self.buffers.kept(from, self.peers[from as usize].expected)
        {
            let expected = &mut self.peers[from as usize].expected;
            *expected = expected.wrapping_add(1);
            good &= self.join(from, label, bytes, sink);
        }
        good
    }

    fn join(&mut self, from: u32, label: u32, bytes: Vec<u8>, sink: &mut dyn Sink) -> bool {
        let Some(whole) = self.buffers.join(from, label, bytes) else {
            return true;
        };
        let (label, len) = (whole.label, whole.bytes.len());
        self.hand_over(from, label, len, &BaselineMessage::Joined(&whole), sink)
    }

    /// Hands a whole message to the sink. Returns false if its header does not fit.
    fn hand_over(
        &self,
        from: u32,
        label: u32,
        len: usize,
        whole: &BaselineMessage<'_>,
        sink: &mut dyn Sink,
    ) -> bool {
        let mut header = [0; HEADER_MAX];
        let header_len = usize::try_from(label).unwrap_or(usize::MAX);
        if header_len > len.min(HEADER_MAX) {
            return false;
        }
        let header = &mut header[..header_len];
        whole.read(header);
        self.counters.all.messages_received.add(1);
        sink.message(WorldRank(from), header, whole.body(header_len));
        true
    }

    /// Takes events within the budget. Returns their number, and whether there are no more.
    fn poll_guest(&mut self, budget: u32, sink: &mut dyn Sink) -> (u32, bool) {
        for events in 0..budget {
            match self.driver.next_guest_event() {
                Some(event) => self.handle_event(event, sink),
                None => return (events, true),
            }
        }
        (budget, false)
    }

    /// Makes a turn of the driver if it is due. The driver polls four queues, so it has no turn while messages arrive.
    fn poll_driver(&mut self, budget: u32, events: u32, sink: &mut dyn Sink) -> u32 {
        self.turns += 1;
        if events > 0 && !self.is_due && self.turns < TURNS_MAX {
            return 0;
        }
        (self.turns, self.is_due) = (0, false);
        let mut sink = DriverSink {
            sink,
            downs: &mut self.downs,
            commands: &mut self.commands,
        };
        self.driver.progress(budget, &mut sink).events
    }

    /// Reports peers whose last messages have been handled.
    fn report_downs(&mut self, count: usize, sink: &mut dyn Sink) -> u32 {
        for (rank, how) in self.downs.drain(..count) {
            sink.peer_down(rank, how);
        }
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Waits until all pieces have arrived, at most a second without progress.
    #[expect(
        clippy::disallowed_methods,
        reason = "no simulation has a Portals library, and a driver has no clock of the runtime"
    )]
    fn flush(&mut self) {
        let ranks = 0..u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        let refused = self.counters.refused.get();
        let mut end = Instant::now() + GOODBYE;
        while Instant::now() < end && self.counters.refused.get() - refused < GOODBYE_REFUSALS {
            let is_idle = |rank| self.peers[rank as usize].is_down || self.buffers.is_idle(rank);
            if ranks.clone().all(is_idle) {
                return;
            }
            if Driver::progress(self, 64, &mut DiscardSink).events > 0 {
                end = Instant::now() + GOODBYE;
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Driver for PscomDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        match command {
            DriverCommand::Message { to, header, body } => {
                let fits = header.len() <= HEADER_MAX && body.len() <= self.caps.body_max;
                assert!(fits, "a message that is too long: ask `Caps`");
                if self.send(to.0, header, body) {
                    PostResult::Posted
                } else {
                    PostResult::Full(command)
                }
            }
            DriverCommand::Put { .. }
            | DriverCommand::Get { .. }
            | DriverCommand::Atomic { .. } => {
                if self.commands >= self.commands_max {
                    return PostResult::Full(command);
                }
                self.is_due = true;
                let posted = self.driver.post(command);
                self.commands += u32::from(matches!(posted, PostResult::Posted));
                posted
            }
            _ => {
                self.is_due = true;
                self.driver.post(command)
            }
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        let downs = self.downs.len();
        self.append_missing();
        let (mut events, is_all) = self.poll_guest(budget, sink);
        if is_all {
            for rank in std::mem::take(&mut self.suspects) {
                self.is_due = true;
                self.driver.give_up(WorldRank(rank), None);
            }
            events += self.report_downs(downs, sink);
        }
        events += self.poll_driver(budget, events, sink);
        for (rank, _) in &self.downs {
            self.peers[rank.0 as usize].is_down = true;
        }
        self.transmit();
        TurnProgress { events }
    }

    fn arm(&mut self) -> ArmResult {
        self.is_due = true;
        let waits = !self.buffers.unsent.is_empty() || !self.buffers.missing.is_empty();
        if waits || !self.downs.is_empty() || !self.suspects.is_empty() {
            return ArmResult::Busy;
        }
        self.driver.arm()
    }

    fn give_up(&mut self, peer: WorldRank, how: Option<DownCause>) -> DownCause {
        self.is_due = true;
        self.driver.give_up(peer, how)
    }

    passes_methods! { driver: wait_on, allocate, expose, expect }
}

impl DriverAbilities for PscomDriver {
    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    passes_abilities! {
        driver: event_counters, task_lists, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, connect_ahead,
        guarded_memory,
    }

    lacks_abilities! { tag_matching }
}

impl FailureWatch for PscomDriver {
    fn knows_peers(&mut self) -> bool {
        self.driver.knows_peers()
    }

    fn answers(&mut self, peer: WorldRank) -> u64 {
        self.driver.answers(peer) + self.peers[peer.0 as usize].answers
    }

    fn evidence(&mut self, peer: WorldRank) -> DownEvidence {
        self.driver.evidence(peer)
    }
}

impl Drop for PscomDriver {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Returns the user pointer of a buffer.
fn user(rank: u32, nth: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(nth)
}

/// Returns the low and the high half.
fn halves(bits: u64) -> [u32; 2] {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    [half(bits), half(bits >> 32)]
}

/// Bytes of the longest header.
const HEADER_MAX: usize = 128;
/// Turns without a turn of the driver while messages arrive.
const TURNS_MAX: u32 = 16;
/// Turns without room in the library after which a refusal counts as permanent: more than a second.
const REFUSALS_MAX: u32 = 1 << 20;
/// Longest wait for a peer that takes nothing at the end.
const GOODBYE: Duration = Duration::from_secs(1);
/// Limit on resends at the end, because dropped pieces are put again immediately. Takes about a second.
const GOODBYE_REFUSALS: u64 = 100_000;
