//! Commands that a caller gives a driver.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{CommandToken, LocalRange, WorldRank};
use crate::{
    memory::RemoteRegion,
    offload::{LocalCounter, RemoteCounter},
    tags::MatchTag,
};

/// A command for a driver.
#[derive(Debug)]
#[non_exhaustive]
pub enum DriverCommand<'a> {
    /// Send an active message. It arrives at the peer's [`Sink::message`](super::Sink::message), once and in order if
    /// [`Caps`](super::Caps) says so.
    Message {
        /// The receiver, which may be this rank itself.
        to: WorldRank,
        /// Header, at most [`Caps::header_max`](super::Caps::header_max) bytes.
        header: &'a [u8],
        /// Body, at most [`Caps::body_max`](super::Caps::body_max) bytes.
        body: &'a [u8],
    },
    /// Write `from` into the peer's memory. Completes when the bytes are visible at the peer.
    Put {
        /// Owner of the target memory.
        to: WorldRank,
        /// Bytes to write, of the same length as `into`.
        from: LocalRange,
        /// Memory to write to.
        into: RemoteRegion,
        /// Counter of the same peer to which 1 is added after the bytes are there, so a reader that sees the count also sees the
        /// bytes.
        count: Option<RemoteCounter>,
        /// Handed back in [`Sink::complete`](super::Sink::complete) or [`Sink::failed`](super::Sink::failed).
        token: CommandToken,
    },
    /// Read the peer's memory into `into`.
    Get {
        /// Owner of the source memory.
        to: WorldRank,
        /// Memory to read.
        from: RemoteRegion,
        /// Memory to write to, of the same length as `from`.
        into: LocalRange,
        /// Handed back in [`Sink::complete`](super::Sink::complete) or [`Sink::failed`](super::Sink::failed).
        token: CommandToken,
    },
    /// Perform a 64-bit atomic operation on the peer's memory. The old value arrives in [`Sink::fetched`](super::Sink::fetched).
    Atomic {
        /// Owner of the word.
        to: WorldRank,
        /// The word: eight bytes, aligned to eight.
        at: RemoteRegion,
        /// Operation to perform on the word.
        op: AtomicOp,
        /// Handed back in [`Sink::fetched`](super::Sink::fetched) or [`Sink::failed`](super::Sink::failed).
        token: CommandToken,
    },
    /// Add to a counter of the peer, and wake the peer if the counter reaches a threshold that it watches for.
    ///
    /// Not ordered with other commands, not even with other counts. There is no completion and no failure: if the peer is down or
    /// the counter freed, no rank waits for the count.
    Count {
        /// Owner of the counter, which may be this rank itself.
        to: WorldRank,
        /// Counter to add to.
        counter: RemoteCounter,
        /// Amount to add.
        by: u64,
    },
    /// Report once in [`Sink::reached`](super::Sink::reached) that a counter of this rank has reached `threshold`.
    ///
    /// If it has already, the next [`progress`](super::Driver::progress) reports it.
    Watch {
        /// Counter of this rank.
        counter: &'a LocalCounter,
        /// Least value to report. No counter ever reaches `u64::MAX`.
        threshold: u64,
        /// Handed back in [`Sink::reached`](super::Sink::reached).
        token: CommandToken,
    },
    /// Revoke a key from [`Driver::expose`](super::Driver::expose). Other keys to the same memory stay valid.
    Withdraw {
        /// Key to plain memory of this rank. A key to a region is revoked when the region is released.
        key: RemoteRegion,
    },
    /// Take back a watch. A threshold that was reached earlier may still be reported.
    Unwatch {
        /// Token of the watch.
        token: CommandToken,
    },
}

/// Memory lent to one message by [`TagMatching::offer`](super::TagMatching::offer).
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by the lender")]
pub struct TagBuffer {
    /// Tag of the message.
    pub tag: MatchTag,
    /// Length of the message's header in bytes. The header is not written to `into`.
    pub header_len: usize,
    /// Memory for the message's body.
    pub into: LocalRange,
    /// Handed back in [`Sink::placed`](super::Sink::placed) or [`Sink::returned`](super::Sink::returned).
    pub token: CommandToken,
}

/// Memory lent to the body of one message by [`Sink::place`](super::Sink::place).
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by the lender")]
pub struct MessagePlace {
    /// Memory of the length of the body.
    pub into: LocalRange,
    /// Handed back in [`Sink::placed`](super::Sink::placed) or [`Sink::returned`](super::Sink::returned).
    pub token: CommandToken,
}

/// Operations of [`DriverCommand::Atomic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtomicOp {
    /// Add, wrapping around at 2⁶⁴.
    Add(u64),
    /// Bitwise and.
    And(u64),
    /// Bitwise or.
    Or(u64),
    /// Bitwise exclusive or.
    Xor(u64),
    /// Maximum, unsigned.
    Max(u64),
    /// Minimum, unsigned.
    Min(u64),
    /// Replace the word and return the old value.
    Swap(u64),
    /// Replace the word by `new` if it equals `expected`.
    CompareSwap {
        /// Value that the word must have.
        expected: u64,
        /// Value that the word then gets.
        new: u64,
    },
    /// Read the word only.
    Fetch,
}

impl AtomicOp {
    /// Performs the operation, and returns the previous value of the word.
    pub(crate) fn apply(self, word: &AtomicU64) -> u64 {
        match self {
            Self::Add(n) => word.fetch_add(n, Ordering::SeqCst),
            Self::And(n) => word.fetch_and(n, Ordering::SeqCst),
            Self::Or(n) => word.fetch_or(n, Ordering::SeqCst),
            Self::Xor(n) => word.fetch_xor(n, Ordering::SeqCst),
            Self::Max(n) => word.fetch_max(n, Ordering::SeqCst),
            Self::Min(n) => word.fetch_min(n, Ordering::SeqCst),
            Self::Swap(n) => word.swap(n, Ordering::SeqCst),
            Self::CompareSwap { expected, new } => word
                .compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|old| old),
            Self::Fetch => word.load(Ordering::SeqCst),
        }
    }
}

/// Answer to [`Driver::post`](super::Driver::post).
#[derive(Debug)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "a third answer would change every caller"
)]
pub enum PostResult<'a> {
    /// The driver has taken the command.
    Posted,
    /// There is no room. The command is returned.
    Full(DriverCommand<'a>),
}
