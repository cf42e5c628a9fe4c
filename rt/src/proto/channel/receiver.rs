//! Receiving half of a channel: delivers each message once and in order.

use std::collections::VecDeque;

use super::{Frame, Verdict};

#[derive(Debug)]
pub(super) struct Receiver {
    expected: u16,
    /// Early messages: the entry at `i` has the sequence number `expected + i`.
    early: VecDeque<Option<Frame>>,
}

impl Receiver {
    pub(super) const fn new() -> Self {
        Self {
            expected: 0,
            early: VecDeque::new(),
        }
    }

    pub(super) const fn expected(&self) -> u16 {
        self.expected
    }

    pub(super) fn accept(&mut self, seq: u16, frame: impl FnOnce() -> Frame) -> Verdict {
        let ahead = seq.wrapping_sub(self.expected);
        match ahead {
            0 => {
                self.advance();
                Verdict::Deliver
            }
            1..EARLY => self.keep(usize::from(ahead), frame),
            BEHIND.. => Verdict::Duplicate,
            _ => Verdict::Refuse,
        }
    }

    pub(super) fn pop_early(&mut self) -> Option<Frame> {
        self.early.front()?.as_ref()?;
        self.advance()
    }

    fn keep(&mut self, ahead: usize, frame: impl FnOnce() -> Frame) -> Verdict {
        if self.early.len() <= ahead {
            self.early.resize(ahead + 1, None);
        }
        let place = &mut self.early[ahead];
        if place.is_some() {
            return Verdict::Duplicate;
        }
        *place = Some(frame());
        Verdict::Early
    }

    fn advance(&mut self) -> Option<Frame> {
        self.expected = self.expected.wrapping_add(1);
        self.early.pop_front().flatten()
    }
}

#[cfg(test)]
impl Receiver {
    pub(super) const fn starting_at(expected: u16) -> Self {
        Self {
            expected,
            early: VecDeque::new(),
        }
    }

    pub(super) fn early_len(&self) -> usize {
        self.early.iter().flatten().count()
    }
}

/// Distance up to which an early message is kept: the default window of a sender.
const EARLY: u16 = 64;

/// Half of all sequence numbers: from this distance on, a number is an old one (RFC 1982).
const BEHIND: u16 = 1 << 15;
