//! Sending messages: those to connected peers are posted at once (`send_flow`), and the first ones to a peer go as datagram
//! messages or wait for the connection.

use super::{
    core::{VerbsCore, index},
    datagrams::DatagramStart,
    inbox::{BODY_MAX, HEADER_MAX},
    link::{LinkMessage, VerbsLink, WAITING_MAX},
};
use crate::{connect::ConnectState, driver::WorldRank};

impl VerbsCore {
    /// Sends a message. Returns false if there was no room.
    pub(super) fn send(&mut self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        check_message(header, body);
        assert!(
            index(to) < self.peers.len(),
            "rank {to} in a job of {}",
            self.peers.len()
        );
        let Some(link) = self
            .links
            .get_mut(to)
            .filter(|link| link.down.is_some() || link.open)
        else {
            return self.send_first(to, header, body);
        };
        if link.down.is_some() {
            return true; // dropped, as `Driver::post` says
        }
        if !link.message_queue.is_empty() || !link.control_queue.is_empty() {
            self.flush(to);
            if self.links.get_or_new(to).down.is_some() {
                return true; // dropped, because the peer was found to be lost
            }
        }
        let is_next = |link: &mut VerbsLink| link.counts == 0 && link.message_queue.is_empty();
        let free = self.links.get_mut(to).is_some_and(is_next);
        let sent = free && self.sends().transmit(to, header, body);
        self.touch(to);
        if sent {
            self.counters.messages_sent.add(1);
        }
        self.refused |= !sent;
        sent
    }

    #[cold]
    fn send_first(&mut self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        self.links.get_or_new(to);
        match self.datagrams().send_message(to, header, body) {
            DatagramStart::Unfit => {}
            DatagramStart::SentToBusyPeer if self.closing.is_none() => {
                self.request_connection(to);
                return true;
            }
            DatagramStart::Sent | DatagramStart::SentToBusyPeer => return true,
        }
        self.ensure_connected(to);
        let link = self.links.get_or_new(to);
        if link.down.is_some() {
            return true;
        }
        if link.open && link.message_queue.is_empty() {
            return self.send(to, header, body);
        }
        let room = link.message_queue.len() < WAITING_MAX;
        if room {
            let (header, body) = (header.into(), body.into());
            link.message_queue.push_back(LinkMessage { header, body });
            self.counters.messages_sent.add(1);
            // No connection could be had, and nothing else asks again.
            let link = self.links.get_or_new(to);
            if !link.open && link.connection.state() == ConnectState::Idle {
                self.settle_connection(to);
            }
        }
        self.refused |= !room;
        room
    }

    /// Posts everything that waited: control words first, then messages in their order, then one-sided commands.
    pub(super) fn flush(&mut self, peer: WorldRank) {
        self.sends().report_lanes(peer);
        self.replay_messages(peer);
        self.sends().speak(peer);
        while let Some(link) = self
            .links
            .get_mut(peer)
            .filter(|link| link.open && link.counts == 0)
            && let Some(next) = link.message_queue.pop_front()
        {
            if !self.sends().transmit(peer, &next.header, &next.body) {
                self.links.get_or_new(peer).message_queue.push_front(next);
                break;
            }
        }
        self.commands().retry_backlog(peer);
        self.fail_lost_peers();
        self.settle_drain(peer);
        if let Some(link) = self.links.get_mut(peer)
            && link.is_done()
            && (!link.draining || link.drained)
        {
            self.links.mark_clean(peer);
        }
    }
}

fn check_message(header: &[u8], body: &[u8]) {
    let (header, body) = (header.len(), body.len());
    assert!(
        header <= HEADER_MAX,
        "a header of {header} bytes; the longest is {HEADER_MAX}"
    );
    assert!(
        body <= BODY_MAX,
        "a body of {body} bytes; the longest is {BODY_MAX}"
    );
}
