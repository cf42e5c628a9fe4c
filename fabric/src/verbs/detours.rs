//! Words about connections by other devices than the first.
//!
//! All datagrams go by the first devices of both ranks. When one of those is out of reach, by a cable that was pulled, say, a
//! connection could neither give way nor be made again, though its other lanes work. So each further device hears words, too: a
//! rank tells where with its ports, so that is known of whom it was connected to. A word goes by all lanes that work when it was
//! not answered in time, when the peer's came so, and where the first lane has failed. Words may come twice.

use super::{
    abi::Completion,
    core::{Core, index},
    datagrams::{Datagrams, Destination},
    way::FIRST,
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
    pub(super) fn speaks_by(&mut self, from: u32, lane: usize, qpn: u32) -> bool {
        let by = match lane {
            FIRST => self.peers.get(index(from)).map(|peer| peer.qpn),
            _ => self.far_words(from, lane),
        };
        by == Some(qpn)
    }

    fn far_words(&mut self, peer: u32, lane: usize) -> Option<u32> {
        let link = self.link(peer)?;
        link.far.get(lane).map(|far| far.words)
    }

    /// Sends a word by other devices, if there is a reason. What finds no room is lost, and said again.
    pub(super) fn send_around(&mut self, peer: u32, bytes: &[u8]) {
        let Some(address) = self.peers.get(index(peer)).copied() else {
            return;
        };
        let Self {
            links,
            detours,
            rails,
            ..
        } = self;
        let Some(link) = links[index(peer)].as_deref() else {
            return;
        };
        let lanes = link.lanes_at_work();
        if lanes.has(0) && !link.goes_around {
            return;
        }
        for ((lane, far), words) in (1_u32..).zip(link.far.iter().skip(1)).zip(detours) {
            if !lanes.has(lane) {
                continue;
            }
            let own = &rails[lane as usize].own;
            let to = Destination {
                peer,
                route: far.route(own.port, own.gid_index, own.ethernet),
                qpn: far.words,
                qkey: address.qkey,
            };
            let _lost = words.send(&own.pd, &to, bytes);
        }
    }

    /// Whether what was sent as datagrams has left.
    pub(super) fn have_words_left(&self) -> bool {
        self.datagrams.have_left() && self.detours.iter().all(Datagrams::have_left)
    }
}
