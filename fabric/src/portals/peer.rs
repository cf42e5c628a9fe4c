//! Peers, and the control words on their boards.
//!
//! A rank that was refused writes the number of its pauses to the board of the rank that refused it. Once that rank has room, it
//! writes the number back. Both words only grow, so it does not matter how often or when a reader looks at them. The same holds
//! for the third word, about rails, in which every part changes in one direction only.

use std::sync::atomic::Ordering::SeqCst;

use super::{address::PortalsAddress, exports::KeyOwner, outbox::PortalsOutbox};
use crate::{driver::DownCause, memory::MemoryRegion};

/// State of a peer, or of this rank itself.
#[derive(Debug)]
pub(super) struct PortalsPeer {
    pub(super) address: PortalsAddress,
    pub(super) outbox: PortalsOutbox,
    /// Number of the next message from the peer.
    pub(super) expected: u32,
    pub(super) state: PortalsPeerState,
    /// True if anything was ever sent to the peer or arrived from it. Only such peers are notified of this rank's end.
    pub(super) met: bool,
    /// True if anything arrived from the peer.
    pub(super) heard: bool,
    /// Messages, words and steps of commands in flight, counted only if operations to the dead never complete.
    pub(super) in_flight: u32,
    /// Lane of messages and words to the peer.
    pub(super) home: u8,
    /// True while the peer is in the queue of peers with messages to send.
    pub(super) queued: bool,
    /// True while words for the peer wait to be written.
    pub(super) words_due: bool,
    /// Messages that the peer's adapter accepted or refused, plus completed operations.
    pub(super) answers: u64,
    /// Number of this rank's pauses: the peer refused a message, or this rank moved to another lane.
    pub(super) pauses: u64,
    /// Number of the peer's pauses, as far as this rank knows.
    pub(super) pauses_heard: u64,
    /// Number of the peer's pauses that this rank has ended.
    pub(super) resumed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortalsPeerState {
    Up,
    /// An operation did not reach the peer. Earlier arrivals from it are still to be handled.
    Suspect,
    Down,
}

impl PortalsPeer {
    /// Returns a peer with at most `most` messages in flight.
    pub(super) const fn new(address: PortalsAddress, most: u32, home: u8) -> Self {
        Self {
            address,
            outbox: PortalsOutbox::new(most),
            expected: 0,
            state: PortalsPeerState::Up,
            met: false,
            heard: false,
            in_flight: 0,
            home,
            queued: false,
            words_due: false,
            answers: 0,
            pauses: 0,
            pauses_heard: 0,
            resumed: 0,
        }
    }

    pub(super) const fn owner(&self, rank: u32) -> KeyOwner {
        KeyOwner {
            rank,
            nonce: self.address.nonce,
        }
    }
}

/// Words of one rank on another rank's board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControlWords {
    /// Number of the writer's pauses: it was refused, or moves to another lane.
    pub(super) pauses: u64,
    /// Number of the reader's pauses that the writer has ended.
    pub(super) resumed: u64,
    /// State of the rails between the two ranks, as the writer sees it.
    pub(super) rails: u64,
}

impl ControlWords {
    /// Bytes of the words.
    pub(super) const LEN: usize = 24;

    pub(super) fn read(board: &MemoryRegion, rank: u32) -> Self {
        let at = Self::at(rank);
        Self {
            pauses: board.atomic_u64(at).load(SeqCst),
            resumed: board.atomic_u64(at + 8).load(SeqCst),
            rails: board.atomic_u64(at + 16).load(SeqCst),
        }
    }

    /// Returns the newer values from two boards.
    pub(super) fn newer(self, other: Self) -> Self {
        Self {
            pauses: self.pauses.max(other.pauses),
            resumed: self.resumed.max(other.resumed),
            ..self
        }
    }

    pub(super) fn write(self, board: &MemoryRegion, rank: u32) {
        let at = Self::at(rank);
        board.atomic_u64(at).store(self.pauses, SeqCst);
        board.atomic_u64(at + 8).store(self.resumed, SeqCst);
        board.atomic_u64(at + 16).store(self.rails, SeqCst);
    }

    pub(super) const fn at(rank: u32) -> usize {
        rank as usize * Self::LEN
    }
}

/// Kind of a message, encoded in its header data with its header length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageLabel {
    /// A message of the runtime, with this many bytes of header.
    Message(u8),
    /// The last message.
    Bye(DownCause),
}

impl MessageLabel {
    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Message(header) => 1 | (header as u32) << 8,
            Self::Bye(DownCause::Finished) => 2,
            Self::Bye(DownCause::Failed) => 3,
        }
    }

    /// Returns a label's bits for a message that is followed by `padding` extra bytes.
    pub(super) fn padded(bits: u32, padding: usize) -> u32 {
        bits | u32::try_from(padding).unwrap_or(0) << PADDING
    }

    /// Returns the number of extra bytes after the message.
    pub(super) const fn padding(bits: u32) -> u32 {
        bits >> PADDING
    }

    pub(super) const fn of(bits: u32) -> Option<Self> {
        let [kind, header, high, higher] = bits.to_le_bytes();
        match (kind, high | higher) {
            (1, _) => Some(Self::Message(header)),
            (2, 0) => Some(Self::Bye(DownCause::Finished)),
            (3, 0) => Some(Self::Bye(DownCause::Failed)),
            _ => None,
        }
    }
}

const PADDING: u32 = 16;

/// User pointer of an operation, which identifies it on completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserPtr {
    /// A message: rank and number.
    Message(u32, u32),
    /// A one-sided operation: slot and generation.
    Operation(u32, u32),
    /// Words for a rank.
    Words(u32),
    /// A piece of an operation: slot, lane, and piece number.
    Piece(u32, u32, u32),
}

impl UserPtr {
    pub(super) const fn bits(self) -> u64 {
        let (class, low, high) = match self {
            Self::Message(rank, number) => (0_u64, rank, number),
            Self::Operation(slot, generation) => (1, slot, generation),
            Self::Words(rank) => (2, rank, 0),
            Self::Piece(slot, lane, piece) => (3, slot << LANE_BITS | lane, piece),
        };
        (high as u64) << 32 | class << 30 | low as u64
    }

    pub(super) fn of(bits: u64) -> Option<Self> {
        let high = u32::try_from(bits >> 32).ok()?;
        let low = u32::try_from(bits & 0x3fff_ffff).ok()?;
        match bits >> 30 & 3 {
            0 => Some(Self::Message(low, high)),
            1 => Some(Self::Operation(low, high)),
            2 => Some(Self::Words(low)),
            3 => Some(Self::Piece(low >> LANE_BITS, low & LANE_MASK, high)),
            _ => None,
        }
    }
}

/// Bits of a lane number. There are at most four lanes, and fewer than 2²⁸ slots.
const LANE_BITS: u32 = 2;
const LANE_MASK: u32 = (1 << LANE_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::{DownCause, MessageLabel, UserPtr};

    #[test]
    fn tickets_and_labels_come_back_as_they_were() {
        for ticket in [
            UserPtr::Message(0x3fff_ffff, u32::MAX),
            UserPtr::Operation(7, 0),
            UserPtr::Words(1),
            UserPtr::Piece(0x0fff_ffff, 3, u32::MAX),
        ] {
            assert_eq!(UserPtr::of(ticket.bits()), Some(ticket));
        }
        for label in [
            MessageLabel::Message(128),
            MessageLabel::Bye(DownCause::Finished),
            MessageLabel::Bye(DownCause::Failed),
        ] {
            assert_eq!(MessageLabel::of(label.bits()), Some(label));
        }
        assert_eq!(MessageLabel::of(0), None);
        assert_eq!(MessageLabel::of(1 << 16 | 2), None);
        let padded = MessageLabel::padded(MessageLabel::Message(24).bits(), 748);
        assert_eq!(MessageLabel::of(padded), Some(MessageLabel::Message(24)));
        assert_eq!(MessageLabel::padding(padded), 748);
    }
}
