//! Packets: messages, pieces of one-sided operations, and what adapters report.

use super::heap::OpKey;
use crate::driver::{CommandToken, DownCause};

/// A packet on its way to a rank: in a queue of its adapter, in the network, or in the inbox of its host.
#[derive(Debug)]
pub(super) struct SimPacket {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The next packet in the same inbox.
    pub(super) next: u32,
    pub(super) payload: PacketPayload,
    /// Header and body of a message.
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PacketPayload {
    /// A message, with the length of its header. `copy`: a duplicate made by a fault, for which the sender has reserved no room.
    Message { header: u8, copy: bool },
    /// A piece of a put or of a get's answer, with its length in bytes.
    Chunk { op: OpKey, len: u64 },
    /// The request of a get or an atomic.
    Request(OpKey),
    /// The target's answer.
    Answer(OpKey),
    /// A count to add. The counter's key is in the bytes.
    Count(u64),
    /// Notification that the sender has closed.
    Closing(DownCause),
    /// A completion, or an event of a peer, for a host. Never enters the network.
    Completion(SimCompletion),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SimCompletion {
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, SimFailure),
    Reached(CommandToken),
    /// All tasks of a list have begun.
    Triggered(CommandToken),
    /// The rest of a token's lists was taken back.
    Broken(CommandToken, SimFailure),
    Down(DownCause),
}

/// Reason why a one-sided command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimFailure {
    PeerDown,
    BadRange,
    Unmatched,
    Cancelled,
}

impl PacketPayload {
    /// Returns a number for the digest.
    pub(super) const fn kind(self) -> u64 {
        match self {
            Self::Message { .. } => 0,
            Self::Chunk { .. } => 1,
            Self::Request(_) => 2,
            Self::Answer(_) => 3,
            Self::Closing(DownCause::Finished) => 4,
            Self::Closing(DownCause::Failed) => 5,
            Self::Completion(_) => 6,
            Self::Count(_) => 7,
        }
    }
}

impl SimPacket {
    pub(super) const fn new(from: u32, to: u32, cargo: PacketPayload, bytes: Vec<u8>) -> Self {
        Self {
            from,
            to,
            next: super::slab::NO_SLOT,
            payload: cargo,
            bytes,
        }
    }

    /// Returns a duplicate of the packet, as made by a fault.
    pub(super) fn copied(&self) -> Self {
        let cargo = match self.payload {
            PacketPayload::Message { header, .. } => PacketPayload::Message { header, copy: true },
            cargo => cargo,
        };
        Self::new(self.from, self.to, cargo, self.bytes.clone())
    }

    /// Returns the number of bytes on the wire.
    pub(super) const fn len(&self) -> u64 {
        match self.payload {
            PacketPayload::Chunk { len, .. } => len,
            _ => self.bytes.len() as u64,
        }
    }
}
