//! The flow of messages and control words to connected peers: short ones are posted with their bytes, longer ones are copied into
//! a chunk. No allocation and no lock.
//!
//! **The goodbye** goes by the home, behind all messages. If that lane has failed, the rank does not know before the device gives
//! it up, and a rank that closes may not exist for that long. So it also says goodbye by the other lanes, with the number of
//! messages that come before. A peer that receives this makes the home answer. If the home works, the goodbye comes by it, too.
//! If it does not, it is left, and nothing has to be sent again if all messages had arrived.

use std::io;

use super::{
    address::VerbsAddress,
    core::index,
    lane::PeerLane,
    link::VerbsLink,
    link_table::LinkTable,
    multirail::number,
    objects::{WorkOp, WorkRequest},
    outbox::{FlightContent, QpFlight, VerbsOutbox, quiet},
    replay_log::ReplayEntry,
    wire::{HEAD, VerbsControlWord, VerbsLaneReport, WORD_MAX, message_head},
};
use crate::{
    counters::DriverStats,
    driver::{DownCause, WorldRank},
    lanes::LaneSet,
};

/// The links and the requests in flight, which together send.
pub(super) struct SendFlow<'a> {
    pub(super) links: &'a mut LinkTable,
    pub(super) outbox: &'a mut VerbsOutbox,
    pub(super) peers: &'a [VerbsAddress],
    pub(super) counters: &'a DriverStats,
}

impl SendFlow<'_> {
    /// Posts a message. Returns false if there was no room.
    pub(super) fn transmit(&mut self, peer: WorldRank, header: &[u8], body: &[u8]) -> bool {
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

    /// Posts the control words that wait, as far as there is room.
    pub(super) fn speak(&mut self, peer: WorldRank) {
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

    /// Sends the first control word. It takes one of the peer's buffers, which the peer gives back.
    pub(super) fn greet(&mut self, peer: WorldRank) -> io::Result<()> {
        let Self { links, outbox, .. } = self;
        let link = links.get_mut(peer);
        let link = link.ok_or(io::ErrorKind::NotConnected)?;
        let to = PeerLane {
            peer,
            lane: link.home,
        };
        let mut bytes = [0; WORD_MAX];
        let len = VerbsControlWord::Hello.encode(0, &mut bytes);
        link.credits -= 1;
        outbox.post_inline(link, to, &bytes[..len], true)
    }

    /// Asks the peer's device once more whether it is there.
    pub(super) fn greet_again(&mut self, peer: WorldRank) {
        let Self { links, outbox, .. } = self;
        let link = links.get(peer);
        let home = link.and_then(|link| Some((link.home, link.lanes.get(link.home)?)));
        if let Some((nth, lane)) = home
            && lane.has_slots(1)
            && !lane.broken
            && outbox.has_room(nth, 1)
        {
            self.post_empty(PeerLane { peer, lane: nth });
        }
    }

    /// Posts an empty request to the home of a peer. When it completes, so has everything posted before, and a lane that does not
    /// work fails. Does nothing if there is no room.
    pub(super) fn probe_home(&mut self, peer: WorldRank) {
        let Some(link) = self.links.get(peer) else {
            return;
        };
        let lane = link.home;
        if link.has_slots(lane, 1) && self.outbox.has_room(lane, 1) {
            self.post_empty(PeerLane { peer, lane });
        }
    }

    /// Posts a request that does nothing at the peer.
    fn post_empty(&mut self, to: PeerLane) {
        let PeerLane { peer, lane } = to;
        let Self {
            links,
            outbox,
            peers,
            ..
        } = self;
        let Some(link) = links.get_mut(peer) else {
            return;
        };
        let flight = QpFlight::new(to, FlightContent::Message { chunk: None }, None);
        let nothing = WorkOp::Write {
            from: None,
            into: link.table(peers[index(peer)].table, lane),
        };
        let work = WorkRequest {
            id: quiet(peer),
            op: nothing,
            signaled: false,
            solicited: false,
        };
        if let Err(why) = outbox.post(link, flight, &[work]) {
            self.links.note_broken(to, why);
        }
    }

    /// Sends the goodbye by the other lanes. Nothing that it would overtake may be in flight. Returns false if control words wait
    /// that it would overtake.
    pub(super) fn send_lane_goodbye(&mut self, peer: WorldRank, how: DownCause) -> bool {
        let Self { links, outbox, .. } = self;
        let Some(link) = links.get_mut(peer) else {
            return true;
        };
        if !link.control_queue.is_empty() {
            return false;
        }
        let home = LaneSet::EMPTY.with(number(link.home));
        let sent = link.replay_log.sent();
        let mut broken = None;
        for lane in link.lanes_at_work().without(home).iter() {
            let to = PeerLane {
                peer,
                lane: lane as usize,
            };
            if !link.has_slots(to.lane, 1) || !outbox.has_room(to.lane, 1) {
                continue;
            }
            let mut bytes = [0; WORD_MAX];
            let len = VerbsControlWord::LaneGoodbye { how, sent }.encode(0, &mut bytes);
            // This needs no completion: where the home works, the goodbye by the home is enough.
            if let Err(why) = outbox.post_inline(link, to, &bytes[..len], false) {
                broken = Some((to, why));
            }
        }
        if let Some((to, why)) = broken {
            self.links.note_broken(to, why);
        }
        true
    }

    /// Reports the state of the lanes to a peer, by all that work, so that requests to a dead peer fail on all of them at the
    /// same time.
    pub(super) fn say_lanes(&mut self, peer: WorldRank) {
        let link = self.links.get_or_new(peer);
        link.unreported = link.lanes_at_work();
        self.links.mark_dirty(peer);
        self.report_lanes(peer);
    }

    /// Sends the report about the lanes by each lane that has not carried it yet, as far as there is room.
    pub(super) fn report_lanes(&mut self, peer: WorldRank) {
        let Some(link) = self.links.get_mut(peer) else {
            return;
        };
        link.unreported = link.unreported.and(link.lanes_at_work());
        for lane in link.unreported.iter() {
            let Self { links, outbox, .. } = self;
            let to = PeerLane {
                peer,
                lane: lane as usize,
            };
            let Some(link) = links.get_mut(peer) else {
                return;
            };
            if !link.has_slots(to.lane, 1) || !outbox.has_room(to.lane, 1) {
                continue;
            }
            link.unreported = link.unreported.without(LaneSet::EMPTY.with(lane));
            let said = VerbsLaneReport {
                lanes: link.fences.report(),
                arrived: link.replay_log.received,
            };
            let mut bytes = [0; WORD_MAX];
            let len = VerbsControlWord::LaneReport(said).encode(0, &mut bytes);
            let posted = outbox.post_inline(link, to, &bytes[..len], true);
            if let Err(why) = posted {
                self.links.note_broken(to, why);
            }
        }
    }

    /// Releases the first `sent` messages, which have arrived and are not sent again.
    pub(super) fn release_replayed(&mut self, peer: WorldRank, sent: u64) {
        let Self { links, outbox, .. } = self;
        if let Some(link) = links.get_mut(peer) {
            while let Some(chunk) = link.replay_log.pop_done(sent) {
                outbox.free_chunk(chunk);
            }
        }
    }

    /// Releases all messages for a peer without queue pairs, since none is sent again.
    pub(super) fn clear_replay(&mut self, peer: WorldRank) {
        let link = self.links.get_or_new(peer);
        if !link.is_made() && !link.is_stuck() {
            let kept = link.replay_log.clear();
            kept.into_iter()
                .for_each(|chunk| self.outbox.free_chunk(chunk));
        }
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
