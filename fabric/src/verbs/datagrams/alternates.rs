//! Connection messages by other devices than the first.
//!
//! Datagrams go by the first devices of both ranks. If one of these fails or is unreachable, say by a pulled cable, a connection
//! could neither be made nor evicted although other lanes work. So each further device accepts connection messages, too. A rank
//! names their queue pairs in its address, and again when it connects. A message goes by a further device as well if
//!
//! * it was not answered in time,
//! * the peer's last message came by a further device, or
//! * the first lane or this rank's first device has failed.
//!
//! It takes the device by which the peer's last message came, or otherwise the next in turn, because it is repeated until it is
//! answered. A rejection is sent only once, and so goes by all working devices. Messages may arrive twice.

use super::super::{
    core::index,
    lane::{FIRST, RemotePort},
    multirail::number,
};
use super::{DatagramDestination, DatagramExchange};
use crate::driver::WorldRank;

impl DatagramExchange<'_> {
    /// Returns true if rank `from` sends its connection messages by this device from this queue pair.
    pub(super) fn is_connect_source(&self, from: WorldRank, lane: usize, qpn: u32) -> bool {
        let by = match lane {
            FIRST => self.peers.get(index(from)).map(|peer| peer.qpn),
            _ => self
                .remote_port(from, lane)
                .map(|remote| remote.datagram_qpn),
        };
        by == Some(qpn)
    }

    /// Returns a peer's port behind a lane other than the first: the one it named last, or otherwise that of its address.
    fn remote_port(&self, peer: WorldRank, lane: usize) -> Option<RemotePort> {
        let link = self.links.get(peer);
        let said = link.and_then(|link| link.remote_ports.get(lane));
        let told = || self.peer_ports.get(index(peer))?.get(lane - 1);
        said.or_else(told).copied()
    }

    /// Returns true if a connection message may be sent now. If the first device has failed there is no need for room on it.
    pub(super) fn has_connect_room(&self) -> bool {
        self.rails[FIRST].failed.is_some() || self.datagrams.first.has_room()
    }

    /// Returns true if a peer's connection messages also go by other devices. Such messages do not wait for room at the first
    /// device, because a device that hangs never has room.
    pub(super) fn uses_alternates(&self, peer: WorldRank) -> bool {
        let link = self.links.get(peer);
        let mut others = FIRST + 1..self.rails.len();
        link.is_some_and(|link| link.uses_alternates)
            && !self.datagrams.others.is_empty()
            && others.any(|lane| self.remote_port(peer, lane).is_some())
    }

    /// Sends a connection message by another device if there is a reason, or by all others if it is sent only `once`. A message
    /// that finds no room is dropped, and repeated later.
    pub(super) fn send_by_alternates(&mut self, peer: WorldRank, bytes: &[u8], once: bool) {
        let (Some(address), Some(link)) =
            (self.peers.get(index(peer)).copied(), self.links.get(peer))
        else {
            return;
        };
        let lanes = link.lanes_at_work();
        let by_first = lanes.has(0) && self.rails[FIRST].failed.is_none();
        if by_first && !link.uses_alternates {
            return;
        }
        let (connected, first) = (link.is_connected(), link.alternate);
        for lane in in_turn(first, self.rails.len()) {
            let works = !connected || lanes.has(number(lane));
            let Some(remote) = self.remote_port(peer, lane).filter(|_| works) else {
                continue;
            };
            let rail = &self.rails[lane];
            if rail.failed.is_some() || remote.ethernet != rail.device.ethernet {
                continue;
            }
            let own = &rail.device;
            let to = DatagramDestination {
                peer,
                route: remote.route(own.port, own.gid_index, own.ethernet),
                qpn: remote.datagram_qpn,
                qkey: address.qkey,
            };
            let sent = self.datagrams.others[lane - 1].send(&own.pd, &to, bytes);
            if sent.is_ok() && !once {
                self.links.get_or_new(peer).alternate = lane + 1;
                return;
            }
        }
    }
}

/// Returns all of `lanes` lanes except the first, beginning with `from` and wrapping around.
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
