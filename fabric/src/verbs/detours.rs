//! Words about connections by other devices than the first.
//!
//! Datagrams go by the first devices of both ranks. When one of those has failed or is out of reach, by a cable that was pulled,
//! say, a connection could neither be made nor give way, though other lanes work. So each further device hears words, too: a
//! rank tells where with its address, and again with its ports when it connects. A word goes by all lanes that work when it was
//! not answered in time, when the peer's came so, and where the first lane or the own first device has failed. Words may come
//! twice.

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

    /// Sends a word by other devices, if there is a reason. What finds no room is lost, and said again.
    pub(super) fn send_around(&mut self, peer: u32, bytes: &[u8]) {
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
        let connected = link.is_connected();
        for lane in 1..self.rails.len() {
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
            let _lost = self.detours[lane - 1].send(&own.pd, &to, bytes);
        }
    }

    /// Whether what was sent as datagrams has left. Of a device that has failed nobody knows.
    pub(super) fn have_words_left(&self) -> bool {
        let words = std::iter::once(&self.datagrams).chain(&self.detours);
        let mut all = self.rails.iter().zip(words);
        all.all(|(rail, words)| rail.failed.is_some() || words.have_left())
    }
}
