//! What a driver reports: arrivals, completions and failures.

use std::io;

use super::{CommandToken, MessagePlace, PayloadRun, PayloadView, WorldRank};

/// Receives a driver's arrivals and completions. An implementation must not call back into the driver.
pub trait Sink {
    /// Reports a message from `from`. The body is only lent: copy what you need before returning.
    fn message(&mut self, from: WorldRank, header: &[u8], body: PayloadView<'_>);

    /// Reports messages from `from` that follow each other and have the same header. Each is a message like any other.
    fn messages(&mut self, from: WorldRank, header: &[u8], bodies: PayloadRun<'_>) {
        for body in bodies {
            self.message(from, header, body);
        }
    }

    /// Asks, once for a long message, where its body of `len` bytes belongs. The head of the message has arrived, and all earlier
    /// messages of its sender have been reported.
    ///
    /// The driver writes the body to the memory that is returned, which is `len` bytes long. It returns the memory by
    /// [`placed`](Self::placed) with the same header, or by [`returned`](Self::returned) if the rest of the body never arrives.
    /// Until then it may write there at any moment. Without a place, the whole message is reported by
    /// [`message`](Self::message). Drivers need not ask.
    fn place(&mut self, _from: WorldRank, _header: &[u8], _len: usize) -> Option<MessagePlace> {
        None
    }

    /// Reports a message whose body was written to the start of the memory [offered](super::TagMatching::offer), or returned
    /// by [`place`](Self::place), with this token.
    ///
    /// Otherwise like [`message`](Self::message). The memory belongs to the caller again, so copy the body before writing to it.
    fn placed(
        &mut self,
        _token: CommandToken,
        from: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        self.message(from, header, body);
    }

    /// Reports that memory [offered](super::TagMatching::offer), or returned by [`place`](Self::place), with this token
    /// belongs to the caller again. It holds no message, but its contents may have changed.
    fn returned(&mut self, _token: CommandToken) {}

    /// Reports that a put or get is complete. Its local memory belongs to the caller again.
    fn complete(&mut self, token: CommandToken);

    /// Reports that an atomic is complete. `old` is the previous value of the word.
    fn fetched(&mut self, token: CommandToken, old: u64);

    /// Reports that a one-sided command, or the rest of a token's lists, will never complete. Their local memory belongs to the
    /// caller again.
    fn failed(&mut self, token: CommandToken, why: CommandFailure);

    /// Reports that a watched counter has reached its threshold.
    fn reached(&mut self, token: CommandToken);

    /// Reports that all tasks of a list have begun, so there is room for the same number of tasks again.
    fn triggered(&mut self, token: CommandToken);

    /// Reports that a peer is down, once per peer. Nothing arrives from it any more, and counters show everything that it has
    /// counted.
    fn peer_down(&mut self, peer: WorldRank, why: DownCause);
}

/// Reason why a one-sided command failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CommandFailure {
    /// The peer is down. Nothing of it writes to this rank's memory any more, not even a system call of a thread that is being
    /// killed.
    PeerDown,
    /// The key is not valid for this access.
    ///
    /// Either the range is outside of what the key grants, the lengths differ, the word is not aligned, or the key does not
    /// belong to this peer.
    BadRange,
    /// A task's put found a landing that the peer had written for another put, because their words differ.
    Unmatched,
    /// The caller canceled it.
    Cancelled,
    /// The fabric refused the command, for this reason of the system.
    Transport(io::Error),
}

/// End of a peer: it has finished, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownCause {
    /// The peer closed its driver properly.
    Finished,
    /// The peer's process ended without closing its driver, or it closed its driver in a panic.
    Failed,
}

/// Evidence that a peer has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DownEvidence {
    /// The process of the peer was seen to end.
    Ended,
    /// The network or the adapter reported it. The text says what to check.
    Reported(String),
    /// The peer does not answer.
    Unreachable,
}
