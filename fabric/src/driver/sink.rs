//! What a driver tells.

use std::io;

use super::{Payload, Peer, Token};

/// Where a driver's arrivals and completions go. The implementation may not call back into the driver.
pub trait Sink {
    /// A message came from `from`. The body is lent: copy what is needed before returning.
    fn message(&mut self, from: Peer, header: &[u8], body: Payload<'_>);

    /// As [`message`](Self::message), and the body is at the start of the memory that was [offered](super::Driver::offer) with
    /// this token, which is the caller's again: who writes there copies what is needed before.
    fn placed(&mut self, _token: Token, from: Peer, header: &[u8], body: Payload<'_>) {
        self.message(from, header, body);
    }

    /// The memory that was [offered](super::Driver::offer) with this token is the caller's again, and no message is in it;
    /// anything else may be.
    fn returned(&mut self, _token: Token) {}

    /// A put or get is done, and its local memory is the caller's again.
    fn complete(&mut self, token: Token);

    /// An atomic is done; the word was `old` before.
    fn fetched(&mut self, token: Token, old: u64);

    /// A one-sided command, or the rest of the lists of a token, will never be done; local memory is the caller's again.
    fn failed(&mut self, token: Token, why: Failure);

    /// A watched counter has come to its threshold.
    fn reached(&mut self, token: Token);

    /// All tasks of a list have begun, and there is room for as many again.
    fn triggered(&mut self, token: Token);

    /// The peer is gone. Nothing comes from it any more, and counters show all that it has counted; said once for each peer.
    fn peer_down(&mut self, peer: Peer, why: Down);
}

/// Why a one-sided command failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The peer is down: nothing of it writes here any more, not even a system call of a thread that is being killed.
    PeerDown,
    /// The range is not inside what the key grants, the lengths differ, the word is not aligned, or the key is not one of
    /// this peer's.
    BadRange,
    /// The peer has given a put of a task a place for something else: their words differ.
    Unmatched,
    /// It was taken back.
    Cancelled,
    /// The fabric refused, with the system's reason.
    Transport(io::Error),
}

/// How a peer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Down {
    /// It closed its driver in good order.
    Finished,
    /// Its process ended, or it gave up, without closing.
    Failed,
}

/// How a driver knows that a peer has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// Its process was seen to end.
    Ended,
    /// The network or the adapter said so, and this is what to look at.
    Reported(String),
    /// It does not answer.
    Unreachable,
}
