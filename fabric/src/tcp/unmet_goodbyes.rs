//! Goodbyes to peers to which a rank that ends is not connected. A peer that hears none takes a rank that it cannot reach for
//! failed.
//!
//! A goodbye is all that crosses its connection. The peer's kernel takes it, so the rank waits for no turn of the peer. A peer
//! that reads how ranks ended from a record needs no goodbye.

use std::os::fd::OwnedFd;

use super::{
    address::ENDPOINTS_MAX,
    core::TcpCore,
    handshake::{RankGoodbye, SIGNED_LEN, TcpIdentity, goodbye},
    reach::send_all,
    socket_calls::{connect, leads_here},
};
use crate::driver::{DownCause, WorldRank};

/// The goodbyes that have not left yet.
#[derive(Debug, Default)]
pub(super) struct UnmetGoodbyes {
    calls: Vec<GoodbyeCall>,
    /// When the rank waits for them no longer.
    until: u64,
}

/// A connection for a goodbye to one endpoint of a peer.
#[derive(Debug)]
struct GoodbyeCall {
    rank: u32,
    socket: OwnedFd,
    bytes: [u8; SIGNED_LEN],
}

impl TcpCore {
    /// Begins to connect to the peers that have no other way to learn how this rank ends, at all their endpoints if
    /// these are not too many: the best endpoint of every peer is first.
    pub(super) fn begin_unmet_goodbyes(&mut self, how: DownCause) {
        self.goodbyes.until = self.timer.now().saturating_add(PATIENCE);
        // If there are too many, those with the next numbers are told, because neighbors are more likely to wait for this rank.
        let all = (self.me + 1..)
            .take(self.peers.len() - self.me as usize - 1)
            .chain(0..self.me);
        let unmet: Vec<_> = all.filter(|rank| self.needs_goodbye(*rank)).collect();
        for place in 0..ENDPOINTS_MAX {
            for rank in &unmet {
                if self.goodbyes.calls.len() >= GOODBYES_MAX {
                    return;
                }
                self.begin_goodbye(*rank, place, how);
            }
        }
    }

    /// Begins to connect to an endpoint of a peer, if it has so many. An endpoint that cannot be reached, like a host without
    /// descriptors, leaves the peer to its own guess.
    fn begin_goodbye(&mut self, rank: u32, place: usize, how: DownCause) {
        let address = &self.peers[rank as usize].address;
        let endpoint = address.endpoints.get(place);
        let Some(Ok(socket)) = endpoint.map(|one| connect(one.socket(), |_| {})) else {
            return;
        };
        let to = TcpIdentity {
            rank,
            incarnation: address.incarnation,
        };
        let said = match how {
            DownCause::Finished => RankGoodbye::Finished,
            DownCause::Failed => RankGoodbye::Failed,
        };
        let bytes = goodbye(self.own, to, &address.token, said);
        self.goodbyes.calls.push(GoodbyeCall {
            rank,
            socket,
            bytes,
        });
    }

    /// Returns true if only a goodbye without a connection tells the peer how this rank ends.
    pub(super) fn needs_goodbye(&self, rank: u32) -> bool {
        let peer = &self.peers[rank as usize];
        let recorded = self.ends.as_ref();
        peer.connection.is_none()
            && peer.queue.is_empty()
            && peer.ended.is_none()
            && !recorded.is_some_and(|ends| ends.covers(WorldRank(rank)))
    }

    /// Sends the goodbyes whose connections are there by now. Returns true while others are awaited.
    pub(super) fn say_unmet_goodbyes(&mut self) -> bool {
        let calls = &mut self.goodbyes.calls;
        if calls.is_empty() {
            return false;
        }
        if self.timer.now() >= self.goodbyes.until {
            calls.clear();
            return false;
        }
        let mut told = Vec::new();
        calls.retain(|call| match send_all(&call.socket, &call.bytes) {
            Ok(()) => {
                // An address that this host has too may lead to another rank, so the other endpoints are tried as well.
                if matches!(leads_here(&call.socket), Ok(false)) {
                    told.push(call.rank);
                }
                false
            }
            Err(why) => why.kind() == std::io::ErrorKind::WouldBlock,
        });
        calls.retain(|call| !told.contains(&call.rank));
        !calls.is_empty()
    }

    /// Handles what a rank has said in place of a hello. A goodbye counts only if there is no connection to that rank, over which
    /// more of it could still come.
    pub(super) fn hear_goodbye(&mut self, from: TcpIdentity, said: RankGoodbye) {
        let how = match said {
            RankGoodbye::Finished => DownCause::Finished,
            RankGoodbye::Failed => DownCause::Failed,
            RankGoodbye::GaveUp(why) => return self.hear_give_up(from, why),
        };
        let peer = self.peers.get(from.rank as usize);
        let is_meant = peer.is_some_and(|peer| {
            peer.address.incarnation == from.incarnation && peer.connection.is_none()
        });
        if is_meant {
            let text = self.peers[from.rank as usize].said_goodbye(from.rank, how);
            self.lose(from.rank, how, text);
        }
    }
}

/// Most connections at a time for goodbyes, and as many for notices to peers that are given up. A job with many ranks would
/// notice more of them when all ranks end at once.
pub(super) const GOODBYES_MAX: usize = 256;

/// Time for such a connection, in picoseconds: the kernel asks once more after a second. A host that answers nothing delays the
/// end of the rank so much.
pub(super) const PATIENCE: u64 = 1_500_000_000_000;

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use super::{ENDPOINTS_MAX, GOODBYES_MAX};
    use crate::{
        driver::{DownCause, PreparedEndpoint},
        tcp::{Tcp, TcpConfig},
    };

    #[test]
    fn the_best_endpoint_of_every_peer_is_called_first_up_to_a_limit() {
        let peers = u32::try_from(GOODBYES_MAX / ENDPOINTS_MAX).unwrap() + 1;
        let mut all: Vec<_> = (0..=peers)
            .map(|rank| {
                let config = TcpConfig {
                    linger: Duration::from_millis(1),
                    ..TcpConfig::new(rank, Ipv4Addr::LOCALHOST.into())
                };
                Tcp::prepare(config).unwrap()
            })
            .collect();
        let addresses: Vec<_> = all.iter().map(PreparedEndpoint::address).collect();
        let mut own = all.remove(0).connect(&addresses).unwrap();
        let core = own.core();
        for peer in &mut core.peers {
            let first = peer.address.endpoints[0];
            peer.address.endpoints = vec![first; ENDPOINTS_MAX];
        }
        core.begin_unmet_goodbyes(DownCause::Finished);
        let called: Vec<_> = core.goodbyes.calls.iter().map(|call| call.rank).collect();
        let expected: Vec<_> = (1..=peers).cycle().take(GOODBYES_MAX).collect();
        assert_eq!(called, expected);
    }
}
