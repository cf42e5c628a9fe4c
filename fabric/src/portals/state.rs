//! A rank with peers: what it keeps, what it sends, and what is said when there is no room.

use std::{collections::VecDeque, sync::Arc};

use super::{
    address::Address,
    calls::Refused,
    compat::buffers::Buffers,
    event::{End, Event, Got, Kind},
    lent::Lent,
    lists::Lists,
    moves::Far,
    naps::Naps,
    onesided::{Operations, RESERVED},
    outbox::{Letter, Then},
    peer::{Label, Life, Peer, Ticket},
    pool::{OF_ONE_PEER, Pool},
    prepare::Ground,
    queues::Which,
    rails::Rails,
};
use crate::{
    driver::{self, Caps, Down, Ends, Failure, Sink, Token},
    lanes::LaneSet,
    memory::Region,
    offload::Watches,
    tags::Tag,
    timer::Timer,
};

/// A rank of a job whose ranks reach each other through Portals 4.
#[derive(Debug)]
pub struct Portals {
    pub(super) ground: Ground,
    pub(super) me: u32,
    pub(super) address: Address,
    /// Where ranks say how they ended.
    pub(super) said: Option<Arc<dyn Ends>>,
    pub(super) peers: Vec<Peer>,
    /// Events that may still be caused in the queue of ends.
    pub(super) credits: u32,
    /// How often the library has refused something since it took or ended something.
    pub(super) refusals: u32,
    pub(super) operations: Operations,
    /// What is written on others' boards.
    pub(super) words: Region,
    pub(super) watches: Watches,
    pub(super) lists: Lists,
    /// Where the adapter matches tags.
    pub(super) lent: Option<Box<Lent>>,
    pub(super) rails: Rails,
    /// Ends the sleep of who waits for what the library does not tell of.
    pub(super) alarm: Timer,
    pub(super) naps: Naps,
    /// What the sink is to hear next.
    pub(super) told: VecDeque<Told>,
    /// Peers to whom something may leave, and to whose boards.
    pub(super) sendable: VecDeque<u32>,
    pub(super) due: VecDeque<u32>,
    pub(super) suspects: Vec<u32>,
    /// Peers that wait until all that has come is looked at, and there is room.
    pub(super) refused: VecDeque<u32>,
    /// Rails whose adapters let no messages in.
    pub(super) disabled: LaneSet,
    /// Rails that had no room when all that had come was looked at last: peers that wait for them wait longer.
    pub(super) shut: LaneSet,
    /// In the layout of pscom: what messages come into and leave from.
    pub(super) buffers: Option<Box<Buffers>>,
    /// To have no room for messages is the end.
    pub(super) fragile: bool,
    /// The adapter interrupts the host, and counts that.
    pub(super) is_interrupted: bool,
    /// The library has told of a failure without an acknowledgement: one may come yet, and is not counted again.
    pub(super) fails_twice: bool,
    pub(super) caps: Caps,
}

#[derive(Debug)]
pub(super) enum Told {
    Complete(Token),
    Fetched(Token, u64),
    Failed(Token, Failure),
    Reached(Token),
    Triggered(Token),
    Returned(Token),
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
            Self::Returned(token) => sink.returned(token),
            Self::Down(rank, how) => sink.peer_down(driver::Peer(rank), how),
        }
    }
}

impl Portals {
    /// How often the adapter has interrupted the host so far, where the library counts that: the software one does, in its
    /// mode `generic`.
    #[must_use]
    pub fn interrupts(&self) -> Option<u64> {
        self.ground.ni.interrupts()
    }

    /// Notes interrupts where there are any: a call of the library, which no other mode has to pay for in each turn.
    pub(super) fn count_interrupts(&self) {
        if self.is_interrupted
            && let Some(now) = self.interrupts()
        {
            let count = &self.ground.counters.all.interrupts;
            count.add(now.saturating_sub(count.get()));
        }
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
    pub(super) fn send(&mut self, to: u32, tag: Option<Tag>, [header, body]: [&[u8]; 2]) -> bool {
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
        let bits = tag.and_then(|tag| self.peer(to).address.tagged_bits(tag));
        self.push(to, Letter::new(slot, len, label.bits()).with_bits(bits));
        true
    }

    pub(super) fn push(&mut self, to: u32, letter: Letter) {
        let peer = self.peer_mut(to);
        peer.met = true;
        peer.outbox.push(letter);
        self.may_send(to);
        self.transmit();
    }

    pub(super) fn may_send(&mut self, to: u32) {
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
            if !self.write_words(to) {
                self.peer_mut(to).due = true;
                return self.due.push_front(to);
            }
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
        let (rail, process) = self.home(to);
        let padding = rail.ni.wire.padding(letter.len as usize);
        let pool = &self.ground.pool;
        let range = pool.range(letter.slot, letter.len as usize + padding);
        let near = rail.near(range, Ticket::Message(to, number).bits());
        let far = Far {
            process,
            pt: peer.address.tables.eager,
            match_bits: (letter.bits).unwrap_or_else(|| peer.address.message_bits(self.me)),
            offset: 0,
        };
        let label = Label::padded(letter.label, padding);
        let header = u64::from(label) << 32 | u64::from(number);
        if let Err(refused) = rail.ni.put(near, far, header, true) {
            return self.handle_unsent(to, &refused);
        }
        self.count_sent(peer.home.into(), letter.len.into());
        self.spend_credit(to);
        self.peer_mut(to).outbox.started();
        Sent::One
    }

    /// The library has not taken a message. It waits for the peer and another lane, if there is one, unless there may be room.
    fn handle_unsent(&mut self, to: u32, refused: &Refused) -> Sent {
        if self.is_for_later(refused) {
            return Sent::NotNow;
        }
        self.fail_lane(to, self.peer(to).home.into());
        Sent::None
    }

    /// Whether what was refused is to be asked for again in the next turn: there is no room, and something may end that has it.
    pub(super) fn is_for_later(&mut self, refused: &Refused) -> bool {
        self.refusals = self.refusals.saturating_add(self.naps.weight_once());
        matches!(refused, Refused::Later(_)) && self.refusals < REFUSALS_MAX
    }

    /// Something is under way to a peer.
    pub(super) fn spend_credit(&mut self, to: u32) {
        self.credits -= 1;
        self.refusals = 0;
        if !self.ground.ni.ends_to_dead {
            self.peer_mut(to).under_way += 1;
        }
    }

    /// What comes back with this is under way no more.
    fn regain_credit(&mut self, user: u64) {
        self.refusals = 0;
        if self.ground.ni.ends_to_dead {
            self.credits = (self.credits + 1).min(self.ground.credits);
            return; // nobody asks: what is on its way to the dead ends by itself
        }
        let to = match Ticket::of(user) {
            Some(Ticket::Message(to, _) | Ticket::Words(to)) => Some(to),
            Some(Ticket::Operation(slot, generation)) => {
                self.operations.work(slot, generation).map(|work| work.to)
            }
            Some(Ticket::Piece(..)) | None => None,
        };
        let peer = to.and_then(|to| self.peers.get_mut(to as usize));
        // What was given up ends nevertheless, and its credit has come back already.
        if let Some(peer) = peer.filter(|peer| peer.under_way > 0) {
            peer.under_way -= 1;
            self.credits += 1;
        }
    }

    /// Bytes go by a rail.
    pub(super) fn count_sent(&mut self, rail: u32, bytes: u64) {
        self.ground.queues.expect(rail);
        self.ground.counters.by_rail[rail as usize].add(bytes);
    }

    /// The end of an own operation.
    pub(super) fn handle_end(&mut self, got: Got) {
        let Got { event, rail, .. } = got;
        if got.dropped {
            // What was given up has ended nevertheless, and there was no place for what was not.
            self.handle_loss();
        }
        let is_plain = matches!(event.kind, Kind::Ack | Kind::Reply) && !self.fails_twice;
        if !is_plain && !self.is_end(&event) {
            return;
        }
        self.regain_credit(event.user);
        self.ground.counters.ends.add(1);
        self.ground
            .counters
            .all
            .acks
            .add(u64::from(event.kind == Kind::Ack));
        match Ticket::of(event.user) {
            Some(Ticket::Message(to, number)) => {
                self.handle_message_end((to, number), event.end, rail);
            }
            Some(Ticket::Operation(slot, generation)) => {
                self.handle_step((slot, generation), event.end, event.mlength, rail);
            }
            Some(Ticket::Piece(slot, lane, piece)) => {
                self.handle_piece_end(slot, lane, piece, event.end)
            }
            Some(Ticket::Words(to)) if event.end != End::Well => _ = self.fail_lane(to, rail),
            Some(Ticket::Words(_)) | None => {}
        }
    }

    /// Whether an event ends an operation, where that is not known by its kind. What has failed may be told by SEND, or by an
    /// event for errors: by that alone, or by an acknowledgement as well.
    #[cold]
    fn is_end(&mut self, event: &Event) -> bool {
        let alone = matches!(event.kind, Kind::Send | Kind::Error);
        if event.end == End::Well {
            return !alone && matches!(event.kind, Kind::Ack | Kind::Reply);
        }
        self.fails_twice |= alone;
        match Ticket::of(event.user) {
            Some(Ticket::Message(to, number)) if self.buffers.is_none() => {
                let peer = self.peers.get(to as usize);
                peer.is_some_and(|peer| peer.outbox.awaits(number))
            }
            Some(Ticket::Operation(slot, generation)) => {
                self.operations.work(slot, generation).is_some()
            }
            // What is told twice is told alone first.
            Some(Ticket::Words(_) | Ticket::Piece(..) | Ticket::Message(..)) => alone,
            None => false,
        }
    }

    fn handle_message_end(&mut self, (to, number): (u32, u32), end: End, rail: u32) {
        let answered = matches!(end, End::Well | End::PtDisabled | End::Dropped);
        if let Some(peer) = self.peers.get_mut(to as usize) {
            peer.answers += u64::from(answered);
        }
        if self.buffers.is_some() {
            return self.handle_buffer_end(to, number, end);
        }
        let taken = end == End::Well;
        if !answered {
            self.fail_lane(to, rail);
        }
        let Some(peer) = self.peers.get_mut(to as usize) else {
            return;
        };
        let pool = &mut self.ground.pool;
        let then = peer
            .outbox
            .ended(number, taken, |slot| pool.give_back(slot));
        self.ground.counters.refused.add(u64::from(!taken));
        self.follow(to, then);
    }

    /// What is to be done for the messages to a peer.
    pub(super) fn follow(&mut self, to: u32, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Send => self.may_send(to),
            Then::Pause => {
                self.peer_mut(to).pauses += 1;
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
        if self.ground.ni.ends_to_dead {
            let pool = &mut self.ground.pool;
            peer.outbox.abandon(|slot| pool.give_back(slot));
        } else {
            self.give_up_under_way(rank);
        }
        self.refused.retain(|other| *other != rank);
        self.give_up_landings(rank);
        self.give_up_stripes(rank);
        if how == Down::Failed {
            self.give_up_lanes(rank);
        }
        self.show_counts();
        self.told.push_back(Told::Down(rank, how));
    }

    /// Before a sleep: what nobody tells of is asked for again after a while. Whether that will be so, if it has to be.
    pub(super) fn set_alarm(&mut self) -> bool {
        self.end_naps();
        let at = self.waits().then(|| self.naps.begin(self.alarm.now()));
        self.alarm.set(at).is_ok()
    }

    /// Where nothing is waited for any more, the next nap is a short one again.
    pub(super) fn end_naps(&mut self) {
        if self.naps.have_begun() && !self.waits() {
            self.naps.end();
        }
    }

    /// Whether something waits for what nobody tells of: that a library has room, or lets go of an entry or of a descriptor, or
    /// that a peer has an entry. Something of ours may be under way, whose end makes room and is told; or nothing.
    fn waits(&self) -> bool {
        let misses = |all: &Buffers| !all.missing.is_empty();
        self.lists.are_to_end()
            || self.lists.wait()
            || self.rails.are_leaving()
            || self.operations.wait()
            || self.has_unsent()
            || !self.refused.is_empty()
            || self.lent.as_ref().is_some_and(|lent| lent.is_asked())
            || self.buffers.as_deref().is_some_and(misses)
            // As long as one slab is there, what comes into it leads to a turn.
            || (0..).take(self.ground.rails.len()).any(|rail| self.is_starved(rail))
    }

    /// Whether there is something to do without an event, and at once.
    pub(super) fn has_news(&self) -> bool {
        !self.told.is_empty()
            || self.is_all_to_be_seen() && !self.ground.queues.is_recalled()
            || self.watches.is_reached()
            || self.lists.have_news()
            || self.rails.have_news()
            // Else the library has said that it has no room, and nothing was taken or has ended since.
            || self.refusals == 0 && self.has_unsent()
    }

    /// Whether something waits until all that has come was looked at.
    fn is_all_to_be_seen(&self) -> bool {
        let shut = |rank: &u32| self.shut.has(self.peer(*rank).home.into());
        !self.suspects.is_empty() || !self.refused.iter().all(shut)
    }

    /// Whether the library is to be given something, and its end would find a place in the queue.
    fn has_unsent(&self) -> bool {
        let unsent = |all: &Buffers| !all.unsent.is_empty();
        let any = !self.due.is_empty() || self.buffers.as_deref().is_some_and(unsent);
        self.credits > 0 && any
            || self.credits > RESERVED && (!self.sendable.is_empty() || self.rails.are_hungry())
    }

    pub(super) fn next(&mut self, which: Which) -> Option<Got> {
        let got = self.ground.queues.next(which);
        if got.is_some() {
            // What it tells of may come behind atomics, and its reader looks at their words.
            self.ground.ni.see_atomics();
        }
        self.ground
            .counters
            .all
            .events
            .add(u64::from(got.is_some()));
        got
    }
}

/// What a look at a peer's messages gave.
enum Sent {
    One,
    None,
    /// The library takes nothing now: it is asked again in the next turn.
    NotNow,
}

/// So many turns in which nothing is taken and nothing ends: a second and more.
pub(super) const REFUSALS_MAX: u32 = 1 << 20;

const _: () = assert!(size_of::<Peer>() <= 256, "state per idle peer");
