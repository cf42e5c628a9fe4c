//! Parcels: short messages to peers without a connection, as datagrams, if the scheme says so.
//!
//! The hosts number and acknowledge them ([`Parcels`](crate::connect)). So a first message waits for nothing, a peer that gets
//! many messages is connected meanwhile, and a peer whose connection was evicted is still reached. Only messages and the goodbye
//! go as parcels, and only if nothing waits before them. A peer with another scheme, because its adapter or its settings are
//! different, says so in its address, and is connected instead.
//!
//! **Order.** No parcel begins while there is a connection, or while one is drained. Nothing goes by a new connection before the
//! peer has acknowledged all parcels. A parcel is delivered after everything that came by the connection before it.
//!
//! ```text
//! PARCEL u8 | 0 u8 | 0 u16 | from rank u32 | number u32 | answer u32 | a message or the last word, as by a connection (`wire`)
//! ```
//! Without anything behind the answer it is only an acknowledgment, and the number means nothing.

use std::collections::BTreeSet;

use super::{
    core::{Core, index},
    datagrams::Destination,
    inbox::HEADER_MAX,
    deferred_datagrams::Late,
    lane::FIRST,
    diagnose::unconnected,
    wire::{Arrival, HEAD, WORD_MAX, Word, message_head, parse},
};
use crate::{
    connect::{Scheme, State, Why},
    driver::{Down, Payload, Peer, Sink},
};

/// Peers with parcels or acknowledgments in flight.
#[derive(Debug, Default)]
pub(super) struct Talks {
    /// True if the scheme has parcels.
    pub(super) on: bool,
    /// Peers that have not acknowledged all parcels.
    busy: BTreeSet<u32>,
    /// Peers that must be sent an acknowledgment.
    owed: BTreeSet<u32>,
}

impl Talks {
    pub(super) fn of(scheme: Scheme) -> Self {
        Self {
            on: scheme == Scheme::Hybrid,
            ..Self::default()
        }
    }

    /// Returns true if no parcel and no acknowledgment is outstanding.
    pub(super) fn are_over(&self) -> bool {
        self.busy.is_empty() && self.owed.is_empty()
    }
}

impl Core {
    /// Sends a message without a connection. Returns false if it cannot go as a parcel.
    pub(super) fn send_parcel(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        if !self.may_send_parcel(to, HEAD + header.len() + body.len()) {
            return false;
        }
        let head = message_head(header.len(), 0);
        self.counters.messages_sent.add(1);
        self.counters.copies.add(1);
        self.counters.bytes_copied.add(body.len() as u64);
        let parcel = [&parcel_head(self.me)[..], &head, header, body].concat();
        self.post_parcel(to, parcel);
        true
    }

    /// Sends the goodbye without a connection. Returns false if it cannot go as a parcel.
    pub(super) fn send_last_parcel(&mut self, to: u32, how: Down) -> bool {
        let mut bytes = [0; WORD_MAX];
        let len = Word::Bye(how).encode(0, &mut bytes);
        let may = self.may_send_parcel(to, len);
        if may {
            let parcel = [&parcel_head(self.me), &bytes[..len]].concat();
            self.post_parcel(to, parcel);
        }
        may
    }

    /// Returns true if parcels may go to a peer: both use them, and the peer knows where to answer. They only go by the first
    /// devices, which must work on both sides, as far as is known.
    pub(super) fn talks_to(&self, peer: u32) -> bool {
        let hears = self.peers.get(index(peer)).is_some_and(|its| its.parcels);
        let link = self.links.get(index(peer)).and_then(Option::as_deref);
        let first = link.is_none_or(|link| link.lanes_at_work().has(0));
        self.talks.on && hears && first && !self.moved && self.rails[FIRST].failed.is_none()
    }

    fn may_send_parcel(&mut self, to: u32, len: usize) -> bool {
        if !self.talks_to(to) || to == self.me || PARCEL_HEAD + len > self.parcel_max(to) {
            return false;
        }
        let link = self.link_or_new(to);
        let first = link.waiting.is_empty() && link.parked.is_empty() && link.counts == 0;
        link.gone.is_none() && !link.is_connected() && first && link.parcels.has_room()
    }

    /// Returns the bytes that one packet carries to a peer.
    fn parcel_max(&self, peer: u32) -> usize {
        let mtu = self.peers[index(peer)].mtu.min(self.rails[FIRST].own.mtu);
        (128 << mtu).min(self.datagrams.longest())
    }

    fn post_parcel(&mut self, to: u32, parcel: Vec<u8>) {
        let link = self.link_or_new(to);
        link.met = true;
        let much = link.parcels.push(parcel.into());
        let idle = link.dial.state() == State::Idle;
        self.talks.busy.insert(to);
        self.send_parcels(to);
        if much && idle && self.closing.is_none() {
            self.want(to);
        }
    }

    /// Sends parcels, as far as there is room.
    fn send_parcels(&mut self, peer: u32) {
        let (now, to) = (self.sleep.timer.now(), self.destination(peer));
        let Self {
            links,
            datagrams,
            rails,
            local,
            counters,
            talks,
            ..
        } = self;
        let (Some(to), Some(link)) = (to, links[index(peer)].as_deref_mut()) else {
            return;
        };
        let answer = link.parcels.expected();
        while datagrams.has_room()
            && let Some((number, parcel)) = link.parcels.next(local, now)
        {
            put_numbers(parcel, number, answer);
            counters.datagrams.add(1);
            // A parcel that is lost here is like one lost on its way.
            let _lost = datagrams.send(&rails[FIRST].own.pd, &to, parcel);
            talks.owed.remove(&peer);
        }
    }

    /// Returns where a peer receives datagrams.
    pub(super) fn destination(&self, peer: u32) -> Option<Destination> {
        let (own, to) = (&self.rails[FIRST].own, self.peers.get(index(peer))?);
        Some(Destination {
            peer,
            route: to.first().route(own.port, own.gid_index, own.ethernet),
            qpn: to.qpn,
            qkey: to.qkey,
        })
    }

    /// Sends outstanding acknowledgments, and parcels that found no room.
    pub(super) fn talk(&mut self) {
        while self.datagrams.has_room()
            && let Some(peer) = self.talks.owed.pop_first()
        {
            let Some(to) = self.destination(peer) else {
                continue;
            };
            let answer = self.link_or_new(peer).parcels.expected();
            let mut bytes = parcel_head(self.me);
            put_numbers(&mut bytes, 0, answer);
            self.counters.datagrams.add(1);
            let pd = &self.rails[FIRST].own.pd;
            let _lost = self.datagrams.send(pd, &to, &bytes); // the peer sends its parcel again
        }
        for peer in self.late().collect::<Vec<_>>() {
            self.send_parcels(peer);
        }
    }

    /// Repeats the parcels that were not acknowledged in time. A peer that acknowledges nothing is marked as failed.
    pub(super) fn talk_again(&mut self) {
        if self.talks.busy.is_empty() {
            return;
        }
        let now = self.sleep.timer.now();
        let local = self.local;
        let all: Vec<u32> = self.talks.busy.iter().copied().collect();
        for peer in all {
            if !self.link_or_new(peer).parcels.handle_time(&local, now) {
                self.fail(peer, unconnected(Why::Unreachable));
            }
        }
    }

    /// Returns when the next parcel must be repeated.
    pub(super) fn next_parcel(&self) -> Option<u64> {
        let links = self.talks.busy.iter();
        links
            .filter_map(|peer| self.links[index(*peer)].as_ref()?.parcels.next_timeout())
            .min()
    }

    /// Returns true if something will leave as soon as there is room.
    pub(super) fn has_parcels(&self) -> bool {
        !self.talks.owed.is_empty() || self.late().next().is_some()
    }

    /// Returns the peers with parcels that must leave.
    fn late(&self) -> impl Iterator<Item = u32> + '_ {
        let waits = |peer: &u32| {
            let link = self.links[index(*peer)].as_deref();
            link.is_some_and(|link| link.parcels.has_next())
        };
        self.talks.busy.iter().copied().filter(waits)
    }

    /// Handles that the first device has failed. No acknowledgment is sent or received any more, so peers that still owe some are
    /// marked as failed.
    pub(super) fn break_parcels(&mut self, why: &'static str) {
        self.talks.owed.clear();
        for peer in std::mem::take(&mut self.talks.busy) {
            self.fail(peer, std::io::Error::other(why));
        }
    }

    /// Drops all parcels for a peer that is down.
    pub(super) fn drop_parcels(&mut self, peer: u32) {
        self.link_or_new(peer).parcels.clear();
        self.talks.busy.remove(&peer);
    }

    /// Handles a datagram that is no connection message. The parcel in it, if there is one, waits for its turn.
    pub(super) fn handle_parcel(&mut self, bytes: Vec<u8>, qpn: u32) {
        let Some((from, answer)) = parse_head(&bytes) else {
            return;
        };
        let known = self.peers.get(index(from)).is_some_and(|p| p.qpn == qpn);
        if !known || from == self.me || !self.talks.on {
            return;
        }
        let (local, now) = (self.local, self.sleep.timer.now());
        let link = self.link_or_new(from);
        if link.parcels.handle_answer(answer, &local, now) {
            link.answers += 1;
            if link.parcels.is_answered() {
                self.talks.busy.remove(&from);
            }
            self.stir(from);
        }
        if bytes.len() > PARCEL_HEAD {
            self.unheard.push(from, Late::Parcel(bytes));
        }
    }

    /// Delivers a parcel, if it is the next one. Returns the number of events.
    pub(super) fn hear_parcel(&mut self, from: u32, bytes: &[u8], sink: &mut dyn Sink) -> u32 {
        let link = self.link_or_new(from);
        if link.gone == Some(Down::Failed) {
            return 0;
        }
        let next = bytes
            .first_chunk()
            .is_some_and(|head| link.parcels.take(word(head, NUMBER_AT)));
        let heard = next && link.gone.is_none();
        link.met |= heard;
        if self.rails[FIRST].failed.is_none() {
            self.talks.owed.insert(from);
        }
        if !heard {
            return 0;
        }
        let message = &bytes[PARCEL_HEAD..];
        let mut first = [0; WORD_MAX];
        let seen = message.len().min(WORD_MAX);
        first[..seen].copy_from_slice(&message[..seen]);
        match parse(&first, message.len()) {
            Ok((Arrival::Message { header }, _)) if header <= HEADER_MAX => {
                let (header, body) = message[HEAD..].split_at(header);
                self.counters.messages_received.add(1);
                sink.message(Peer(from), header, Payload::from_slice(body));
                1
            }
            Ok((Arrival::Word(Word::Bye(how)), _)) => {
                self.part(from, how);
                0
            }
            _ => {
                let why = format!("rank {from} sent what is no message");
                self.fail(from, std::io::Error::other(why));
                0
            }
        }
    }
}

fn parcel_head(from: u32) -> [u8; PARCEL_HEAD] {
    let mut head = [0; PARCEL_HEAD];
    head[0] = PARCEL;
    head[FROM_AT..][..4].copy_from_slice(&from.to_le_bytes());
    head
}

fn put_numbers(bytes: &mut [u8], number: u32, answer: u32) {
    bytes[NUMBER_AT..][..4].copy_from_slice(&number.to_le_bytes());
    bytes[ANSWER_AT..][..4].copy_from_slice(&answer.to_le_bytes());
}

/// Returns true if a datagram is a parcel, or an acknowledgment of parcels.
pub(super) fn is_parcel(bytes: &[u8]) -> bool {
    bytes.first() == Some(&PARCEL)
}

/// Returns the sender and the answer.
fn parse_head(bytes: &[u8]) -> Option<(u32, u32)> {
    let head = bytes.first_chunk::<PARCEL_HEAD>()?;
    (head[..4] == [PARCEL, 0, 0, 0]).then(|| (word(head, FROM_AT), word(head, ANSWER_AT)))
}

fn word(head: &[u8; PARCEL_HEAD], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|nth| head[at + nth]))
}

/// First byte of a parcel. No connection message begins so.
const PARCEL: u8 = 0xd6;
const FROM_AT: usize = 4;
const NUMBER_AT: usize = 8;
const ANSWER_AT: usize = 12;
const PARCEL_HEAD: usize = 16;

/// Bytes of the longest parcel: what a packet carries on an Ethernet with the usual MTU.
pub(super) const PARCEL_MAX: usize = 1024;
