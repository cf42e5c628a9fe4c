//! The goodbye, also by lanes that messages do not go by.
//!
//! The goodbye goes by the home, behind all messages. If that lane has failed, the rank does not know before the device gives it
//! up, and a rank that closes may not exist for that long. So it also says goodbye by the other lanes, with the number of
//! messages that come before. A peer that receives this makes the home answer. If the home works, the goodbye comes by it, too.
//! If it does not, it is left, and nothing has to be sent again if all messages had arrived.

use super::super::{
    core::{VerbsCore, index},
    lane::PeerLane,
    objects::{WorkOp, WorkRequest},
    outbox::{FlightContent, QpFlight, quiet},
    wire::{VerbsControlWord, WORD_MAX},
};
use crate::{driver::DownCause, driver::WorldRank, lanes::LaneSet};

impl VerbsCore {
    /// Sends the goodbye by the other lanes. Returns false if it is too early, because something is in flight that it would
    /// overtake.
    pub(in super::super) fn send_lane_goodbye(&mut self, peer: WorldRank, how: DownCause) -> bool {
        if self.commands.touches_memory(peer) {
            return false;
        }
        let Self { links, outbox, .. } = self;
        let Some(link) = links.get_mut(peer) else {
            return true;
        };
        if !link.control_queue.is_empty() {
            return false;
        }
        let home = LaneSet::EMPTY.with(super::number(link.home));
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

    /// Handles a peer's goodbye by another lane, which comes after `sent` messages and control words.
    pub(in super::super) fn handle_end(&mut self, peer: WorldRank, how: DownCause, sent: u64) {
        if let Some(link) = self.links.get_mut(peer).filter(|link| link.is_connected()) {
            link.lane_goodbye = Some((how, sent));
            self.probe_home(peer);
        }
    }

    /// Posts an empty request to the home of a peer. When it completes, so has everything posted before, and a lane that does not
    /// work fails. Does nothing if there is no room.
    pub(in super::super) fn probe_home(&mut self, peer: WorldRank) {
        let Some(link) = self.links.get(peer) else {
            return;
        };
        let lane = link.home;
        if link.has_slots(lane, 1) && self.outbox.has_room(lane, 1) {
            self.post_empty(PeerLane { peer, lane });
        }
    }

    /// Posts a request that does nothing at the peer.
    pub(in super::super) fn post_empty(&mut self, to: PeerLane) {
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
}
