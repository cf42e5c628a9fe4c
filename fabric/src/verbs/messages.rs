//! Messages: short ones are posted with their bytes, longer ones are copied into a chunk. No allocation and no lock.

use std::io;

use super::{
    core::{Core, index},
    inbox::{BODY_MAX, HEADER_MAX},
    link::{Link, WAITING_MAX, Waiting},
    objects::{What, Work},
    outbox::{Cargo, Flight, Outbox},
    replay_log::Kept,
    lane::To,
    wire::{HEAD, WORD_MAX, Word, message_head},
};
use crate::connect::State;

impl Core {
    /// Sends a message. Returns false if there was no room.
    pub(super) fn send(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        self.check_message(to, header, body);
        let Some(link) = self
            .link(to)
            .filter(|link| link.gone.is_some() || link.open)
        else {
            return self.send_first(to, header, body);
        };
        if link.gone.is_some() {
            return true; // dropped, as `Driver::post` says
        }
        if !link.waiting.is_empty() || !link.words.is_empty() {
            self.flush(to);
        }
        let is_next = |link: &mut Link| link.counts == 0 && link.waiting.is_empty();
        let free = self.link(to).is_some_and(is_next);
        let sent = free && self.transmit(to, header, body);
        self.touch(to);
        if sent {
            self.counters.messages_sent.add(1);
        }
        self.refused |= !sent;
        sent
    }

    fn check_message(&self, to: u32, header: &[u8], body: &[u8]) {
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
    fn send_first(&mut self, to: u32, header: &[u8], body: &[u8]) -> bool {
        self.link_or_new(to);
        if self.send_parcel(to, header, body) {
            return true;
        }
        self.dial(to);
        let link = self.link_or_new(to);
        if link.gone.is_some() {
            return true;
        }
        if link.open && link.waiting.is_empty() {
            return self.send(to, header, body);
        }
        let room = link.waiting.len() < WAITING_MAX;
        if room {
            let (header, body) = (header.into(), body.into());
            link.waiting.push_back(Waiting { header, body });
            self.counters.messages_sent.add(1);
            // No connection could be had, and nothing else asks again.
            let link = self.link_or_new(to);
            if !link.open && link.dial.state() == State::Idle {
                self.settle_dial(to);
            }
        }
        self.refused |= !room;
        room
    }

    /// Posts everything that waited: control words first, then messages in their order, then one-sided commands.
    pub(super) fn flush(&mut self, peer: u32) {
        self.tell_lanes(peer);
        self.send_again(peer);
        self.speak(peer);
        while let Some(link) = self.link(peer).filter(|link| link.open && link.counts == 0)
            && let Some(next) = link.waiting.pop_front()
        {
            if !self.transmit(peer, &next.header, &next.body) {
                self.link_or_new(peer).waiting.push_front(next);
                break;
            }
        }
        self.unpark(peer);
        self.settle_drain(peer);
        if let Some(link) = self.link(peer)
            && link.is_done()
            && (!link.draining || link.drained)
        {
            self.stirred.remove(&peer);
        }
    }

    /// Queues a control word, which is sent as soon as there is room.
    pub(super) fn say(&mut self, peer: u32, word: Word) {
        let link = self.link_or_new(peer);
        if link.gone.is_none() && !link.words.contains(&word) {
            // Words in front may wait for credits, and so may the peer's, so giving back credits comes first.
            if matches!(word, Word::Credit) {
                link.words.push_front(word);
            } else {
                link.words.push_back(word);
            }
            self.stir(peer);
        }
    }

    fn speak(&mut self, peer: u32) {
        let Self { links, outbox, .. } = self;
        let Some(link) = links[index(peer)].as_deref_mut() else {
            return;
        };
        while let Some(word) = link.words.front().copied()
            && link.may_say(word)
            && link.has_room_at_home(1)
            && outbox.has_room(link.home, 1)
            && outbox.may_keep(link)
        {
            let to = To {
                peer,
                lane: link.home,
            };
            link.words.pop_front();
            let mut bytes = [0; WORD_MAX];
            let len = word.encode(link.take_owed(), &mut bytes);
            link.credits -= 1;
            // The goodbye asks for a completion, to know when it has left.
            let last = matches!(word, Word::Bye(_));
            outbox.keep(link, &bytes[..len]);
            let posted = outbox.post_inline(link, to, &bytes[..len], last);
            if let Err(why) = posted {
                return self.note_broken(to, why);
            }
        }
    }

    /// Posts a message. Returns false if there was no room.
    fn transmit(&mut self, peer: u32, header: &[u8], body: &[u8]) -> bool {
        let Self {
            links,
            outbox,
            counters,
            ..
        } = self;
        let Some(link) = links[index(peer)].as_deref_mut() else {
            return false;
        };
        let lane = link.home;
        let to = To { peer, lane };
        let room = link.may_send() && link.has_room_at_home(1) && outbox.has_room(lane, 1);
        if !room || !link.words.is_empty() || !outbox.may_keep(link) {
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
                link.trail.keep(Kept { chunk, len });
                Cargo::Message { chunk: None }
            } else {
                Cargo::Message { chunk: Some(chunk) }
            };
            outbox.post_chunk(link, Flight::new(to, what, None), Kept { chunk, len })
        };
        link.credits -= 1;
        if let Err(why) = posted {
            self.note_broken(to, why);
        }
        true
    }
}

impl Outbox {
    /// Posts a message that lies in a chunk.
    pub(super) fn post_chunk(
        &mut self,
        link: &mut Link,
        flight: Flight,
        one: Kept,
    ) -> io::Result<()> {
        let from = self.chunk(flight.to.lane, one.chunk, one.len);
        let work = Work {
            id: 0,
            what: What::Send(from),
            signaled: true,
            solicited: true,
        };
        self.post(link, flight, &[work])
    }

    /// Returns true if there is room to keep the next message, in case it must be sent again.
    fn may_keep(&self, link: &Link) -> bool {
        !link.is_wide() || self.has_chunk()
    }

    /// Keeps the next message, in case it must be sent again.
    fn keep(&mut self, link: &mut Link, bytes: &[u8]) {
        if link.is_wide()
            && let Some((chunk, len)) = self.fill(&[bytes])
        {
            link.trail.keep(Kept { chunk, len });
        }
    }
}

/// Most bytes that are ever posted with a request.
const INLINE_MAX: usize = 256;
