//! What a driver is asked for.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{LocalRange, Peer, Token};
use crate::{
    memory::{Region, RemoteRegion},
    offload::{Counter, RemoteCounter, Task},
    tags::Tag,
};

/// Something for a driver to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Command<'a> {
    /// An active message: it arrives at the peer's [`Sink::message`](super::Sink::message), once and in order if
    /// [`Caps`](super::Caps) says so.
    Message {
        /// Who gets it; the own rank is allowed.
        to: Peer,
        /// At most [`Caps::header_max`](super::Caps::header_max) bytes.
        header: &'a [u8],
        /// At most [`Caps::body_max`](super::Caps::body_max) bytes.
        body: &'a [u8],
    },
    /// Write `from` into the peer's memory. Completes when the bytes are visible there.
    Put {
        /// Who owns the target.
        to: Peer,
        /// What to write; of the same length as `into`.
        from: LocalRange,
        /// Where.
        into: RemoteRegion,
        /// A counter of the same peer to which 1 is added when the bytes are there, so that whoever sees the count sees them.
        count: Option<RemoteCounter>,
        /// Comes back in [`Sink::complete`](super::Sink::complete) or [`Sink::failed`](super::Sink::failed).
        token: Token,
    },
    /// Read the peer's memory into `into`.
    Get {
        /// Who owns the source.
        to: Peer,
        /// What to read.
        from: RemoteRegion,
        /// Where to; of the same length as `from`.
        into: LocalRange,
        /// Comes back in [`Sink::complete`](super::Sink::complete) or [`Sink::failed`](super::Sink::failed).
        token: Token,
    },
    /// A 64-bit atomic on the peer's memory. The old value comes back in [`Sink::fetched`](super::Sink::fetched).
    Atomic {
        /// Who owns the word.
        to: Peer,
        /// Eight bytes, aligned to eight.
        at: RemoteRegion,
        /// What to do with them.
        op: AtomicOp,
        /// Comes back in [`Sink::fetched`](super::Sink::fetched) or [`Sink::failed`](super::Sink::failed).
        token: Token,
    },
    /// Add to a counter of the peer, which is woken if that reaches what it watches for. Nothing comes back: a peer that is down
    /// and a counter that is gone have nobody who waits for it. In no order with other commands.
    Count {
        /// Who owns the counter; the own rank is allowed.
        to: Peer,
        /// Which one.
        counter: RemoteCounter,
        /// How much.
        by: u64,
    },
    /// Tell of it in [`Sink::reached`](super::Sink::reached), once, when a counter of this rank has come to `threshold`, or by
    /// the next [`progress`](super::Driver::progress) when it has already.
    Watch {
        /// Of this rank.
        counter: &'a Counter,
        /// The least that it is to be. No counter ever comes to `u64::MAX`.
        threshold: u64,
        /// Comes back in [`Sink::reached`](super::Sink::reached).
        token: Token,
    },
    /// Keep tasks, and begin each when its counters have come far enough, those that begin at the same time in this order.
    /// Posted whole or not at all, `Full` when more than [`Caps::triggered_max`](super::Caps::triggered_max) would wait; a
    /// longer list is a mistake of the caller's. Tasks whose counters have come far enough already do not wait.
    ///
    /// What the tasks touch is the caller's to keep alive until it knows by counters that they are done, or until
    /// [`Sink::failed`](super::Sink::failed).
    List {
        /// At least one.
        tasks: &'a [Task],
        /// Comes back in [`Sink::triggered`](super::Sink::triggered) when all tasks of this list have begun, and in
        /// [`Sink::failed`](super::Sink::failed). Lists of one token belong together: the first failure of a task takes all of
        /// them back, and nothing of the token begins from there on until it is cancelled. The task may have counted
        /// nevertheless; no watch is told of that before the failure is.
        token: Token,
    },
    /// Take the lists of a token back. Comes back as [`Failure::Cancelled`](super::Failure::Cancelled) when nothing of them is
    /// under way any more, also when there are none.
    Cancel {
        /// That of the lists.
        token: Token,
    },
    /// Give a region of this rank a name, so that peers can make keys to it by themselves: those of [`RemoteRegion::named`].
    /// Commands that came earlier have waited for it. Only where [`Caps::names`](super::Caps::names) says so.
    Name {
        /// The name, which no other region of this rank has.
        name: u64,
        /// Kept mapped until the name is taken back.
        region: &'a Region,
    },
    /// Take a name back.
    Unname {
        /// The name.
        name: u64,
    },
    /// Forget lists of which everything has begun and everything offered has come: they are not taken back any more.
    Forget {
        /// That of the lists.
        token: Token,
    },
    /// Have a key from [`Driver::expose`](super::Driver::expose) open nothing from now on. Other keys to the same memory are
    /// not touched.
    Withdraw {
        /// A key to plain memory of this rank; one to a region goes with the region.
        key: RemoteRegion,
    },
    /// Take a watch back. What it has reached before this may still be told.
    Unwatch {
        /// That of the watch.
        token: Token,
    },
}

/// Memory that is lent to a message.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by who lends")]
pub struct Offer {
    /// Of the message.
    pub tag: Tag,
    /// Bytes of its header, which do not go there.
    pub header_len: usize,
    /// For its body.
    pub into: LocalRange,
    /// Comes back in [`Sink::placed`](super::Sink::placed) or [`Sink::returned`](super::Sink::returned).
    pub token: Token,
}

/// The atomics of [`Command::Atomic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtomicOp {
    /// Wrapping addition.
    Add(u64),
    /// Bitwise and.
    And(u64),
    /// Bitwise or.
    Or(u64),
    /// Bitwise exclusive or.
    Xor(u64),
    /// The greater of the two, unsigned.
    Max(u64),
    /// The lesser of the two, unsigned.
    Min(u64),
    /// Exchange.
    Swap(u64),
    /// Write `new` if the word is `expected`.
    CompareSwap {
        /// What the word must be.
        expected: u64,
        /// What it then becomes.
        new: u64,
    },
    /// Read only.
    Fetch,
}

impl AtomicOp {
    /// Does it, and says what the word was before.
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

/// The answer to a command.
#[derive(Debug)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "a third answer would change every caller"
)]
pub enum Post<'a> {
    /// Taken.
    Posted,
    /// No room: here it is again.
    Full(Command<'a>),
}
