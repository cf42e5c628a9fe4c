//! Datagrams: connection messages, and short messages to peers without a connection (`messages`).
//!
//! They go by the queue pair for datagrams of the first device (`queue_pair`), or by those of the others if there is a reason
//! (`alternates`). An arrived datagram waits for earlier arrivals by connections (`deferred`).

mod alternates;
mod deferred;
mod messages;
mod queue_pair;

use std::collections::{BTreeSet, VecDeque};

use self::messages::{DatagramPeers, is_datagram_message};
pub(super) use self::{
    deferred::{DeferredDatagram, DeferredDatagrams},
    messages::{DATAGRAM_MAX, DatagramDelivery},
    queue_pair::{DatagramDestination, DatagramQp, RECEIVES, SENDS},
};
use super::{
    abi::IbvWc,
    address::VerbsAddress,
    connect_wire,
    core::index,
    lane::{FIRST, RemotePort},
    link_table::LinkTable,
    rail::VerbsRail,
};
use crate::{
    connect::{CAPS_NONE, ConnectConfig, ConnectFrame, ConnectKind, ConnectMessage, ConnectPolicy},
    counters::DriverStats,
    driver::WorldRank,
    timer::RetryTimer,
};

/// The queue pairs for datagrams, and what waits to be sent or delivered.
#[derive(Debug)]
pub(super) struct VerbsDatagrams {
    first: DatagramQp,
    /// Queue pairs of the devices after the first.
    others: Vec<DatagramQp>,
    talks: DatagramPeers,
    /// Datagrams that wait for earlier arrivals from their senders.
    pub(super) deferred: DeferredDatagrams,
    /// Connection messages that found no room.
    unsent: VecDeque<(WorldRank, ConnectMessage)>,
    scratch: Vec<u8>,
}

/// The datagrams of a rank, with what they use of it.
pub(super) struct DatagramExchange<'a> {
    pub(super) datagrams: &'a mut VerbsDatagrams,
    pub(super) links: &'a mut LinkTable,
    pub(super) peers: &'a mut [VerbsAddress],
    pub(super) rails: &'a [VerbsRail],
    pub(super) peer_ports: &'a [Box<[RemotePort]>],
    pub(super) ports: &'a [RemotePort],
    pub(super) counters: &'a DriverStats,
    pub(super) local: &'a ConnectConfig,
    pub(super) timer: &'a RetryTimer,
    pub(super) me: WorldRank,
    pub(super) moved: bool,
}

/// Result of the attempt to send a message as a datagram message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatagramStart {
    /// The message cannot go as a datagram message.
    Unfit,
    Sent,
    /// The message was sent, and the peer gets so many that it should be connected.
    SentToBusyPeer,
}

impl VerbsDatagrams {
    pub(super) fn new(first: DatagramQp, others: Vec<DatagramQp>, scheme: ConnectPolicy) -> Self {
        Self {
            first,
            others,
            talks: DatagramPeers::of(scheme),
            deferred: DeferredDatagrams::default(),
            unsent: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// Returns true if the connection policy has datagram messages.
    pub(super) const fn carry_messages(&self) -> bool {
        self.talks.on
    }

    /// Returns the datagram queue pair of a device.
    pub(super) fn qp(&mut self, lane: usize) -> Option<&mut DatagramQp> {
        match lane {
            FIRST => Some(&mut self.first),
            _ => self.others.get_mut(lane - 1),
        }
    }

    /// Returns the datagram queue pair of a device, if the completion is about it.
    pub(super) fn qp_of(&mut self, lane: usize, over: &IbvWc) -> Option<&mut DatagramQp> {
        let words = self.qp(lane);
        words.filter(|words| words.qp.number() == over.qp_num)
    }

    /// Returns true if all datagrams have left. Devices that have failed do not count, as they may never report it.
    pub(super) fn have_left(&self, rails: &[VerbsRail]) -> bool {
        let words = std::iter::once(&self.first).chain(&self.others);
        let mut all = rails.iter().zip(words);
        all.all(|(rail, words)| rail.failed.is_some() || words.have_left())
    }

    /// Makes all datagrams ask for a completion from now on.
    pub(super) fn begin_close(&mut self) {
        let all = std::iter::once(&mut self.first).chain(&mut self.others);
        all.for_each(|words| words.ends = true);
    }

    /// Returns true if no datagram message and no acknowledgment is outstanding.
    pub(super) fn are_acknowledged(&self) -> bool {
        self.talks.are_acknowledged()
    }

    /// Returns when the next datagram message must be repeated.
    pub(super) fn next_retry(&self, links: &LinkTable) -> Option<u64> {
        self.talks.next_retry(links)
    }

    /// Returns true if something will leave as soon as there is room.
    pub(super) fn has_to_send(&self, links: &LinkTable) -> bool {
        !self.unsent.is_empty() || self.talks.has_to_send(links)
    }

    /// Handles that the first device has failed. Returns the peers that still owe acknowledgments.
    pub(super) fn fail_first(&mut self) -> BTreeSet<WorldRank> {
        self.talks.give_up()
    }
}

impl DatagramExchange<'_> {
    /// Handles a datagram that arrived by a device.
    pub(super) fn handle_datagram(&mut self, lane: usize, completion: &IbvWc) {
        let Some(datagrams) = self.datagrams.qp(lane) else {
            return;
        };
        let bytes = datagrams.take(completion);
        if is_datagram_message(&bytes) && lane == FIRST {
            return self.handle_datagram_message(bytes, completion.src_qp);
        }
        let first = |rank| self.peers.get(index(rank)).map(VerbsAddress::first);
        let Some((frame, ends)) = connect_wire::parse(&bytes, first) else {
            return;
        };
        let from = frame.message.from.rank;
        if self.is_connect_source(from, lane, completion.src_qp) && from != self.me {
            if lane != FIRST {
                let link = self.links.get_or_new(from);
                (link.uses_alternates, link.alternate) = (true, lane);
            }
            let ends = (!frame.lanes.as_slice().is_empty()).then_some(ends);
            if let Some(ends) = &ends {
                self.update_peer_port(from, &ends.remote_ports[FIRST]);
            }
            self.datagrams
                .deferred
                .push(from, DeferredDatagram::Connect(frame.message, ends));
        }
    }

    /// Sends the connection messages that found no room, as when many connections are made at the same time.
    pub(super) fn flush_connect_messages(&mut self) {
        while self.has_connect_room()
            && let Some((peer, message)) = self.datagrams.unsent.pop_front()
        {
            self.send_word(peer, message);
        }
    }

    pub(super) fn send_word(&mut self, peer: WorldRank, message: ConnectMessage) {
        if !self.has_connect_room() && !self.uses_alternates(peer) {
            return self.datagrams.unsent.push_back((peer, message));
        }
        let mut frame = ConnectFrame::bare(message);
        if matches!(message.kind, ConnectKind::Request | ConnectKind::Reply) {
            frame.caps = CAPS_NONE;
            frame.lanes = self.links.get_or_new(peer).qp_addresses();
        }
        self.counters.connecting.add(1);
        let mut bytes = std::mem::take(&mut self.datagrams.scratch);
        bytes.clear();
        connect_wire::encode(&frame, self.ports, self.moved, &mut bytes);
        let to = self.destination(peer);
        if let Some(to) = to.filter(|_| self.rails[FIRST].failed.is_none()) {
            // Errors are ignored: the message counts as lost, and is repeated until the peer counts as unreachable.
            let _lost = self
                .datagrams
                .first
                .send(&self.rails[FIRST].device.pd, &to, &bytes);
        }
        let once = matches!(message.kind, ConnectKind::Reject(_));
        self.send_by_alternates(peer, &bytes, once);
        self.datagrams.scratch = bytes;
    }

    /// Records where a peer's first port is now.
    pub(super) fn update_peer_port(&mut self, peer: WorldRank, now: &RemotePort) {
        let Some(known) = self.peers.get_mut(index(peer)) else {
            return;
        };
        if !now.is_at(&known.first()) {
            (known.gid, known.lid, known.mtu) = (now.gid, now.lid, now.mtu);
        }
    }
}
