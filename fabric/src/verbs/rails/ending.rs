//! The end, also by lanes that messages do not go by.
//!
//! The last word goes by the home, behind all messages. If just that lane has failed, nobody knows before the device gives it up,
//! and a rank that closes may not be there for that long. So it says the end by the other lanes, too, with how many messages
//! come before it. Who hears that has the home answer: by a lane that works the last word comes, and one that does not is left,
//! with nothing to be said again if all messages were heard.

use super::super::{
    core::{Core, index},
    objects::{What, Work},
    outbox::{Cargo, Flight, quiet},
    way::To,
    wire::{WORD_MAX, Word},
};
use crate::{driver::Down, lanes::LaneSet};

impl Core {
    /// Says the end by the other lanes. Whether it was time: nothing may be under way by the home that it would overtake.
    pub(in super::super) fn say_end(&mut self, peer: u32, how: Down) -> bool {
        if self.touches_memory(peer) {
            return false;
        }
        let Self { links, outbox, .. } = self;
        let Some(link) = links[index(peer)].as_deref_mut() else {
            return true;
        };
        if !link.words.is_empty() {
            return false;
        }
        let home = LaneSet::EMPTY.with(super::number(link.home));
        let sent = link.trail.sent();
        let mut broken = None;
        for lane in link.lanes_at_work().without(home).iter() {
            let to = To {
                peer,
                lane: lane as usize,
            };
            if !link.has_slots(to.lane, 1) || !outbox.has_room(to.lane, 1) {
                continue;
            }
            let mut bytes = [0; WORD_MAX];
            let len = Word::End { how, sent }.encode(0, &mut bytes);
            // Nobody waits for it where the home works.
            if let Err(why) = outbox.post_inline(link, to, &bytes[..len], false) {
                broken = Some((to, why));
            }
        }
        if let Some((to, why)) = broken {
            self.note_broken(to, why);
        }
        true
    }

    /// A peer says by another lane that it ends after so many messages and words.
    pub(in super::super) fn handle_end(&mut self, peer: u32, how: Down, sent: u64) {
        if let Some(link) = self.link(peer).filter(|link| link.is_connected()) {
            link.ends = Some((how, sent));
            self.have_home_answer(peer);
        }
    }

    /// Posts nothing to the home of a peer: when that is over, so is what was posted before; and a lane that does not work fails.
    /// Nothing happens where there is no room.
    pub(in super::super) fn have_home_answer(&mut self, peer: u32) {
        let Some(link) = self.links[index(peer)].as_deref() else {
            return;
        };
        let lane = link.home;
        if link.has_slots(lane, 1) && self.outbox.has_room(lane, 1) {
            self.post_nothing(To { peer, lane });
        }
    }

    /// Posts a request that does nothing at the peer.
    pub(in super::super) fn post_nothing(&mut self, to: To) {
        let To { peer, lane } = to;
        let Self {
            links,
            outbox,
            peers,
            ..
        } = self;
        let Some(link) = links[index(peer)].as_deref_mut() else {
            return;
        };
        let flight = Flight::new(to, Cargo::Message { chunk: None }, None);
        let nothing = What::Write {
            from: None,
            into: link.table(peers[index(peer)].table, lane),
        };
        let work = Work {
            id: quiet(peer),
            what: nothing,
            signaled: false,
            solicited: false,
        };
        if let Err(why) = outbox.post(link, flight, &[work]) {
            self.note_broken(to, why);
        }
    }
}
