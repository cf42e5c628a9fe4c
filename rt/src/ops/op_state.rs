//! States of an operation.

use std::panic::Location;

use crate::{
    error::ErrorKind,
    group::WorldRank,
    proto::{
        matching::{ArrivalNumber, MessageEnvelope, ReceiveHandle, RecvPattern},
        wire::{EagerHeader, HeaderBase, OpId, WireKind},
    },
};

/// Outcome of an operation: the received message, or the reason of the failure.
pub(crate) type OpOutcome = Result<MessageStatus, Box<OpFailure>>;

/// Reason of a failure, and the operation that failed.
#[derive(Debug)]
pub(crate) struct OpFailure {
    pub(crate) kind: ErrorKind,
    pub(crate) info: OpInfo,
}

/// Description of an operation, fixed when the operation is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpInfo {
    pub(crate) ctx: u32,
    /// World rank of the peer; `None` for a receive from any source.
    pub(crate) peer: Option<WorldRank>,
    /// Tag; `None` for a receive of any tag.
    pub(crate) tag: Option<u32>,
    pub(crate) sig: u64,
    /// Size of an element in bytes, for the counts in errors.
    pub(crate) elem: usize,
    /// True for a send that completes only when it is received.
    pub(crate) synchronous: bool,
    /// True for a receive that wants the message itself, not its bytes.
    pub(crate) probe: bool,
    /// Source line that started the operation.
    pub(crate) at: &'static Location<'static>,
}

/// State of an operation. The comment of each state names in parentheses what ends the state.
///
/// Contains nothing that must be dropped, so a change of state is a plain store. The reason of a failure is large and
/// rare, so it is stored separately.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpState {
    /// The slot is in the free list.
    Free,
    /// A send that waits for room or credits (ended by flush).
    Queued,
    /// A send that has offered its message (ended by the peer's answer).
    Offered,
    /// A send whose bytes the driver puts, before the receiver is notified (ended by the driver's completion).
    Putting { receiver: OpId },
    /// A send that tries to claim the rear of its message (ended by the driver's completion).
    Claiming { receiver: OpId },
    /// A send whose rear the driver puts, while the receiver gets the front (ended by the driver's completion).
    PuttingRear { receiver: OpId },
    /// A send whose bytes are sent in fragments (ended by flush).
    Fragmenting { receiver: OpId, sent: usize },
    /// A send that has withdrawn its offer (ended by the peer's answer).
    Withdrawing,
    /// A receive that waits for its message, and that the matching does not know (ended by a message of this rank to itself, or
    /// by any other use of the engine, which posts it).
    Expected,
    /// A receive that waits for its message (ended by matching).
    Posted(ReceiveHandle),
    /// A receive that has ended except for its buffer, to which the driver may still write (ended by the driver). Holds
    /// the message that is kept for it; without one, the receive fails.
    Recalled(Option<ReservedMessage>),
    /// A receive whose message is being transferred.
    Landing(InboundTransfer),
    /// A receive whose message its sender packs in a packing block (ended by the sender's word that it is packed). It has the
    /// message out of the queue, as a probe has.
    AwaitsPacking(MessageStatus),
    /// A receive that takes over the message of an orphan, once that message has landed.
    Following { orphan: OpId, landed: MessageStatus },
    /// The buffers of a program in flight (ended by its last step).
    Running,
    /// An operation on another rank's window, of which `left` parts have not completed (ended by the driver's
    /// completions, or by the target's answers).
    Remote { left: u32, by_message: bool },
    /// Completed; the future takes the result.
    Done(MessageStatus),
    /// Failed; the future takes the error.
    Failed,
    /// The runtime ended in a panic. A peer may still write to the buffer, so it is never returned, and a future that
    /// awaits the operation panics too.
    Lost,
}

/// A message in flight to the buffer of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboundTransfer {
    pub(crate) sender: OpId,
    pub(crate) landed: MessageStatus,
    /// Bytes of fragments received so far.
    pub(crate) received: usize,
    /// True if fragments were requested: every other path has failed or does not exist.
    pub(crate) fragments: bool,
    /// True while only the sender moves bytes, by puts, so a failure of the peer ends the receive.
    pub(crate) sender_moves_rest: bool,
    /// True if both ends transfer parts of the message; the engine's `SplitTable` tracks their progress.
    pub(crate) is_split: bool,
    /// True if the driver writes the bytes of a message that was not offered, as they arrive.
    pub(crate) by_driver: bool,
    /// Receive that gets the message if this one is an orphan.
    pub(crate) follower: Option<OpId>,
}

/// A message that is stored for a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedMessage {
    pub(crate) stored: u32,
    pub(crate) arrival: ArrivalNumber,
}

/// A message in a buffer. `source` is a world rank. For a send, only `bytes` is meaningful.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageStatus {
    pub(crate) source: WorldRank,
    pub(crate) tag: u32,
    pub(crate) bytes: usize,
    pub(crate) arrival: ArrivalNumber,
    /// Index where a message is stored that was probed, or that its receiver reads in place.
    pub(crate) stored: Option<u32>,
}

/// A message that came to the place of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedMessage {
    /// Rank of the sender in the communicator of the channel.
    pub(crate) source: usize,
    pub(crate) tag: u32,
    /// Number of elements.
    pub(crate) len: usize,
}

impl MessageStatus {
    /// Describes a message that has arrived, of this length in bytes.
    #[inline(always)]
    pub(crate) const fn of(
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        bytes: usize,
    ) -> Self {
        Self {
            source: envelope.source,
            tag: envelope.tag,
            bytes,
            arrival,
            stored: None,
        }
    }
}

impl InboundTransfer {
    /// Returns the transfer of a message that was not offered, which the driver writes to its place as it arrives.
    pub(crate) const fn by_driver(landed: MessageStatus) -> Self {
        Self {
            sender: OpId {
                slot: u32::MAX,
                generation: 0,
            },
            landed,
            received: 0,
            fragments: false,
            sender_moves_rest: false,
            is_split: false,
            by_driver: true,
            follower: None,
        }
    }

    /// Returns true if this peer sends the bytes itself, so that the driver has no command for them.
    pub(crate) fn is_from(&self, rank: WorldRank) -> bool {
        self.landed.source == rank && (self.fragments || self.sender_moves_rest)
    }
}

impl MessageStatus {
    /// Returns the outcome of a send.
    pub(crate) fn sent(bytes: usize) -> Self {
        Self {
            source: WorldRank(0),
            tag: 0,
            bytes,
            arrival: ArrivalNumber::default(),
            stored: None,
        }
    }
}

impl OpInfo {
    /// Returns the header of an eager send.
    pub(crate) fn eager(&self) -> EagerHeader {
        EagerHeader {
            base: HeaderBase::new(WireKind::Eager),
            ctx: self.ctx,
            tag: self.tag.unwrap_or(0),
            sig: self.sig,
        }
    }

    /// Returns true if a message with this envelope matches a receive.
    #[inline(always)]
    pub(crate) fn wants(&self, envelope: &MessageEnvelope) -> bool {
        self.ctx == envelope.ctx
            && self.peer.is_none_or(|source| source == envelope.source)
            && self.tag.is_none_or(|tag| tag == envelope.tag)
    }

    /// Returns what a receive asks for.
    pub(crate) fn want(&self) -> RecvPattern {
        RecvPattern {
            ctx: self.ctx,
            source: self.peer,
            tag: self.tag,
        }
    }
}

impl OpState {
    /// State of an operation on a window that is not yet cut into parts, so no driver command or answer belongs to it.
    pub(super) const REMOTE: Self = Self::Remote {
        left: 1,
        by_message: false,
    };

    /// Returns the peer of a one-sided command that this operation waits for.
    pub(crate) fn partner(&self, info: &OpInfo) -> Option<WorldRank> {
        match self {
            Self::Landing(landing) => Some(landing.landed.source),
            Self::Putting { .. } | Self::PuttingRear { .. } | Self::Remote { .. } => info.peer,
            _ => None,
        }
    }

    /// Returns true for a send whose offer has left.
    #[inline]
    pub(crate) const fn is_offered(&self) -> bool {
        self.is_sending() && !matches!(self, Self::Queued)
    }

    /// Returns true for a send that its peer has not completed.
    pub(crate) const fn is_sending(&self) -> bool {
        matches!(
            self,
            Self::Queued
                | Self::Offered
                | Self::Putting { .. }
                | Self::Claiming { .. }
                | Self::PuttingRear { .. }
                | Self::Fragmenting { .. }
                | Self::Withdrawing
        )
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed)
    }
}
