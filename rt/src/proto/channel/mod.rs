//! Reliable, ordered delivery between two ranks, for drivers that do not provide it; and credits, for every driver.
//!
//! Each message to a peer has a sequence number. The sender keeps a copy until the peer acknowledges everything up to
//! that number. The sender resends everything from the first missing number on (go-back-n) if no acknowledgment arrives
//! in time, if the peer had no room, or if the peer seems to miss a message. The receiver delivers each message once
//! and in order. It keeps a message that is a little early, acknowledges a duplicate again, and refuses a message that
//! is too early.
//!
//! Sequence numbers have 16 bits and wrap around; they are compared by distance (RFC 1982). Numbers from a peer are
//! checked against what was really sent, so a wrong number changes nothing.

mod credits;
mod receiver;
mod round_trip;
mod sender;
#[cfg(test)]
mod tests;

pub(crate) use credits::Credits;
pub(crate) use sender::ChannelLimits;

use receiver::ChannelReceiver;
use sender::ChannelSender;

/// Both directions of a pair of ranks whose driver may lose, repeat or reorder messages.
///
/// Times are in nanoseconds, of any clock that does not run backwards.
#[derive(Debug)]
pub(crate) struct ReliableChannel {
    sender: ChannelSender,
    receiver: ChannelReceiver,
    /// True if a message arrived since the last acknowledgment left.
    ack_owed: bool,
    /// True if a message was refused since the last answer.
    nack_owed: bool,
    /// No refusal is repeated before this time.
    quiet_until: u64,
    hold: u64,
}

/// A message in the form in which the driver took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelFrame {
    pub(crate) header: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// Decision about a message that has just arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum ChannelVerdict {
    /// The message is next in order: handle it, then everything that [`ReliableChannel::pop_early`] returns.
    Deliver,
    /// The message was received before: drop it.
    Duplicate,
    /// The message is early, and the channel keeps it until its turn.
    Early,
    /// The message is too early to be kept: the peer will resend it.
    Refuse,
}

/// A message for the peer that has no sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelReply {
    /// Everything before this number has been received.
    Ack(u16),
    /// Resend from this number on.
    Nack(u16),
}

impl ReliableChannel {
    /// Creates a channel. The seed decides random delays, so it should differ between channels.
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(ChannelLimits::default(), seed)
    }

    pub(crate) fn with(limits: ChannelLimits, seed: u64) -> Self {
        Self {
            hold: limits.hold,
            sender: ChannelSender::new(limits, seed),
            receiver: ChannelReceiver::new(),
            ack_owed: false,
            nack_owed: false,
            quiet_until: 0,
        }
    }
}

/// Methods of the sending side.
impl ReliableChannel {
    /// Returns the sequence number for the next message. Returns `None` while the window is full of unacknowledged
    /// messages, and forever if the peer is dead.
    ///
    /// [`sent`](Self::sent) consumes the number, so a message that the driver has no room for uses none.
    pub(crate) fn next_seq(&self) -> Option<u16> {
        self.sender.next_seq()
    }

    /// Returns the acknowledgment to put into every message: the next expected sequence number.
    pub(crate) fn ack(&self) -> u16 {
        self.receiver.expected()
    }

    /// Records that the driver took a message with [`next_seq`](Self::next_seq) and [`ack`](Self::ack) in its header.
    pub(crate) fn sent(&mut self, header: &[u8], body: &[u8]) {
        self.ack_owed = false;
        self.sender.sent(ChannelFrame {
            header: header.to_vec(),
            body: body.to_vec(),
        });
    }

    /// Returns true if no message can leave before the peer acknowledges one.
    pub(crate) fn is_full(&self) -> bool {
        self.sender.is_full()
    }

    /// Sets the present time. Must be called at the end of each turn in which a message was sent.
    pub(crate) fn set_clock(&mut self, now: u64) {
        self.sender.set_clock(now);
    }

    /// Returns the next message that must be resent, unchanged. Old numbers in its header do no harm.
    #[must_use]
    pub(crate) fn poll_transmit(&mut self, now: u64) -> Option<&ChannelFrame> {
        self.sender.poll_transmit(now)
    }

    /// Undoes the last [`poll_transmit`](Self::poll_transmit), because the driver had no room.
    pub(crate) fn untransmit(&mut self) {
        self.sender.untransmit();
    }

    /// Returns the time when [`poll_transmit`](Self::poll_transmit) must be called. Right after a message was sent,
    /// this is a time in the past.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.sender.next_timeout()
    }

    /// Returns the answer that the peer must get at the end of a turn, if no message carried it.
    #[must_use]
    pub(crate) fn poll_reply(&self, now: u64) -> Option<ChannelReply> {
        let expected = self.receiver.expected();
        if self.nack_owed && now >= self.quiet_until {
            return Some(ChannelReply::Nack(expected));
        }
        self.ack_owed.then_some(ChannelReply::Ack(expected))
    }

    /// Records that the driver took the [`poll_reply`](Self::poll_reply).
    pub(crate) fn reply_sent(&mut self, now: u64) {
        if self.nack_owed && now >= self.quiet_until {
            self.quiet_until = now.saturating_add(self.hold);
        }
        self.nack_owed = false;
        self.ack_owed = false;
    }

    /// Returns the number of messages that the peer has not acknowledged.
    pub(crate) fn unacked_len(&self) -> usize {
        self.sender.unacked_len()
    }

    /// Returns true if the peer counts as dead: it acknowledged nothing through [`ChannelLimits::rewinds_max`] rewinds.
    pub(crate) fn is_dead(&self) -> bool {
        self.sender.is_dead()
    }
}

/// Methods of the receiving side.
impl ReliableChannel {
    /// Handles an acknowledgment of everything before `ack`.
    pub(crate) fn handle_ack(&mut self, ack: u16, now: u64) {
        self.sender.handle_ack(ack, now);
    }

    /// Like [`handle_ack`](Self::handle_ack), for an acknowledgment that arrived without a message. Three of these that
    /// acknowledge nothing new mean that a message is missing.
    pub(crate) fn handle_bare_ack(&mut self, ack: u16, now: u64) {
        self.sender.handle_bare_ack(ack, now);
    }

    /// Handles a refusal: the peer has everything before `first_bad`, and had no room for later messages.
    pub(crate) fn handle_nack(&mut self, first_bad: u16, now: u64) {
        self.sender.handle_nack(first_bad, now);
    }

    /// Handles a message that arrived. `frame` makes the copy (header and body) that is kept if the message is early.
    pub(crate) fn accept(
        &mut self,
        seq: u16,
        frame: impl FnOnce() -> (Vec<u8>, Vec<u8>),
    ) -> ChannelVerdict {
        let verdict = self.receiver.accept(seq, || {
            let (header, body) = frame();
            ChannelFrame { header, body }
        });
        self.ack_owed = true;
        self.nack_owed |= verdict == ChannelVerdict::Refuse;
        verdict
    }

    /// Returns the next message in order, if it arrived early.
    #[must_use]
    pub(crate) fn pop_early(&mut self) -> Option<ChannelFrame> {
        self.receiver.pop_early()
    }
}
