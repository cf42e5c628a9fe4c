//! Datagram messages: short messages to peers without a connection, as datagrams, if the connection policy says so.
//!
//! The hosts number and acknowledge them (`datagram_messages` of [`connect`](crate::connect)). So a first message waits for
//! nothing, a peer that gets many messages is connected meanwhile, and a peer whose connection was evicted is still reached. Only
//! messages and the goodbye are sent this way, and only if nothing waits before them. A peer with another policy, because its
//! adapter or its settings are different, says so in its address, and is connected instead.
//!
//! **Order.** No datagram message begins while there is a connection, or while one is drained. Nothing goes by a new connection
//! before the peer has acknowledged all datagram messages. A datagram message is delivered after everything that came by the
//! connection before it.
//!
//! ```text
//! kind u8 | 0 u8 | 0 u16 | from rank u32 | number u32 | answer u32 | a message or the goodbye, as by a connection (`wire`)
//! ```
//! Without anything behind the answer it is only an acknowledgment, and the number means nothing.

use std::collections::BTreeSet;

use super::{
    core::{VerbsCore, index},
    datagrams::DatagramDestination,
    deferred_datagrams::DeferredDatagram,
    diagnose::unconnected,
    inbox::HEADER_MAX,
    lane::FIRST,
    wire::{HEAD, VerbsArrival, VerbsControlWord, WORD_MAX, message_head, parse},
};
use crate::{
    connect::{ConnectFailure, ConnectPolicy, ConnectState},
    driver::{DownCause, PayloadView, Sink, WorldRank},
};

/// Peers with datagram messages or acknowledgments in flight.
#[derive(Debug, Default)]
pub(super) struct DatagramPeers {
    /// True if the connection policy has datagram messages.
    pub(super) on: bool,
    /// Peers that have not acknowledged all datagram messages.
    busy: BTreeSet<WorldRank>,
    /// Peers that must be sent an acknowledgment.
    owed: BTreeSet<WorldRank>,
}

impl DatagramPeers {
    pub(super) fn of(scheme: ConnectPolicy) -> Self {
        Self {
            on: scheme == ConnectPolicy::Hybrid,
            ..Self::default()
        }
    }

    /// Returns true if no datagram message and no acknowledgment is outstanding.
    pub(super) fn are_acknowledged(&self) -> bool {
        self.busy.is_empty() && self.owed.is_empty()
    }
}

impl VerbsCore {
    /// Sends a message without a connection. Returns false if it cannot go as a datagram message.
    pub(super) fn send_datagram(&mut self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        if !self.may_send_datagram(to, HEAD + header.len() + body.len()) {
            return false;
        }
        let head = message_head(header.len(), 0);
        self.counters.messages_sent.add(1);
        self.counters.copies.add(1);
        self.counters.bytes_copied.add(body.len() as u64);
        let message = [&datagram_head(self.me)[..], &head, header, body].concat();
        self.push_datagram(to, message);
        true
    }

    /// Sends the goodbye without a connection. Returns false if it cannot go as a datagram message.
    pub(super) fn send_datagram_goodbye(&mut self, to: WorldRank, how: DownCause) -> bool {
        let mut bytes = [0; WORD_MAX];
        let len = VerbsControlWord::Goodbye(how).encode(0, &mut bytes);
        let may = self.may_send_datagram(to, len);
        if may {
            let message = [&datagram_head(self.me), &bytes[..len]].concat();
            self.push_datagram(to, message);
        }
        may
    }

    /// Returns true if datagram messages may go to a peer: both use them, and the peer knows where to answer. They only go by the
    /// first devices, which must work on both sides, as far as is known.
    pub(super) fn accepts_datagrams(&self, peer: WorldRank) -> bool {
        let hears = self.peers.get(index(peer)).is_some_and(|its| its.datagrams);
        let link = self.links.get(peer);
        let first = link.is_none_or(|link| link.lanes_at_work().has(0));
        self.datagram_peers.on
            && hears
            && first
            && !self.moved
            && self.rails[FIRST].failed.is_none()
    }

    fn may_send_datagram(&mut self, to: WorldRank, len: usize) -> bool {
        if !self.accepts_datagrams(to)
            || to == self.me
            || DATAGRAM_HEAD + len > self.datagram_max(to)
        {
            return false;
        }
        let link = self.links.get_or_new(to);
        let first = link.message_queue.is_empty() && link.backlog.is_empty() && link.counts == 0;
        link.down.is_none() && !link.is_connected() && first && link.datagram_messages.has_room()
    }

    /// Returns the bytes that one packet carries to a peer.
    fn datagram_max(&self, peer: WorldRank) -> usize {
        let mtu = self.peers[index(peer)]
            .mtu
            .min(self.rails[FIRST].device.mtu);
        (128 << mtu).min(self.datagrams.longest())
    }

    fn push_datagram(&mut self, to: WorldRank, message: Vec<u8>) {
        let link = self.links.get_or_new(to);
        link.met = true;
        let much = link.datagram_messages.push(message.into());
        let idle = link.connection.state() == ConnectState::Idle;
        self.datagram_peers.busy.insert(to);
        self.send_datagrams(to);
        if much && idle && self.closing.is_none() {
            self.request_connection(to);
        }
    }

    /// Sends datagram messages, as far as there is room.
    fn send_datagrams(&mut self, peer: WorldRank) {
        let (now, to) = (self.sleep.timer.now(), self.destination(peer));
        let Self {
            links,
            datagrams,
            rails,
            local,
            counters,
            datagram_peers: talks,
            ..
        } = self;
        let (Some(to), Some(link)) = (to, links.get_mut(peer)) else {
            return;
        };
        let answer = link.datagram_messages.expected();
        while datagrams.has_room()
            && let Some((number, message)) = link.datagram_messages.next(local, now)
        {
            put_numbers(message, number, answer);
            counters.datagrams.add(1);
            // A datagram message that is lost here is like one lost on its way.
            let _lost = datagrams.send(&rails[FIRST].device.pd, &to, message);
            talks.owed.remove(&peer);
        }
    }

    /// Returns where a peer receives datagrams.
    pub(super) fn destination(&self, peer: WorldRank) -> Option<DatagramDestination> {
        let (own, to) = (&self.rails[FIRST].device, self.peers.get(index(peer))?);
        Some(DatagramDestination {
            peer,
            route: to.first().route(own.port, own.gid_index, own.ethernet),
            qpn: to.qpn,
            qkey: to.qkey,
        })
    }

    /// Sends outstanding acknowledgments, and datagram messages that found no room.
    pub(super) fn flush_datagrams(&mut self) {
        while self.datagrams.has_room()
            && let Some(peer) = self.datagram_peers.owed.pop_first()
        {
            let Some(to) = self.destination(peer) else {
                continue;
            };
            let answer = self.links.get_or_new(peer).datagram_messages.expected();
            let mut bytes = datagram_head(self.me);
            put_numbers(&mut bytes, 0, answer);
            self.counters.datagrams.add(1);
            let pd = &self.rails[FIRST].device.pd;
            let _lost = self.datagrams.send(pd, &to, &bytes); // the peer sends its datagram message again
        }
        for peer in self.late().collect::<Vec<_>>() {
            self.send_datagrams(peer);
        }
    }

    /// Repeats the datagram messages that were not acknowledged in time. A peer that acknowledges nothing is marked as failed.
    pub(super) fn retry_datagrams(&mut self) {
        if self.datagram_peers.busy.is_empty() {
            return;
        }
        let now = self.sleep.timer.now();
        let local = self.local;
        let all: Vec<WorldRank> = self.datagram_peers.busy.iter().copied().collect();
        for peer in all {
            if !self
                .links
                .get_or_new(peer)
                .datagram_messages
                .handle_time(&local, now)
            {
                self.fail(peer, unconnected(ConnectFailure::Unreachable));
            }
        }
    }

    /// Returns when the next datagram message must be repeated.
    pub(super) fn next_datagram_retry(&self) -> Option<u64> {
        let links = self.datagram_peers.busy.iter();
        links
            .filter_map(|peer| self.links.get(*peer)?.datagram_messages.next_timeout())
            .min()
    }

    /// Returns true if something will leave as soon as there is room.
    pub(super) fn has_datagrams_to_send(&self) -> bool {
        !self.datagram_peers.owed.is_empty() || self.late().next().is_some()
    }

    /// Returns the peers with datagram messages that must leave.
    fn late(&self) -> impl Iterator<Item = WorldRank> + '_ {
        let waits = |peer: &WorldRank| {
            let link = self.links.get(*peer);
            link.is_some_and(|link| link.datagram_messages.has_next())
        };
        self.datagram_peers.busy.iter().copied().filter(waits)
    }

    /// Handles that the first device has failed. No acknowledgment is sent or received any more, so peers that still owe some are
    /// marked as failed.
    pub(super) fn fail_datagrams(&mut self, why: &'static str) {
        self.datagram_peers.owed.clear();
        for peer in std::mem::take(&mut self.datagram_peers.busy) {
            self.fail(peer, std::io::Error::other(why));
        }
    }

    /// Drops all datagram messages for a peer that is down.
    pub(super) fn drop_datagrams(&mut self, peer: WorldRank) {
        self.links.get_or_new(peer).datagram_messages.clear();
        self.datagram_peers.busy.remove(&peer);
    }

    /// Handles a datagram that is no connection message. The datagram message in it, if there is one, waits for its turn.
    pub(super) fn handle_datagram_message(&mut self, bytes: Vec<u8>, qpn: u32) {
        let Some((from, answer)) = parse_head(&bytes) else {
            return;
        };
        let known = self.peers.get(index(from)).is_some_and(|p| p.qpn == qpn);
        if !known || from == self.me || !self.datagram_peers.on {
            return;
        }
        let (local, now) = (self.local, self.sleep.timer.now());
        let link = self.links.get_or_new(from);
        if link.datagram_messages.handle_ack(answer, &local, now) {
            link.answers += 1;
            if link.datagram_messages.is_acknowledged() {
                self.datagram_peers.busy.remove(&from);
            }
            self.links.mark_dirty(from);
        }
        if bytes.len() > DATAGRAM_HEAD {
            self.deferred_datagrams
                .push(from, DeferredDatagram::Message(bytes));
        }
    }

    /// Delivers a datagram message, if it is the next one. Returns the number of events.
    pub(super) fn deliver_datagram(
        &mut self,
        from: WorldRank,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) -> u32 {
        let link = self.links.get_or_new(from);
        if link.down == Some(DownCause::Failed) {
            return 0;
        }
        let next = bytes
            .first_chunk()
            .is_some_and(|head| link.datagram_messages.take(word(head, NUMBER_AT)));
        let heard = next && link.down.is_none();
        link.met |= heard;
        if self.rails[FIRST].failed.is_none() {
            self.datagram_peers.owed.insert(from);
        }
        if !heard {
            return 0;
        }
        let message = &bytes[DATAGRAM_HEAD..];
        let mut first = [0; WORD_MAX];
        let seen = message.len().min(WORD_MAX);
        first[..seen].copy_from_slice(&message[..seen]);
        match parse(&first, message.len()) {
            Ok((VerbsArrival::Message { header }, _)) if header <= HEADER_MAX => {
                let (header, body) = message[HEAD..].split_at(header);
                self.counters.messages_received.add(1);
                sink.message(from, header, PayloadView::from_slice(body));
                1
            }
            Ok((VerbsArrival::Control(VerbsControlWord::Goodbye(how)), _)) => {
                self.report_peer_down(from, how);
                0
            }
            _ => {
                let why = format!("rank {from} sent a malformed message");
                self.fail(from, std::io::Error::other(why));
                0
            }
        }
    }
}

fn datagram_head(from: WorldRank) -> [u8; DATAGRAM_HEAD] {
    let mut head = [0; DATAGRAM_HEAD];
    head[0] = DATAGRAM_MARK;
    head[FROM_AT..][..4].copy_from_slice(&from.0.to_le_bytes());
    head
}

fn put_numbers(bytes: &mut [u8], number: u32, answer: u32) {
    bytes[NUMBER_AT..][..4].copy_from_slice(&number.to_le_bytes());
    bytes[ANSWER_AT..][..4].copy_from_slice(&answer.to_le_bytes());
}

/// Returns true if a datagram is a datagram message, or an acknowledgment of datagram messages.
pub(super) fn is_datagram_message(bytes: &[u8]) -> bool {
    bytes.first() == Some(&DATAGRAM_MARK)
}

/// Returns the sender and the answer.
fn parse_head(bytes: &[u8]) -> Option<(WorldRank, u32)> {
    let head = bytes.first_chunk::<DATAGRAM_HEAD>()?;
    (head[..4] == [DATAGRAM_MARK, 0, 0, 0])
        .then(|| (WorldRank(word(head, FROM_AT)), word(head, ANSWER_AT)))
}

fn word(head: &[u8; DATAGRAM_HEAD], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|nth| head[at + nth]))
}

/// First byte of a datagram message. No connection message begins so.
const DATAGRAM_MARK: u8 = 0xd6;
const FROM_AT: usize = 4;
const NUMBER_AT: usize = 8;
const ANSWER_AT: usize = 12;
const DATAGRAM_HEAD: usize = 16;

/// Bytes of the longest datagram message: what a packet carries on an Ethernet with the usual MTU.
pub(super) const DATAGRAM_MAX: usize = 1024;
