//! The other ranks, and the words on their boards that end a pause.
//!
//! A rank that was refused writes, on the board of who refused it, how often it was; who has room again writes that number back.
//! Both words only grow, so it does not matter how often, or when, anybody looks at them; nor with the third, about rails, whose
//! parts each go one way only.

use std::sync::atomic::Ordering::SeqCst;

use super::{address::Address, exports::Owner, outbox::Outbox};
use crate::{driver::Down, memory::Region};

/// Another rank, or this one.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: Address,
    pub(super) outbox: Outbox,
    /// The number of the next message from there.
    pub(super) expected: u32,
    pub(super) life: Life,
    /// Anything was ever sent to it, or came from there: then it is told of the end.
    pub(super) met: bool,
    /// Something came from there.
    pub(super) heard: bool,
    /// Messages, words and steps of commands on their way to it, where what is on its way to the dead does not end.
    pub(super) under_way: u32,
    /// The lane of messages and words to it.
    pub(super) home: u8,
    /// It waits in the list of those with something to send.
    pub(super) queued: bool,
    /// Words for it wait to be written.
    pub(super) due: bool,
    /// Messages that its adapter has taken or refused, and operations that it has done.
    pub(super) answers: u64,
    /// How often we have paused: it refused us, or we went another way.
    pub(super) pauses: u64,
    /// How often it has paused, by what we have heard.
    pub(super) pauses_heard: u64,
    /// And how often we have let it go on.
    pub(super) resumed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Up,
    /// An operation found nobody there; what came from it before is still to be looked at.
    Suspect,
    Down,
}

impl Peer {
    /// With at most so many messages on their way to it.
    pub(super) const fn new(address: Address, most: u32, home: u8) -> Self {
        Self {
            address,
            outbox: Outbox::new(most),
            expected: 0,
            life: Life::Up,
            met: false,
            heard: false,
            under_way: 0,
            home,
            queued: false,
            due: false,
            answers: 0,
            pauses: 0,
            pauses_heard: 0,
            resumed: 0,
        }
    }

    pub(super) const fn owner(&self, rank: u32) -> Owner {
        Owner {
            rank,
            nonce: self.address.nonce,
        }
    }
}

/// The words of one rank on another's board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words {
    /// How often the writer has paused: it was refused, or goes another way.
    pub(super) pauses: u64,
    /// How often the reader has, as far as the writer has let it go on.
    pub(super) resumed: u64,
    /// What the writer says of rails between the two.
    pub(super) rails: u64,
}

impl Words {
    /// Bytes of them.
    pub(super) const LEN: usize = 24;

    pub(super) fn read(board: &Region, rank: u32) -> Self {
        let at = Self::at(rank);
        Self {
            pauses: board.atomic_u64(at).load(SeqCst),
            resumed: board.atomic_u64(at + 8).load(SeqCst),
            rails: board.atomic_u64(at + 16).load(SeqCst),
        }
    }

    /// The newer ones of two boards.
    pub(super) fn newer(self, other: Self) -> Self {
        Self {
            pauses: self.pauses.max(other.pauses),
            resumed: self.resumed.max(other.resumed),
            ..self
        }
    }

    pub(super) fn write(self, board: &Region, rank: u32) {
        let at = Self::at(rank);
        board.atomic_u64(at).store(self.pauses, SeqCst);
        board.atomic_u64(at + 8).store(self.resumed, SeqCst);
        board.atomic_u64(at + 16).store(self.rails, SeqCst);
    }

    pub(super) const fn at(rank: u32) -> usize {
        rank as usize * Self::LEN
    }
}

/// What a message is, in its header data: a kind, the length of its header, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// The application's, with so many bytes of header.
    Message(u8),
    /// Nothing comes after this.
    Bye(Down),
}

impl Label {
    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Message(header) => 1 | (header as u32) << 8,
            Self::Bye(Down::Finished) => 2,
            Self::Bye(Down::Failed) => 3,
        }
    }

    /// A label's bits, where so many bytes follow the message that do not belong to it.
    pub(super) fn padded(bits: u32, padding: usize) -> u32 {
        bits | u32::try_from(padding).unwrap_or(0) << PADDING
    }

    /// How many bytes follow the message that do not belong to it.
    pub(super) const fn padding(bits: u32) -> u32 {
        bits >> PADDING
    }

    pub(super) const fn of(bits: u32) -> Option<Self> {
        let [kind, header, high, higher] = bits.to_le_bytes();
        match (kind, high | higher) {
            (1, _) => Some(Self::Message(header)),
            (2, 0) => Some(Self::Bye(Down::Finished)),
            (3, 0) => Some(Self::Bye(Down::Failed)),
            _ => None,
        }
    }
}

const PADDING: u32 = 16;

/// What comes back with the end of an own operation: which it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ticket {
    /// A message of this number to this rank.
    Message(u32, u32),
    /// The one-sided operation in this slot, of this generation.
    Operation(u32, u32),
    /// Words for this rank.
    Words(u32),
    /// A piece of the operation in this slot, by this lane: its number there.
    Piece(u32, u32, u32),
}

impl Ticket {
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

/// Lanes are fewer than four, and slots than 2²⁸.
const LANE_BITS: u32 = 2;
const LANE_MASK: u32 = (1 << LANE_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::{Down, Label, Ticket};

    #[test]
    fn tickets_and_labels_come_back_as_they_were() {
        for ticket in [
            Ticket::Message(0x3fff_ffff, u32::MAX),
            Ticket::Operation(7, 0),
            Ticket::Words(1),
            Ticket::Piece(0x0fff_ffff, 3, u32::MAX),
        ] {
            assert_eq!(Ticket::of(ticket.bits()), Some(ticket));
        }
        for label in [
            Label::Message(128),
            Label::Bye(Down::Finished),
            Label::Bye(Down::Failed),
        ] {
            assert_eq!(Label::of(label.bits()), Some(label));
        }
        assert_eq!(Label::of(0), None);
        assert_eq!(Label::of(1 << 16 | 2), None);
        let padded = Label::padded(Label::Message(24).bits(), 748);
        assert_eq!(Label::of(padded), Some(Label::Message(24)));
        assert_eq!(Label::padding(padded), 748);
    }
}
