//! A rank with peers: what it keeps, and what comes of each event.

use std::{collections::VecDeque, io, sync::Arc};

use super::{
    calls::{Far, Md, Near},
    compat::{Compat, Pscom, buffers::Buffers},
    config::caps,
    event::{End, Event, Got, Kind},
    lists::Lists,
    onesided::{Operations, RESERVED},
    outbox::{Letter, Then},
    peer::{Label, Life, Peer, Ticket, Words},
    pool::{HEADER_MAX, OF_ONE_PEER, Pool},
    prepare::{Address, BOARD_LEN, Ground, Prepared},
    queues::Which,
};
use crate::{
    driver::{self, Caps, Down, Driver, Ends, Failure, Sink, Token},
    memory::Region,
    offload::Watches,
};

/// A rank of a job whose ranks reach each other through Portals 4.
#[derive(Debug)]
pub struct Portals {
    pub(super) ground: Ground,
    pub(super) me: u32,
    pub(super) address: Address,
    /// Where ranks say how they ended.
    said: Option<Arc<dyn Ends>>,
    pub(super) peers: Vec<Peer>,
    /// Events that may still be caused in the queue of ends.
    pub(super) credits: u32,
    pub(super) operations: Operations,
    pub(super) words_md: Md,
    /// What is written on others' boards.
    words: Region,
    out_md: Md,
    pub(super) watches: Watches,
    pub(super) lists: Lists,
    /// What the sink is to hear next.
    pub(super) told: VecDeque<Told>,
    /// Peers to whom something may leave, and to whose boards.
    sendable: VecDeque<u32>,
    due: VecDeque<u32>,
    suspects: Vec<u32>,
    /// Peers that were refused here, and wait for room.
    refused: VecDeque<u32>,
    /// The adapter lets no messages in.
    disabled: bool,
    /// In the layout of pscom: what messages come into and leave from.
    pub(super) buffers: Option<Box<Buffers>>,
    pub(super) buffers_md: Md,
    /// To have no room for messages is the end.
    fragile: bool,
    pub(super) caps: Caps,
}

#[derive(Debug)]
pub(super) enum Told {
    Complete(Token),
    Fetched(Token, u64),
    Failed(Token, Failure),
    Reached(Token),
    Triggered(Token),
    Down(u32, Down),
}

impl Told {
    pub(super) fn hand_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Reached(token) => sink.reached(token),
            Self::Triggered(token) => sink.triggered(token),
            Self::Down(rank, how) => sink.peer_down(driver::Peer(rank), how),
        }
    }
}

impl driver::Prepared for Prepared {
    fn address(&self) -> Vec<u8> {
        Self::address(self)
    }

    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Ok(Box::new(Self::connect(*self, addresses.to_vec())?))
    }
}

impl Prepared {
    /// Joins the ranks whose addresses these are, in the order of ranks. The own one is found by its address.
    ///
    /// # Errors
    /// `InvalidInput` when an address is none, is there twice, or the own one is missing; else what the library said.
    pub fn connect(self, peers: Vec<Vec<u8>>) -> io::Result<Portals> {
        let Self {
            ground,
            address,
            said,
            compat,
            body_max,
        } = self;
        let pscom = compat.as_ref().and_then(Compat::pscom);
        let addresses = read_addresses(&peers)?;
        let found = addresses.iter().position(|other| *other == address);
        let me = found.and_then(|rank| u32::try_from(rank).ok());
        let me = me.ok_or_else(|| invalid("the own address is not among those of the peers"))?;
        let most = pscom.map_or(u32::MAX, |pscom| pscom.max_rndv_reqs);
        let operations = Operations::new(ground.credits.min(most))?;
        // What one peer does not take leaves enough for the others.
        let window = (ground.credits / 2).min(WINDOW_MAX);
        let words = Region::vacant(peers.len() * Words::LEN)?;
        let words_md = ground.ni.md_bind(Some(operations.range()), ground.ends)?;
        let out_md = ground.ni.md_bind(Some(words.range()), ground.ends)?;
        let buffers = pscom.map(|pscom| Buffers::new(pscom, peers.len()));
        let buffers = buffers.transpose()?.map(Box::new);
        let buffers_md = match &buffers {
            Some(buffers) => ground.ni.md_bind(Some(buffers.outbound()), ground.ends)?,
            None => ground.pool_md,
        };
        let per_peer = size_of::<Peer>() + 2 * Words::LEN + pscom.map_or(0, Pscom::peer_len);
        ground.counters.peer_bytes.add(per_peer as u64);
        let portals = Portals {
            me,
            address,
            said,
            peers: (addresses.into_iter())
                .map(|address| Peer::new(address, window))
                .collect(),
            credits: ground.credits,
            operations,
            words_md,
            words,
            out_md,
            watches: Watches::new(),
            lists: Lists::default(),
            told: VecDeque::new(),
            sendable: VecDeque::new(),
            due: VecDeque::new(),
            suspects: Vec::new(),
            refused: VecDeque::new(),
            disabled: false,
            buffers,
            buffers_md,
            fragile: compat == Some(Compat::Mpc),
            caps: caps(&ground.ni, body_max),
            ground,
        };
        if let Some(buffers) = &portals.buffers {
            portals.lay_out_buffers(buffers)?;
        }
        Ok(portals)
    }
}

fn read_addresses(peers: &[Vec<u8>]) -> io::Result<Vec<Address>> {
    if peers.len() > (BOARD_LEN - 4096) / Words::LEN {
        return Err(invalid("more than 2²⁰ ranks"));
    }
    let mut seen = std::collections::BTreeMap::new();
    let read = peers.iter().enumerate().map(|(rank, bytes)| {
        let address = Address::from_bytes(bytes).ok_or_else(|| {
            invalid(&format!(
                "what rank {rank} gave is no address of this driver: do all ranks run the same version?"
            ))
        })?;
        match seen.insert(address.process, rank) {
            None => Ok(address),
            Some(other) => Err(invalid(&format!(
                "ranks {other} and {rank} have the same Portals process id: run each rank in a process of its own"
            ))),
        }
    });
    read.collect()
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl Portals {
    /// How often the adapter has interrupted the host so far, where the library counts that: the software one does.
    #[must_use]
    pub fn interrupts(&self) -> Option<u64> {
        self.ground.ni.interrupts()
    }

    pub(super) const fn own_address(&self) -> Address {
        self.address
    }

    pub(super) fn peer(&self, rank: u32) -> &Peer {
        let peer = self.peers.get(rank as usize);
        peer.unwrap_or_else(|| panic!("rank {rank} in a world of {}", self.peers.len()))
    }

    pub(super) fn peer_mut(&mut self, rank: u32) -> &mut Peer {
        let size = self.peers.len();
        let peer = self.peers.get_mut(rank as usize);
        peer.unwrap_or_else(|| panic!("rank {rank} in a world of {size}"))
    }

    /// Takes a message. Whether there was room.
    pub(super) fn send(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        let peer = self.peer(to);
        if peer.life != Life::Up {
            return true;
        }
        if self.buffers.is_some() {
            let label = Label::Message(u8::try_from(header.len()).unwrap_or(u8::MAX));
            return self.send_by_buffers(to, label, [header, body]);
        }
        let (outbox, len) = (&peer.outbox, header.len() + body.len());
        let mut slot = None;
        if !outbox.has_room() || self.credits <= RESERVED {
            return false;
        }
        if len > 0 {
            let class = Pool::class(len);
            if outbox.count(class) >= OF_ONE_PEER[usize::from(class)] {
                return false;
            }
            slot = self.ground.pool.take(class);
            let Some(slot) = slot else {
                return false;
            };
            self.ground.pool.fill(slot, header, body);
        }
        let label = Label::Message(u8::try_from(header.len()).unwrap_or(u8::MAX));
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.ground.counters.all.messages_sent.add(1);
        self.ground.counters.all.copies.add(u64::from(len > 0));
        self.ground.counters.all.bytes_copied.add(len.into());
        self.push(to, Letter::new(slot, len, label.bits()));
        true
    }

    fn push(&mut self, to: u32, letter: Letter) {
        let peer = self.peer_mut(to);
        peer.met = true;
        peer.outbox.push(letter);
        self.may_send(to);
        self.transmit();
    }

    fn may_send(&mut self, to: u32) {
        if !std::mem::replace(&mut self.peer_mut(to).queued, true) {
            self.sendable.push_back(to);
        }
    }

    /// Gives the adapter what may leave.
    pub(super) fn transmit(&mut self) {
        self.transmit_buffers();
        while self.credits > 0
            && let Some(to) = self.due.pop_front()
        {
            self.peer_mut(to).due = false;
            self.write_words(to);
        }
        while self.credits > RESERVED
            && let Some(to) = self.sendable.pop_front()
        {
            match self.transmit_one(to) {
                Sent::One => self.sendable.push_back(to),
                Sent::None => self.peer_mut(to).queued = false,
                Sent::NotNow => return self.sendable.push_front(to),
            }
        }
    }

    /// Puts one message to a peer.
    fn transmit_one(&mut self, to: u32) -> Sent {
        let peer = self.peer(to);
        let Some((number, letter)) = peer.outbox.next() else {
            return Sent::None;
        };
        let near = Near {
            md: self.ground.pool_md,
            offset: letter.slot.map_or(0, Pool::offset) as u64,
            len: letter.len.into(),
            user: Ticket::Message(to, number).bits(),
        };
        let far = Far {
            process: peer.address.process,
            pt: peer.address.tables.eager,
            match_bits: peer.address.message_bits(self.me),
            offset: 0,
        };
        let header = u64::from(letter.label) << 32 | u64::from(number);
        if self.ground.ni.put(near, far, header, true).is_err() {
            return Sent::NotNow;
        }
        self.credits -= 1;
        self.peer_mut(to).outbox.started();
        Sent::One
    }

    /// Writes our words on a peer's board.
    fn write_words(&mut self, to: u32) {
        let peer = self.peer(to);
        let words = Words {
            pauses: peer.pauses,
            resumed: peer.pauses_heard,
        };
        words.write(&self.words, to);
        let near = Near {
            md: self.out_md,
            offset: Words::at(to) as u64,
            len: Words::LEN as u64,
            user: Ticket::Words(to).bits(),
        };
        let far = Far {
            process: peer.address.process,
            pt: peer.address.tables.board,
            match_bits: peer.address.control_bits(self.me),
            offset: Words::at(self.me) as u64,
        };
        match self.ground.ni.put(near, far, 0, true) {
            Ok(()) => self.credits -= 1,
            Err(_) => self.suspect(to),
        }
    }

    fn say_words(&mut self, to: u32) {
        if !std::mem::replace(&mut self.peer_mut(to).due, true) {
            self.due.push_back(to);
        }
    }

    /// The end of an own operation.
    pub(super) fn handle_end(&mut self, Got { event, .. }: Got) {
        if !matches!(event.kind, Kind::Ack | Kind::Reply) {
            return;
        }
        self.credits += 1;
        self.ground.counters.ends.add(1);
        self.ground
            .counters
            .all
            .acks
            .add(u64::from(event.kind == Kind::Ack));
        match Ticket::of(event.user) {
            Some(Ticket::Message(to, number)) => self.handle_taken(to, number, event.end),
            Some(Ticket::Operation(slot, generation)) => {
                self.handle_step(slot, generation, event.end, event.mlength);
            }
            Some(Ticket::Words(to)) if event.end != End::Well => self.suspect(to),
            Some(Ticket::Words(_)) | None => {}
        }
    }

    fn handle_taken(&mut self, to: u32, number: u32, end: End) {
        if self.buffers.is_some() {
            return self.handle_buffer_end(to, number, end);
        }
        let taken = end == End::Well;
        if !taken && !matches!(end, End::PtDisabled | End::Dropped) {
            self.suspect(to);
        }
        let Some(peer) = self.peers.get_mut(to as usize) else {
            return;
        };
        let pool = &mut self.ground.pool;
        let then = peer
            .outbox
            .ended(number, taken, |slot| pool.give_back(slot));
        self.ground.counters.refused.add(u64::from(!taken));
        match then {
            Then::Nothing => {}
            Then::Send => self.may_send(to),
            Then::Pause => {
                peer.pauses += 1;
                self.say_words(to);
            }
        }
    }

    /// Nobody seems to be there.
    pub(super) fn suspect(&mut self, rank: u32) {
        if self.peer(rank).life == Life::Up {
            self.peer_mut(rank).life = Life::Suspect;
            self.suspects.push(rank);
        }
    }

    /// All that came before a suspicion has been looked at, so nothing says that the peer has finished.
    pub(super) fn confirm_suspects(&mut self) {
        for rank in std::mem::take(&mut self.suspects) {
            let how = self.said.as_ref().map(|ends| ends.how_ended(rank));
            self.lose(rank, how.unwrap_or(Down::Failed));
        }
    }

    pub(super) fn lose(&mut self, rank: u32, how: Down) {
        let peer = &mut self.peers[rank as usize];
        if std::mem::replace(&mut peer.life, Life::Down) == Life::Down {
            return;
        }
        let pool = &mut self.ground.pool;
        peer.outbox.abandon(|slot| pool.give_back(slot));
        self.refused.retain(|other| *other != rank);
        self.give_up_landings(rank);
        self.show_counts();
        self.told.push_back(Told::Down(rank, how));
    }

    /// A hint that words on the own board have changed.
    pub(super) fn handle_hint(&mut self, Got { event, dropped }: Got) {
        if dropped {
            self.ground.counters.lost.add(1);
            let size = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
            return (0..size).for_each(|rank| self.look_at(rank));
        }
        match self.sender(&event) {
            Some(rank) if event.mlength > 0 => self.look_at(rank),
            _ => {}
        }
    }

    /// The rank that a message says it is from, if it comes from there.
    pub(super) fn sender(&self, event: &Event) -> Option<u32> {
        let rank = u32::try_from(event.match_bits & u64::from(u32::MAX)).ok()?;
        let peer = self.peers.get(rank as usize)?;
        (peer.address.process == event.initiator).then_some(rank)
    }

    /// Looks at what a peer has written on the board.
    fn look_at(&mut self, rank: u32) {
        let words = Words::read(&self.ground.board, rank);
        let peer = &mut self.peers[rank as usize];
        if peer.life == Life::Down {
            return;
        }
        if peer.outbox.is_paused() && words.resumed == peer.pauses {
            peer.outbox.resume();
            self.may_send(rank);
        }
        let peer = &mut self.peers[rank as usize];
        if words.pauses != peer.pauses_heard {
            peer.pauses_heard = words.pauses;
            if self.disabled {
                self.refused.push_back(rank);
            } else {
                self.say_words(rank);
            }
        }
    }

    /// Everything that came has been looked at, so there is room: lets messages in again.
    pub(super) fn let_in(&mut self) {
        if !self.disabled || self.ground.ni.pt_enable(self.address.tables.eager).is_err() {
            return;
        }
        self.disabled = false;
        self.ground.counters.enabled.add(1);
        while let Some(rank) = self.refused.pop_front() {
            self.say_words(rank);
        }
    }

    /// What came. Whether the sink was called.
    pub(super) fn handle_arrival(&mut self, Got { event, dropped }: Got, sink: &mut dyn Sink) {
        self.ground.counters.lost.add(u64::from(dropped));
        match event.kind {
            Kind::PtDisabled if self.fragile => self.handle_no_blocks(),
            Kind::PtDisabled => self.disabled = true,
            Kind::Put if self.buffers.is_some() => self.handle_piece(&event, sink),
            Kind::Put => self.handle_message(&event, sink),
            _ => {}
        }
    }

    fn handle_message(&mut self, event: &Event, sink: &mut dyn Sink) {
        if event.end == End::Well {
            self.take_message(event, sink);
        }
        let place = self.ground.slabs.place(event.start, event.mlength);
        let Some(place) = place.filter(|_| event.mlength > 0) else {
            return;
        };
        // One that the library does not take back is missing from now on; the others go on.
        if self.ground.slabs.done(place) {
            let _given = self.ground.give_slab(self.address.tables.eager, place.slab);
        }
    }

    fn take_message(&mut self, event: &Event, sink: &mut dyn Sink) {
        let [number, label] = bytemuck::cast::<u64, [u32; 2]>(event.header);
        let label = Label::of(label);
        let sender = self.sender(event);
        let stamped = sender.filter(|rank| event.match_bits == self.address.message_bits(*rank));
        let (Some(rank), Some(label)) = (stamped, label) else {
            return self.ground.counters.nonsense.add(1);
        };
        let peer = &mut self.peers[rank as usize];
        peer.met = true;
        if number != peer.expected || peer.life == Life::Down {
            // Others before it were refused, so it comes again after them.
            return self.ground.counters.repeated.add(1);
        }
        peer.expected = number.wrapping_add(1);
        match label {
            Label::Bye(how) => self.lose(rank, how),
            Label::Message(header) => self.hand_over(rank, event, usize::from(header), sink),
        }
    }

    fn hand_over(&self, from: u32, event: &Event, header_len: usize, sink: &mut dyn Sink) {
        let from = driver::Peer(from);
        self.ground.counters.all.messages_received.add(1);
        if event.mlength == 0 {
            return sink.message(from, &[], driver::Payload::from_slice(&[]));
        }
        let place = self.ground.slabs.place(event.start, event.mlength);
        let fits = header_len as u64 <= event.mlength && header_len <= HEADER_MAX;
        let Some(place) = place.filter(|_| fits) else {
            return self.ground.counters.nonsense.add(1);
        };
        let mut header = [0; HEADER_MAX];
        self.ground.slabs.read(place, &mut header[..header_len]);
        let body = self.ground.slabs.payload(place, header_len);
        sink.message(from, &header[..header_len], body);
    }

    /// Tells everybody met that nothing comes after this, and waits until it and what is before it is taken. Who takes nothing
    /// for a second is left.
    fn say_goodbye(&mut self, how: Down) {
        let ranks = 0..u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        let mut unsaid: Vec<_> = ranks.filter(|rank| *rank != self.me).collect();
        let refused = self.ground.counters.refused.get();
        let mut idle = 0;
        loop {
            unsaid.retain(|rank| !self.bid_farewell(*rank, Label::Bye(how)));
            let refusals = self.ground.counters.refused.get() - refused;
            let through = unsaid.is_empty() && self.is_through();
            if through || idle == GOODBYE_TURNS || refusals > GOODBYE_REFUSALS {
                return;
            }
            let turn = Driver::progress(self, 64, &mut Nobody);
            idle = match turn.events {
                0 if !self.ground.queues.wait(GOODBYE_MILLIS) => idle + 1,
                _ => 0,
            };
        }
    }

    /// Whether a peer need not be told any more.
    fn bid_farewell(&mut self, rank: u32, label: Label) -> bool {
        let peer = self.peer(rank);
        if !peer.met || peer.life != Life::Up {
            return true;
        }
        if self.buffers.is_some() {
            return self.send_by_buffers(rank, label, [&[]; 2]);
        }
        self.push(rank, Letter::new(None, 0, label.bits()));
        true
    }

    fn is_through(&self) -> bool {
        let is_idle = |rank| self.buffers.as_ref().is_none_or(|all| all.is_idle(rank));
        let others = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.me);
        self.operations.is_idle()
            && self.due.is_empty()
            && (others.into_iter()).all(|(rank, peer)| peer.outbox.is_empty() && is_idle(rank))
    }

    /// Whether there is something to do without an event.
    pub(super) fn has_news(&self) -> bool {
        let unsent = self
            .buffers
            .as_ref()
            .is_some_and(|all| !all.unsent.is_empty());
        unsent
            || !self.told.is_empty()
            || !self.suspects.is_empty()
            || self.watches.is_reached()
            || self.lists.have_news()
            || self.operations.waits_for_entries()
            || self.credits > RESERVED && !self.sendable.is_empty()
            || self.credits > 0 && !self.due.is_empty()
    }

    pub(super) fn next(&mut self, which: Which) -> Option<Got> {
        let got = self.ground.queues.next(which);
        self.ground
            .counters
            .all
            .events
            .add(u64::from(got.is_some()));
        got
    }
}

impl Drop for Portals {
    fn drop(&mut self) {
        self.ground.queues.stop_helper();
        let how = if std::thread::panicking() {
            Down::Failed
        } else {
            Down::Finished
        };
        self.say_goodbye(how);
        if let Some(ends) = &self.said {
            ends.leave(self.me, how);
        }
        // Before the memory of operations goes.
        self.ground.ni.close();
    }
}

/// What a look at a peer's messages gave.
enum Sent {
    One,
    None,
    /// The library takes nothing now: it is asked again in the next turn.
    NotNow,
}

/// For what comes when nobody listens any more.
struct Nobody;

impl Sink for Nobody {
    fn message(&mut self, _: driver::Peer, _: &[u8], _: driver::Payload<'_>) {}
    fn complete(&mut self, _: Token) {}
    fn fetched(&mut self, _: Token, _: u64) {}
    fn failed(&mut self, _: Token, _: Failure) {}
    fn reached(&mut self, _: Token) {}
    fn triggered(&mut self, _: Token) {}
    fn peer_down(&mut self, _: driver::Peer, _: Down) {}
}

/// Messages that are on their way to one peer: as many as it has short slots for.
const WINDOW_MAX: u32 = 256;
/// One second without anything is enough for a peer that is there.
const GOODBYE_TURNS: u32 = 100;
const GOODBYE_MILLIS: u32 = 10;
/// What is put again at once when it is dropped, as pscom does, is put no more often than this: about a second.
const GOODBYE_REFUSALS: u64 = 100_000;

const _: () = assert!(size_of::<Peer>() <= 256, "state per idle peer");
