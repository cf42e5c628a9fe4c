//! Order and completeness between two ranks, where the driver does not give them; and credits, for every driver.
//!
//! After spec P3 and P15. Each message that leaves for a peer has a number, its place in the order. The sender keeps a copy
//! until the peer says that it has everything before some number; when that takes too long, or the peer had no room, or seems
//! to miss something, it sends again from the first number that is missing: go-back-n. The receiver passes messages on in order
//! and once. What comes a little early it keeps, what comes twice it answers again, what comes far too early it refuses.
//!
//! Numbers have 16 bits and go round; they are compared by their distance (RFC 1982). Whatever a peer says about numbers is
//! checked against what was really sent, so a wrong one changes nothing.

mod credits;
mod receiver;
mod round_trip;
mod sender;
#[cfg(test)]
mod tests;

pub(crate) use credits::Credits;
pub(crate) use sender::Limits;

use receiver::Receiver;
use sender::Sender;

/// Both directions of a pair of ranks whose driver may lose, repeat or reorder messages.
///
/// Times are in nanoseconds, of any clock that does not run backwards.
#[derive(Debug)]
pub(crate) struct Channel {
    sender: Sender,
    receiver: Receiver,
    /// Something arrived since the last acknowledgement left.
    ack_owed: bool,
    /// Something was refused since the last answer.
    nack_owed: bool,
    /// No refusal is repeated before this.
    quiet_until: u64,
    hold: u64,
}

/// A message as it went to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) header: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// What to do with a message that has just come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// It is next: handle it, then everything that [`Channel::pop_early`] has.
    Deliver,
    /// It has been here before: forget it.
    Duplicate,
    /// It is kept until its turn.
    Early,
    /// It is too early to be kept: it will come again.
    Refuse,
}

/// A message for the peer that has no number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Everything before this number is here.
    Ack(u16),
    /// Send again from this number on.
    Nack(u16),
}

impl Channel {
    /// Chance comes from the seed: it should differ between channels.
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(Limits::default(), seed)
    }

    pub(crate) fn with(limits: Limits, seed: u64) -> Self {
        Self {
            hold: limits.hold,
            sender: Sender::new(limits, seed),
            receiver: Receiver::new(),
            ack_owed: false,
            nack_owed: false,
            quiet_until: 0,
        }
    }
}

/// Towards the peer.
impl Channel {
    /// The number for the next message; `None` while as many as may are unacknowledged, and for ever when the peer is dead.
    ///
    /// It is used up by [`sent`](Self::sent), so a message that the driver has no room for costs none.
    pub(crate) fn next_seq(&self) -> Option<u16> {
        self.sender.next_seq()
    }

    /// What to say in every message: the number expected next.
    pub(crate) fn ack(&self) -> u16 {
        self.receiver.expected()
    }

    /// The driver took a message with [`next_seq`](Self::next_seq) and [`ack`](Self::ack) in its header.
    pub(crate) fn sent(&mut self, header: &[u8], body: &[u8]) {
        self.ack_owed = false;
        self.sender.sent(Frame {
            header: header.to_vec(),
            body: body.to_vec(),
        });
    }

    /// Nothing can leave before the peer acknowledges something.
    pub(crate) fn is_full(&self) -> bool {
        self.sender.is_full()
    }

    /// What time it is: to be said at the end of each turn in which something was sent.
    pub(crate) fn set_clock(&mut self, now: u64) {
        self.sender.set_clock(now);
    }

    /// The next message that must be sent again, as it was; old numbers in its header do no harm.
    #[must_use]
    pub(crate) fn poll_transmit(&mut self, now: u64) -> Option<&Frame> {
        self.sender.poll_transmit(now)
    }

    /// The driver had no room for what [`poll_transmit`](Self::poll_transmit) gave last.
    pub(crate) fn untransmit(&mut self) {
        self.sender.untransmit();
    }

    /// When [`poll_transmit`](Self::poll_transmit) must be called; a time that has passed, right after a message was sent.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.sender.next_timeout()
    }

    /// What the peer is owed at the end of a turn, if no message took it along.
    #[must_use]
    pub(crate) fn answer(&self, now: u64) -> Option<Answer> {
        let expected = self.receiver.expected();
        if self.nack_owed && now >= self.quiet_until {
            return Some(Answer::Nack(expected));
        }
        self.ack_owed.then_some(Answer::Ack(expected))
    }

    /// The driver took the [`answer`](Self::answer).
    pub(crate) fn answered(&mut self, now: u64) {
        if self.nack_owed && now >= self.quiet_until {
            self.quiet_until = now.saturating_add(self.hold);
        }
        self.nack_owed = false;
        self.ack_owed = false;
    }

    /// Messages that the peer has not acknowledged.
    pub(crate) fn unacked_len(&self) -> usize {
        self.sender.unacked_len()
    }

    /// The peer has not acknowledged anything for as long as [`Limits::rewinds_max`] allows.
    pub(crate) fn is_dead(&self) -> bool {
        self.sender.is_dead()
    }
}

/// From the peer.
impl Channel {
    /// The peer has everything before `ack`.
    pub(crate) fn handle_ack(&mut self, ack: u16, now: u64) {
        self.sender.handle_ack(ack, now);
    }

    /// As [`handle_ack`](Self::handle_ack), of an acknowledgement that came by itself: three that say nothing new say that
    /// something is missing.
    pub(crate) fn handle_answer(&mut self, ack: u16, now: u64) {
        self.sender.handle_answer(ack, now);
    }

    /// The peer has everything before `first_bad`, and no room for what came after that.
    pub(crate) fn handle_nack(&mut self, first_bad: u16, now: u64) {
        self.sender.handle_nack(first_bad, now);
    }

    /// A message came; `frame` makes the copy (header and body) that is kept if it is early.
    pub(crate) fn accept(
        &mut self,
        seq: u16,
        frame: impl FnOnce() -> (Vec<u8>, Vec<u8>),
    ) -> Verdict {
        let verdict = self.receiver.accept(seq, || {
            let (header, body) = frame();
            Frame { header, body }
        });
        self.ack_owed = true;
        self.nack_owed |= verdict == Verdict::Refuse;
        verdict
    }

    /// The next message, if it came before its turn.
    #[must_use]
    pub(crate) fn pop_early(&mut self) -> Option<Frame> {
        self.receiver.pop_early()
    }
}
