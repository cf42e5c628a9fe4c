//! What a rank knows of one peer.

use std::collections::VecDeque;

use super::{
    address::{ENDPOINTS_MAX, TcpAddress},
    connection::TcpConnection,
    handshake::PairStage,
    reach::TcpReach,
    send_queue::TcpSendQueue,
    sockets::SocketName,
};
use crate::driver::{CommandToken, DownCause, LocalRange};

/// A peer: how to reach it, its connection, and what is in flight to it.
#[derive(Debug)]
pub(super) struct TcpPeer {
    pub(super) address: TcpAddress,
    /// The connection, once it is ready for frames.
    pub(super) connection: Option<Box<TcpConnection>>,
    /// How far this rank has come with connecting.
    pub(super) reach: Option<Box<TcpReach>>,
    /// Connections of the peer to which this rank has agreed, and which the peer has not confirmed yet.
    pub(super) agreed: AgreedArrivals,
    /// What waits for the connection, or for room in its socket.
    pub(super) queue: TcpSendQueue,
    /// The turn after which something was sent last without waiting for more.
    pub(super) sent_in: Option<u32>,
    /// True while the queue is in [`TcpCore::staged`](super::core::TcpCore::staged).
    pub(super) staged: bool,
    /// One-sided commands in the order in which the peer will answer them.
    pub(super) pending: VecDeque<PendingCommand>,
    /// Number of puts so far.
    pub(super) puts: u64,
    /// How the peer ended, once that is known.
    pub(super) ended: Option<DownCause>,
    /// What this rank saw of the end.
    pub(super) evidence: Option<String>,
}

/// A one-sided command in flight.
#[derive(Debug)]
pub(super) struct PendingCommand {
    pub(super) token: CommandToken,
    pub(super) kind: PendingKind,
}

#[derive(Debug)]
pub(super) enum PendingKind {
    /// The put with this serial number.
    Put(u64),
    /// A get into this memory, of which the first bytes have come.
    Get {
        into: LocalRange,
        filled: usize,
    },
    Atomic,
}

impl TcpPeer {
    pub(super) fn new(address: TcpAddress) -> Self {
        Self {
            address,
            connection: None,
            reach: None,
            agreed: AgreedArrivals::default(),
            queue: TcpSendQueue::default(),
            sent_in: None,
            staged: false,
            pending: VecDeque::new(),
            puts: 0,
            ended: None,
            evidence: None,
        }
    }

    /// Returns how far the two ranks have come with connecting.
    pub(super) fn stage(&self) -> PairStage {
        match &self.reach {
            _ if self.connection.is_some() => PairStage::Connected,
            Some(reach) if reach.has_asked() => PairStage::Asked,
            Some(_) => PairStage::Connecting,
            None if !self.agreed.names.is_empty() && !self.agreed.overdue => PairStage::Answered,
            None => PairStage::Unconnected,
        }
    }
}

/// Connections of a peer to which this rank has agreed. Their hellos can have been replayed, so they promise little.
#[derive(Debug, Default)]
pub(super) struct AgreedArrivals {
    /// The connections, the oldest first.
    pub(super) names: Vec<SocketName>,
    /// When this rank no longer waits for a confirmation.
    pub(super) dial_at: Option<u64>,
    /// True if no confirmation has come in time, so this rank may connect itself.
    pub(super) overdue: bool,
    /// Nonces of the hellos that were judged last.
    nonces: VecDeque<[u8; 16]>,
}

impl AgreedArrivals {
    /// Notes the nonce of a hello. Returns false if the hello is a repetition of an earlier one.
    pub(super) fn is_new(&mut self, nonce: [u8; 16]) -> bool {
        let new = !self.nonces.contains(&nonce);
        if new {
            self.nonces.push_back(nonce);
            if self.nonces.len() > NONCES_MAX {
                self.nonces.pop_front();
            }
        }
        new
    }

    /// Adds a connection. Returns the oldest if there are too many.
    pub(super) fn add(&mut self, name: SocketName, dial_at: u64) -> Option<SocketName> {
        self.names.push(name);
        self.dial_at.get_or_insert(dial_at);
        (self.names.len() > AGREED_MAX).then(|| self.names.remove(0))
    }

    /// Forgets a connection that was confirmed, or has ended.
    pub(super) fn remove(&mut self, name: SocketName) {
        self.names.retain(|other| *other != name);
        if self.names.is_empty() {
            (self.dial_at, self.overdue) = (None, false);
        }
    }
}

/// Connections of a peer that wait for its confirmation. A peer has one at each of this rank's endpoints, and those of an
/// earlier round may not have ended yet.
pub(super) const AGREED_MAX: usize = 4 * ENDPOINTS_MAX;

/// Nonces that are remembered. Only the peer can make new hellos.
const NONCES_MAX: usize = 64;
