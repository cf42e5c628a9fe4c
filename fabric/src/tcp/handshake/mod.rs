//! How two ranks prove to each other that they belong together, before anything else crosses a connection.
//!
//! The connecting side sends a hello, the listening side answers with its own, and the connecting side confirms. Each step
//! carries a proof that its sender knows the token of the listening rank. The token travels only with the rank's address, over
//! the exchange that starts the job. Each side adds a random nonce, so nothing that was recorded earlier is a proof.
//!
//! [`DialHandshake`] and [`AcceptHandshake`] are the two sides. They know neither sockets nor clocks, need a fixed amount of
//! memory, and take bytes in pieces of any length. [`PairStage`] decides which of two connections that cross is kept.
//!
//! A connection counts as made when its answer has been seen on the connecting side, and when the confirmation has been seen
//! on the listening side. Frames may follow the confirmation at once. The listening side must therefore keep each connection
//! that it has answered with consent, until that connection ends by itself: the other side may count on it already. If it ends
//! itself before, its goodbye follows the answer.
//!
//! A rank that leaves the job says goodbye to a peer to which it is not connected in place of a hello, and so does a rank that
//! gives a peer up. There is no answer.

mod accept;
mod crossing;
mod dial;
mod hello;
#[cfg(test)]
mod model;
mod partial_input;
mod refusal;
#[cfg(test)]
mod tests;

use std::fmt;

pub(super) use self::{
    accept::{AcceptHandshake, HelloVerdict},
    crossing::{CrossingVerdict, PairStage},
    dial::{DialHandshake, goodbye},
    hello::TcpIdentity,
    refusal::HandshakeRefusal,
};

/// What the received bytes lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct HandshakeStep {
    /// How many of the bytes belong to the handshake. The bytes after them are the caller's.
    pub(super) consumed: usize,
    /// Bytes to send, before the connection is used or closed. There are at most 64.
    pub(super) send: Vec<u8>,
    /// Where the handshake stands.
    pub(super) outcome: HandshakeOutcome,
}

/// What a rank says in place of a hello, if it wants no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankGoodbye {
    /// It leaves the job because it has finished.
    Finished,
    /// It leaves the job because it has failed.
    Failed,
    /// It considers the peer failed.
    GaveUp(GiveUpReason),
}

/// Why a rank has given up a peer that may be alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveUpReason {
    /// Long packets to the peer's host are lost, and short ones arrive.
    LongPackets,
    /// The network has changed what the peer has sent.
    Damaged,
    /// The peer has sent what no rank sends.
    Nonsense,
}

/// Where a handshake stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeOutcome {
    /// More bytes are needed.
    Pending,
    /// The other side is this rank, and frames may be sent to it.
    Ready(TcpIdentity),
    /// There will be no connection. It is to be closed once the bytes are sent.
    Refused(HandshakeRefusal),
}

/// The listening side's hello, or the connecting side's, with its proof.
pub(super) const SIGNED_LEN: usize = hello::HELLO_LEN + hello::PROOF_LEN;

/// The token of the listening rank. Logs do not tell it.
#[derive(Clone)]
struct HandshakeSecret([u8; 16]);

impl fmt::Debug for HandshakeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakeSecret").finish_non_exhaustive()
    }
}
