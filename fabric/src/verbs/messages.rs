//! Messages: short ones are posted with their bytes, longer ones are copied into a chunk. No allocation and no lock.

use std::io;

use super::{
    core::{VerbsCore, index},
    datagrams::DatagramStart,
    inbox::{BODY_MAX, HEADER_MAX},
    lane::PeerLane,
    link::{LinkMessage, VerbsLink, WAITING_MAX},
    objects::{WorkOp, WorkRequest},
    outbox::{FlightContent, QpFlight, VerbsOutbox},
    replay_log::ReplayEntry,
    wire::{HEAD, VerbsControlWord, WORD_MAX, message_head},
};
use crate::{connect::ConnectState, driver::WorldRank};

impl VerbsCore {
    /// Sends a message. Returns false if there was no room.
    pub(super) fn send(&mut self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        self.check_message(to, header, body);
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
        }
        let is_next = |link: &mut VerbsLink| link.counts == 0 && link.message_queue.is_empty();
        let free = self.links.get_mut(to).is_some_and(is_next);
        let sent = free && self.transmit(to, header, body);
        self.touch(to);
        if sent {
            self.counters.messages_sent.add(1);
        }
        self.refused |= !sent;
        sent
    }

    fn check_message(&self, to: WorldRank, header: &[u8], body: &[u8]) {
        let (header, body) = (header.len(), body.len());
        assert!(
            header <= HEADER_MAX,
            "a header of {header} bytes; the longest is {HEADER_MAX}"
        );
        assert!(
            body <= BODY_MAX,
            "a body of {body} bytes; the longest is {BODY_MAX}"
        );
        assert!(
            index(to) < self.peers.len(),
            "rank {to} in a job of {}",
            self.peers.len()
        );
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
        self.report_lanes(peer);
        self.replay_messages(peer);
        self.speak(peer);
        while let Some(link) = self
            .links
            .get_mut(peer)
            .filter(|link| link.open && link.counts == 0)
            && let Some(next) = link.message_queue.pop_front()
        {
            if !self.transmit(peer, &next.header, &next.body) {
                self.links.get_or_new(peer).message_queue.push_front(next);
                break;
            }
        }
        self.commands().retry_backlog(peer);
        self.settle_drain(peer);
        if let Some(link) = self.links.get_mut(peer)
            && link.is_done()
            && (!link.draining || link.drained)
        {
            self.links.mark_clean(peer);
        }
    }

    fn speak(&mut self, peer: WorldRank) {
        let Self { links, outbox, .. } = self;
        let Some(link) = links.get_mut(peer) else {
            return;
        };
        while let Some(word) = link.control_queue.front().copied()
            && link.may_send_control(word)
            && link.has_room_at_home(1)
            && outbox.has_room(link.home, 1)
            && outbox.may_keep(link)
        {
            let to = PeerLane {
                peer,
                lane: link.home,
            };
            link.control_queue.pop_front();
            let mut bytes = [0; WORD_MAX];
            let len = word.encode(link.take_owed(), &mut bytes);
            link.credits -= 1;
            // The goodbye asks for a completion, to know when it has left.
            let last = matches!(word, VerbsControlWord::Goodbye(_));
            outbox.keep(link, &bytes[..len]);
            let posted = outbox.post_inline(link, to, &bytes[..len], last);
            if let Err(why) = posted {
                return self.links.note_broken(to, why);
            }
        }
    }

    /// Posts a message. Returns false if there was no room.
    fn transmit(&mut self, peer: WorldRank, header: &[u8], body: &[u8]) -> bool {
        let Self {
            links,
            outbox,
            counters,
            ..
        } = self;
        let Some(link) = links.get_mut(peer) else {
            return false;
        };
        let lane = link.home;
        let to = PeerLane { peer, lane };
        let room = link.may_send() && link.has_room_at_home(1) && outbox.has_room(lane, 1);
        if !room || !link.control_queue.is_empty() || !outbox.may_keep(link) {
            return false;
        }
        let total = HEAD + header.len() + body.len();
        let posted = if total <= link.inline_max() {
            let head = message_head(header.len(), link.take_owed());
            let mut bytes = [0; INLINE_MAX];
            bytes[..HEAD].copy_from_slice(&head);
            bytes[HEAD..][..header.len()].copy_from_slice(header);
            bytes[HEAD + header.len()..total].copy_from_slice(body);
            outbox.keep(link, &bytes[..total]);
            outbox.post_inline(link, to, &bytes[..total], false)
        } else {
            let head = message_head(header.len(), u16::try_from(link.owed).unwrap_or(0));
            let Some((chunk, len)) = outbox.fill(&[&head, header, body]) else {
                return false;
            };
            link.take_owed();
            counters.copies.add(1);
            counters.bytes_copied.add(body.len() as u64);
            let what = if link.is_wide() {
                link.replay_log.keep(ReplayEntry { chunk, len });
                FlightContent::Message { chunk: None }
            } else {
                FlightContent::Message { chunk: Some(chunk) }
            };
            outbox.post_chunk(
                link,
                QpFlight::new(to, what, None),
                ReplayEntry { chunk, len },
            )
        };
        link.credits -= 1;
        if let Err(why) = posted {
            self.links.note_broken(to, why);
        }
        true
    }
}

impl VerbsOutbox {
    /// Posts a message that lies in a chunk.
    pub(super) fn post_chunk(
        &mut self,
        link: &mut VerbsLink,
        flight: QpFlight,
        one: ReplayEntry,
    ) -> io::Result<()> {
        let from = self.chunk(flight.to.lane, one.chunk, one.len);
        let work = WorkRequest {
            id: 0,
            op: WorkOp::Send(from),
            signaled: true,
            solicited: true,
        };
        self.post(link, flight, &[work])
    }

    /// Returns true if there is room to keep the next message, in case it must be sent again.
    fn may_keep(&self, link: &VerbsLink) -> bool {
        !link.is_wide() || self.has_chunk()
    }

    /// Keeps the next message, in case it must be sent again.
    fn keep(&mut self, link: &mut VerbsLink, bytes: &[u8]) {
        if link.is_wide()
            && let Some((chunk, len)) = self.fill(&[bytes])
        {
            link.replay_log.keep(ReplayEntry { chunk, len });
        }
    }
}

/// Most bytes that are ever posted with a request.
const INLINE_MAX: usize = 256;
