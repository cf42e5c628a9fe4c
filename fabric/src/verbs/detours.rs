//! Words about connections by other devices than the first.
//!
//! Datagrams go by the first devices of both ranks. When one of those has failed or is out of reach, by a cable that was pulled,
//! say, a connection could neither be made nor give way, though other lanes work. So each further device hears words, too: a
//! rank tells where with its address, and again with its ports when it connects. A word goes by one of them, too, when it was
//! not answered in time, when the peer's came so, and where the first lane or the own first device has failed: by the one that
//! the peer's last came by, or else by that whose turn it is, as it is said again until it is answered. That there is no
//! connection is said once, and so goes by all that work. Words may come twice.

use super::{
    abi::Completion,
    core::{Core, index},
    datagrams::{Datagrams, Destination},
    rails::number,
    way::{FIRST, Far},
};

impl Core {
    /// The words of a device.
    pub(super) fn words_by(&mut self, lane: usize) -> Option<&mut Datagrams> {
        match lane {
            FIRST => Some(&mut self.datagrams),
            _ => self.detours.get_mut(lane - 1),
        }
    }

    /// The words of a device, if a completion is about them.
    pub(super) fn words_of(&mut self, lane: usize, over: &Completion) -> Option<&mut Datagrams> {
        let words = self.words_by(lane);
        words.filter(|words| words.qp.number() == over.qp_num)
    }

    /// Whether a rank sends its words by this device from this queue pair.
    pub(super) fn speaks_by(&self, from: u32, lane: usize, qpn: u32) -> bool {
        let by = match lane {
            FIRST => self.peers.get(index(from)).map(|peer| peer.qpn),
            _ => self.far(from, lane).map(|far| far.words),
        };
        by == Some(qpn)
    }

    /// A peer's port behind a lane but the first: as it said last, or else with its address.
    fn far(&self, peer: u32, lane: usize) -> Option<Far> {
        let link = self.links.get(index(peer)).and_then(Option::as_deref);
        let said = link.and_then(|link| link.far.get(lane));
        let told = || self.peer_ports.get(index(peer))?.get(lane - 1);
        said.or_else(told).copied()
    }

    /// Whether a word may be sent now. By a first device that has failed it would never leave, and so waits for no room there.
    pub(super) fn has_room_for_words(&self) -> bool {
        self.rails[FIRST].failed.is_some() || self.datagrams.has_room()
    }

    /// Whether a peer's words go by other devices, too. Then none waits for room at the first: a device that hangs never has any.
    pub(super) fn goes_around(&self, peer: u32) -> bool {
        let link = self.links[index(peer)].as_deref();
        let mut others = FIRST + 1..self.rails.len();
        link.is_some_and(|link| link.goes_around)
            && !self.detours.is_empty()
            && others.any(|lane| self.far(peer, lane).is_some())
    }

    /// Sends a word by another device, if there is a reason, or by all others if it is said `once`. What finds no room is lost,
    /// and said again.
    pub(super) fn send_around(&mut self, peer: u32, bytes: &[u8], once: bool) {
        let (Some(address), Some(link)) = (
            self.peers.get(index(peer)).copied(),
            self.links[index(peer)].as_deref(),
        ) else {
            return;
        };
        let lanes = link.lanes_at_work();
        let by_first = lanes.has(0) && self.rails[FIRST].failed.is_none();
        if by_first && !link.goes_around {
            return;
        }
        let (connected, first) = (link.is_connected(), link.detour);
        for lane in in_turn(first, self.rails.len()) {
            let works = !connected || lanes.has(number(lane));
            let Some(far) = self.far(peer, lane).filter(|_| works) else {
                continue;
            };
            let rail = &self.rails[lane];
            if rail.failed.is_some() || far.ethernet != rail.own.ethernet {
                continue;
            }
            let own = &rail.own;
            let to = Destination {
                peer,
                route: far.route(own.port, own.gid_index, own.ethernet),
                qpn: far.words,
                qkey: address.qkey,
            };
            let sent = self.detours[lane - 1].send(&own.pd, &to, bytes);
            if sent.is_ok() && !once {
                self.link_or_new(peer).detour = lane + 1;
                return;
            }
        }
    }

    /// Whether what was sent as datagrams has left. Of a device that has failed nobody knows.
    pub(super) fn have_words_left(&self) -> bool {
        let words = std::iter::once(&self.datagrams).chain(&self.detours);
        let mut all = self.rails.iter().zip(words);
        all.all(|(rail, words)| rail.failed.is_some() || words.have_left())
    }
}

/// All of so many lanes but the first, from this one on.
fn in_turn(from: usize, lanes: usize) -> impl Iterator<Item = usize> {
    let all = FIRST + 1..lanes;
    let from = if all.contains(&from) { from } else { all.start };
    (from..all.end).chain(all.start..from)
}

#[cfg(test)]
mod tests {
    use super::in_turn;

    #[test]
    fn words_go_around_by_each_lane_in_turn_but_never_by_the_first() {
        let of = |from, lanes| -> Vec<usize> { in_turn(from, lanes).collect() };
        assert_eq!(of(1, 4), [1, 2, 3]);
        assert_eq!(of(2, 4), [2, 3, 1]);
        assert_eq!(of(3, 4), [3, 1, 2]);
        assert_eq!(of(4, 4), [1, 2, 3], "after the last");
        assert_eq!(of(3, 2), [1]);
        assert_eq!(of(1, 1), [0; 0]);
    }
}
