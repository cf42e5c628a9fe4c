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

use super::super::{
    core::index,
    inbox::HEADER_MAX,
    lane::FIRST,
    link_table::LinkTable,
    wire::{HEAD, VerbsArrival, VerbsControlWord, WORD_MAX, message_head, parse},
};
use super::{
    DatagramDestination, DatagramExchange, DatagramStart, DeferredDatagram, VerbsDatagrams,
};
use crate::{
    connect::{ConnectPolicy, ConnectState},
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
            on: scheme.has_datagram_messages(),
            ..Self::default()
        }
    }

    /// Returns true if no datagram message and no acknowledgment is outstanding.
    pub(super) fn are_acknowledged(&self) -> bool {
        self.busy.is_empty() && self.owed.is_empty()
    }

    /// Returns when the next datagram message must be repeated.
    pub(super) fn next_retry(&self, links: &LinkTable) -> Option<u64> {
        let busy = self.busy.iter();
        busy.filter_map(|peer| links.get(*peer)?.datagram_messages.next_timeout())
            .min()
    }

    /// Returns true if something will leave as soon as there is room.
    pub(super) fn has_to_send(&self, links: &LinkTable) -> bool {
        !self.owed.is_empty() || self.late(links).next().is_some()
    }

    /// Returns the peers with datagram messages that must leave.
    fn late(&self, links: &LinkTable) -> impl Iterator<Item = WorldRank> {
        let waits = move |peer: &WorldRank| {
            let link = links.get(*peer);
            link.is_some_and(|link| link.datagram_messages.has_next())
        };
        self.busy.iter().copied().filter(waits)
    }

    /// Forgets all acknowledgments, since none is sent or received any more. Returns the peers that still owe some.
    pub(super) fn give_up(&mut self) -> BTreeSet<WorldRank> {
        self.owed.clear();
        std::mem::take(&mut self.busy)
    }
}

/// Content of a datagram message that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum DatagramDelivery {
    /// There is none, or it is not its turn.
    Nothing,
    /// A message, which the sink has received.
    Message,
    /// The goodbye.
    Goodbye(DownCause),
    /// Bytes that no peer in good faith sends.
    Malformed,
}

impl DatagramExchange<'_> {
    /// Sends a message without a connection, if it can go as a datagram message.
    pub(in super::super) fn send_message(
        &mut self,
        to: WorldRank,
        header: &[u8],
        body: &[u8],
    ) -> DatagramStart {
        if !self.may_send_datagram(to, HEAD + header.len() + body.len()) {
            return DatagramStart::Unfit;
        }
        let head = message_head(header.len(), 0);
        self.counters.messages_sent.add(1);
        self.counters.copies.add(1);
        self.counters.bytes_copied.add(body.len() as u64);
        let message = [&datagram_head(self.me)[..], &head, header, body].concat();
        let much = self.push_datagram(to, message);
        let idle = self.links.get_or_new(to).connection.state() == ConnectState::Idle;
        if much && idle {
            DatagramStart::SentToBusyPeer
        } else {
            DatagramStart::Sent
        }
    }

    /// Sends the goodbye without a connection. Returns false if it cannot go as a datagram message.
    pub(in super::super) fn send_goodbye(&mut self, to: WorldRank, how: DownCause) -> bool {
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
    pub(in super::super) fn accepts(&self, peer: WorldRank) -> bool {
        let hears = self.peers.get(index(peer)).is_some_and(|its| its.datagrams);
        let link = self.links.get(peer);
        let first = link.is_none_or(|link| link.lanes_at_work().has(0));
        self.datagrams.talks.on
            && hears
            && first
            && !self.moved
            && self.rails[FIRST].failed.is_none()
    }

    fn may_send_datagram(&mut self, to: WorldRank, len: usize) -> bool {
        if !self.accepts(to) || to == self.me || DATAGRAM_HEAD + len > self.datagram_max(to) {
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
        (128 << mtu).min(self.datagrams.first.longest())
    }

    /// Returns true if many messages to the peer are in flight.
    fn push_datagram(&mut self, to: WorldRank, message: Vec<u8>) -> bool {
        let link = self.links.get_or_new(to);
        link.met = true;
        let much = link.datagram_messages.push(message.into());
        self.datagrams.talks.busy.insert(to);
        self.send_datagrams(to);
        much
    }

    /// Sends datagram messages, as far as there is room.
    fn send_datagrams(&mut self, peer: WorldRank) {
        let (now, to) = (self.timer.now(), self.destination(peer));
        let Self {
            links,
            datagrams,
            rails,
            local,
            counters,
            ..
        } = self;
        let VerbsDatagrams { first, talks, .. } = &mut **datagrams;
        let (Some(to), Some(link)) = (to, links.get_mut(peer)) else {
            return;
        };
        let answer = link.datagram_messages.expected();
        while first.has_room()
            && let Some((number, message)) = link.datagram_messages.next(local, now)
        {
            put_numbers(message, number, answer);
            counters.datagrams.add(1);
            // A datagram message that is lost here is like one lost on its way.
            let _lost = first.send(&rails[FIRST].device.pd, &to, message);
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
    pub(in super::super) fn flush(&mut self) {
        while self.datagrams.first.has_room()
            && let Some(peer) = self.datagrams.talks.owed.pop_first()
        {
            let Some(to) = self.destination(peer) else {
                continue;
            };
            let answer = self.links.get_or_new(peer).datagram_messages.expected();
            let mut bytes = datagram_head(self.me);
            put_numbers(&mut bytes, 0, answer);
            self.counters.datagrams.add(1);
            let pd = &self.rails[FIRST].device.pd;
            let _lost = self.datagrams.first.send(pd, &to, &bytes); // the peer sends its datagram message again
        }
        for peer in self.datagrams.talks.late(self.links).collect::<Vec<_>>() {
            self.send_datagrams(peer);
        }
    }

    /// Repeats the datagram messages that were not acknowledged in time. Returns the peers that acknowledge nothing.
    pub(in super::super) fn retry_messages(&mut self) -> Vec<WorldRank> {
        let mut silent = Vec::new();
        if self.datagrams.talks.busy.is_empty() {
            return silent;
        }
        let now = self.timer.now();
        for &peer in &self.datagrams.talks.busy {
            let messages = &mut self.links.get_or_new(peer).datagram_messages;
            if !messages.handle_time(self.local, now) {
                silent.push(peer);
            }
        }
        silent
    }

    /// Drops all datagram messages for a peer that is down.
    pub(in super::super) fn drop_messages(&mut self, peer: WorldRank) {
        self.links.get_or_new(peer).datagram_messages.clear();
        self.datagrams.talks.busy.remove(&peer);
    }

    /// Handles a datagram that is no connection message. The datagram message in it, if there is one, waits for its turn.
    pub(super) fn handle_datagram_message(&mut self, bytes: Vec<u8>, qpn: u32) {
        let Some((from, answer)) = parse_head(&bytes) else {
            return;
        };
        let known = self.peers.get(index(from)).is_some_and(|p| p.qpn == qpn);
        if !known || from == self.me || !self.datagrams.talks.on {
            return;
        }
        let (local, now) = (self.local, self.timer.now());
        let link = self.links.get_or_new(from);
        if link.datagram_messages.handle_ack(answer, local, now) {
            link.answers += 1;
            if link.datagram_messages.is_acknowledged() {
                self.datagrams.talks.busy.remove(&from);
            }
            self.links.mark_dirty(from);
        }
        if bytes.len() > DATAGRAM_HEAD {
            self.datagrams
                .deferred
                .push(from, DeferredDatagram::Message(bytes));
        }
    }

    /// Delivers a datagram message, if it is the next one.
    pub(in super::super) fn deliver(
        &mut self,
        from: WorldRank,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) -> DatagramDelivery {
        let link = self.links.get_or_new(from);
        if link.down == Some(DownCause::Failed) {
            return DatagramDelivery::Nothing;
        }
        let next = bytes
            .first_chunk()
            .is_some_and(|head| link.datagram_messages.take(word(head, NUMBER_AT)));
        let heard = next && link.down.is_none();
        link.met |= heard;
        if self.rails[FIRST].failed.is_none() {
            self.datagrams.talks.owed.insert(from);
        }
        if !heard {
            return DatagramDelivery::Nothing;
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
                DatagramDelivery::Message
            }
            Ok((VerbsArrival::Control(VerbsControlWord::Goodbye(how)), _)) => {
                DatagramDelivery::Goodbye(how)
            }
            _ => DatagramDelivery::Malformed,
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
pub(in super::super) const DATAGRAM_MAX: usize = 1024;
