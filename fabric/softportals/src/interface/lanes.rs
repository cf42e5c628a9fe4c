//! Messages to and from each peer of an interface, and which peers have output.

use std::collections::{BTreeMap, VecDeque};

use super::{target::IncompletePut, transmit::SoftOutMessage};
use crate::event::PhysicalId;

/// The lanes of all peers with messages in flight.
#[derive(Debug, Default)]
pub(super) struct SoftLanes {
    by_peer: BTreeMap<PhysicalId, SoftPeerQueues>,
    /// Peers whose lanes have output, served round-robin.
    ready: VecDeque<PhysicalId>,
}

/// Messages to and from one peer. They exist only while they are not empty.
#[derive(Debug, Default)]
struct SoftPeerQueues {
    requests: VecDeque<SoftOutMessage>,
    answers: VecDeque<SoftOutMessage>,
    /// True if the next packet is an answer. Requests and answers alternate, so neither waits for long messages of the other.
    answers_next: bool,
    /// Message from this peer whose data is incomplete.
    incoming: Option<IncompletePut>,
    queued: bool,
}

impl SoftLanes {
    /// Returns true if messages wait for the transport.
    pub(super) fn has_output(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_peer.is_empty()
    }

    /// Returns the peers that have a lane.
    pub(super) fn peers(&self) -> impl Iterator<Item = PhysicalId> {
        self.by_peer.keys().copied()
    }

    pub(super) fn enqueue(&mut self, peer: PhysicalId, message: SoftOutMessage) {
        let lane = self.by_peer.entry(peer).or_default();
        if message.is_answer() {
            lane.answers.push_back(message);
        } else {
            lane.requests.push_back(message);
        }
        if !std::mem::replace(&mut lane.queued, true) {
            self.ready.push_back(peer);
        }
    }

    /// Takes the peer whose turn it is to send.
    pub(super) fn next_ready(&mut self) -> Option<PhysicalId> {
        self.ready.pop_front()
    }

    /// Takes the next message to a peer.
    pub(super) fn next_message(&mut self, peer: PhysicalId) -> Option<SoftOutMessage> {
        self.by_peer.get_mut(&peer)?.next()
    }

    /// Puts the rest of a message back to the front.
    pub(super) fn put_back(&mut self, peer: PhysicalId, message: SoftOutMessage) {
        let lane = self.by_peer.entry(peer).or_default();
        if message.is_answer() {
            lane.answers.push_front(message);
        } else {
            lane.requests.push_front(message);
        }
    }

    /// Ends a peer's turn to send. It comes again if the peer has more output.
    pub(super) fn end_turn(&mut self, peer: PhysicalId) {
        match self.by_peer.get_mut(&peer) {
            Some(lane) if lane.has_output() => self.ready.push_back(peer),
            Some(lane) => {
                lane.queued = false;
                self.remove_if_empty(peer);
            }
            None => {}
        }
    }

    /// Makes these peers the next to send, because the transport had no room for them.
    pub(super) fn wait_for_room(&mut self, peers: VecDeque<PhysicalId>) {
        self.ready = peers;
    }

    pub(super) fn take_incoming(&mut self, from: PhysicalId) -> Option<IncompletePut> {
        let incoming = self.by_peer.get_mut(&from)?.incoming.take();
        self.remove_if_empty(from);
        incoming
    }

    pub(super) fn keep_incoming(&mut self, from: PhysicalId, incoming: IncompletePut) {
        self.by_peer.entry(from).or_default().incoming = Some(incoming);
    }

    /// Removes from a peer's lane, and returns, the requests that have not begun and were not spared before.
    pub(super) fn spare_requests(&mut self, peer: PhysicalId) -> VecDeque<SoftOutMessage> {
        let Some(lane) = self.by_peer.get_mut(&peer) else {
            return VecDeque::new();
        };
        let requests = std::mem::take(&mut lane.requests).into_iter();
        let (mut spared, lost): (VecDeque<_>, _) =
            requests.partition(SoftOutMessage::may_be_spared);
        lane.requests = lost;
        spared.iter_mut().for_each(SoftOutMessage::spare);
        spared
    }

    /// Removes a peer's lane, and returns the answers in it.
    pub(super) fn remove(&mut self, peer: PhysicalId) -> VecDeque<SoftOutMessage> {
        self.ready.retain(|one| *one != peer);
        let lane = self.by_peer.remove(&peer);
        lane.map(|lane| lane.answers).unwrap_or_default()
    }

    fn remove_if_empty(&mut self, peer: PhysicalId) {
        let lane = self.by_peer.get(&peer);
        if lane.is_some_and(SoftPeerQueues::is_empty) {
            self.by_peer.remove(&peer);
        }
    }
}

impl SoftPeerQueues {
    fn next(&mut self) -> Option<SoftOutMessage> {
        self.answers_next = !self.answers_next;
        let (first, second) = if self.answers_next {
            (&mut self.answers, &mut self.requests)
        } else {
            (&mut self.requests, &mut self.answers)
        };
        first.pop_front().or_else(|| second.pop_front())
    }

    fn has_output(&self) -> bool {
        !self.requests.is_empty() || !self.answers.is_empty()
    }

    fn is_empty(&self) -> bool {
        !self.has_output() && self.incoming.is_none() && !self.queued
    }
}
