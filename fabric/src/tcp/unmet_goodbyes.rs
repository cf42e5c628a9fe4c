//! Goodbyes to peers to which a rank that ends is not connected. A peer that hears none takes a rank that it cannot reach for
//! failed.
//!
//! A goodbye is all that crosses its connection. The peer's kernel takes it, so the rank waits for no turn of the peer. A peer
//! that reads how ranks ended from a record needs no goodbye.

use std::os::fd::OwnedFd;

use super::{
    core::TcpCore,
    handshake::{TcpIdentity, goodbye},
    reach::send_all,
    socket_calls::connect,
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
    bytes: Vec<u8>,
}

impl TcpCore {
    /// Begins to connect to the peers that have no other way to learn how this rank ends, at all their endpoints.
    pub(super) fn begin_unmet_goodbyes(&mut self, how: DownCause) {
        self.goodbyes.until = self.timer.now().saturating_add(PATIENCE);
        // If there are too many, those with the next numbers are told, because neighbors are more likely to wait for this rank.
        let all = (self.me + 1..)
            .take(self.peers.len() - self.me as usize - 1)
            .chain(0..self.me);
        let unmet: Vec<_> = all.filter(|rank| self.needs_goodbye(*rank)).collect();
        for rank in unmet.into_iter().take(GOODBYES_MAX) {
            let peer = &self.peers[rank as usize];
            let to = TcpIdentity {
                rank,
                incarnation: peer.address.incarnation,
            };
            let bytes = goodbye(self.own, to, &peer.address.token, how);
            for endpoint in &peer.address.endpoints {
                // An endpoint that cannot be reached, like a host without descriptors, leaves the peer to its own guess.
                if let Ok(socket) = connect(endpoint.socket(), |_| {}) {
                    let bytes = bytes.to_vec();
                    self.goodbyes.calls.push(GoodbyeCall {
                        rank,
                        socket,
                        bytes,
                    });
                }
            }
        }
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
                told.push(call.rank);
                false
            }
            Err(why) => why.kind() == std::io::ErrorKind::WouldBlock,
        });
        calls.retain(|call| !told.contains(&call.rank));
        !calls.is_empty()
    }

    /// Handles a goodbye that has come without a connection. Whatever else may come of that peer would come over one.
    pub(super) fn hear_goodbye(&mut self, from: TcpIdentity, how: DownCause) {
        let peer = self.peers.get(from.rank as usize);
        let is_meant = peer.is_some_and(|peer| {
            peer.address.incarnation == from.incarnation && peer.connection.is_none()
        });
        if is_meant {
            let text = format!("rank {} said goodbye", from.rank);
            self.lose(from.rank, how, text);
        }
    }
}

/// Peers that are told. Each needs a connection, and a job with more ranks would notice these when all ranks end at once.
const GOODBYES_MAX: usize = 256;

/// Time for connections to peers, in picoseconds. A host that answers nothing delays the end of the rank so much.
const PATIENCE: u64 = 1_000_000_000_000;
