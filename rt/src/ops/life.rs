//! Where an operation stands.

use std::panic::Location;

use crate::{
    error::ErrorKind,
    proto::{
        matching::{Arrival, Posted, Want},
        wire::{Base, Eager, Kind, OpId},
    },
};

/// How an operation ended.
pub(crate) type Outcome = Result<Landed, Box<Failure>>;

/// Why, and what the operation was about.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) about: About,
}

/// What an operation is about; fixed when it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) ctx: u32,
    /// World rank; `None` for a receive from anybody.
    pub(crate) peer: Option<u32>,
    /// `None` for a receive of any tag.
    pub(crate) tag: Option<u32>,
    pub(crate) sig: u64,
    /// Size of an element in bytes, for the counts in errors.
    pub(crate) elem: usize,
    /// A send that completes only when it is received.
    pub(crate) synchronous: bool,
    /// A receive that wants the message itself, not its bytes.
    pub(crate) probe: bool,
    /// The line of the program that made it.
    pub(crate) at: &'static Location<'static>,
}

/// Where an operation stands. The comment names who moves it on.
///
/// It has nothing to drop, so that going on is a plain store; what is dear and rare, the reason of a failure, is beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    /// In the free list.
    Free,
    /// A send that waits for room or credits (flush).
    Queued,
    /// A send whose offer is out (the peer's answer).
    Offered,
    /// A send whose bytes the driver puts; then the receiver is told (the driver's completion).
    Putting { receiver: OpId },
    /// A send that tries to claim the rear of its message (the driver's completion).
    Claiming { receiver: OpId },
    /// A send whose rear the driver puts, while the receiver gets the front (the driver's completion).
    Sharing { receiver: OpId },
    /// A send whose bytes go out in fragments (flush).
    Fragmenting { receiver: OpId, sent: usize },
    /// A send whose offer was withdrawn (the peer's answer).
    Withdrawing,
    /// A receive that waits for its message (matching).
    Posted(Posted),
    /// A receive that is over but for its buffer, which the driver may still write to (the driver's word): a message that is
    /// kept for it, or the reason of a failure.
    Recalled(Option<Kept>),
    /// A receive whose bytes are on their way.
    Landing(Landing),
    /// A receive that takes over from an orphan, once that has landed.
    Following { orphan: OpId, landed: Landed },
    /// The buffers of a program under way (its last step).
    Running,
    /// An operation on another rank's window, of which so many parts are not done (the driver's completions, or the target's
    /// answers).
    Remote { left: u32, by_message: bool },
    /// Complete; the future takes it.
    Done(Landed),
    /// Complete without success; the future takes it.
    Failed,
    /// The runtime ended in a panic, and somebody may still write to the buffer, which nobody gets back: who awaits it panics,
    /// too.
    Lost,
}

/// A message on its way into a receive's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing {
    pub(crate) sender: OpId,
    pub(crate) landed: Landed,
    /// Bytes of fragments so far.
    pub(crate) received: usize,
    /// Fragments were asked for: any other way has failed or is not there.
    pub(crate) fragments: bool,
    /// The sender was given a key to put to.
    pub(crate) invited: bool,
    /// Both ends move it; the engine's `Shares` know how far they are.
    pub(crate) shared: bool,
    /// The receive that gets the message if this one is an orphan.
    pub(crate) follower: Option<OpId>,
}

/// A message that is stored for a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) stored: u32,
    pub(crate) arrival: Arrival,
}

/// A message in a buffer. `source` is a world rank. Of a send, only `bytes` means something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub(crate) source: u32,
    pub(crate) tag: u32,
    pub(crate) bytes: usize,
    pub(crate) arrival: Arrival,
    /// Where a probed message is stored.
    pub(crate) stored: Option<u32>,
}

impl Landing {
    /// Whether this peer sends the bytes by itself, so that nothing of it is at the driver.
    pub(crate) fn is_from(&self, rank: u32) -> bool {
        self.landed.source == rank && (self.fragments || self.invited)
    }
}

impl Landed {
    /// The outcome of a send.
    pub(crate) fn sent(bytes: usize) -> Self {
        Self {
            source: 0,
            tag: 0,
            bytes,
            arrival: Arrival::default(),
            stored: None,
        }
    }
}

impl About {
    /// What a send's envelope looks like.
    pub(crate) fn eager(&self) -> Eager {
        Eager {
            base: Base::new(Kind::Eager),
            ctx: self.ctx,
            tag: self.tag.unwrap_or(0),
            sig: self.sig,
        }
    }

    /// What a receive waits for.
    pub(crate) fn want(&self) -> Want {
        Want {
            ctx: self.ctx,
            source: self.peer,
            tag: self.tag,
        }
    }
}

impl Life {
    /// An operation on a window that was not cut into parts yet: nobody can answer for it.
    pub(super) const REMOTE: Self = Self::Remote {
        left: 1,
        by_message: false,
    };

    /// The peer of a one-sided command that this operation waits for.
    pub(crate) fn partner(&self, about: &About) -> Option<u32> {
        match self {
            Self::Landing(landing) => Some(landing.landed.source),
            Self::Putting { .. } | Self::Sharing { .. } | Self::Remote { .. } => about.peer,
            _ => None,
        }
    }

    /// Whether this is a send whose offer is out.
    #[inline]
    pub(crate) fn is_offered(&self) -> bool {
        self.is_sending() && !matches!(self, Self::Queued)
    }

    /// Whether this is a send that the peer has not finished with.
    pub(crate) fn is_sending(&self) -> bool {
        matches!(
            self,
            Self::Queued
                | Self::Offered
                | Self::Putting { .. }
                | Self::Claiming { .. }
                | Self::Sharing { .. }
                | Self::Fragmenting { .. }
                | Self::Withdrawing
        )
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed)
    }
}
