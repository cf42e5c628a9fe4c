//! Receiving half of a channel: delivers each message once and in order.

use std::collections::VecDeque;

use super::{ChannelFrame, ChannelVerdict};

#[derive(Debug)]
pub(super) struct ChannelReceiver {
    expected: u16,
    /// Early messages: the entry at `i` has the sequence number `expected + i`.
    early: VecDeque<Option<ChannelFrame>>,
}

impl ChannelReceiver {
    pub(super) const fn new() -> Self {
        Self {
            expected: 0,
            early: VecDeque::new(),
        }
    }

    pub(super) const fn expected(&self) -> u16 {
        self.expected
    }

    pub(super) fn accept(
        &mut self,
        seq: u16,
        frame: impl FnOnce() -> ChannelFrame,
    ) -> ChannelVerdict {
        let ahead = seq.wrapping_sub(self.expected);
        match ahead {
            0 => {
                self.advance();
                ChannelVerdict::Deliver
            }
            1..EARLY => self.keep(usize::from(ahead), frame),
            BEHIND.. => ChannelVerdict::Duplicate,
            _ => ChannelVerdict::Refuse,
        }
    }

    pub(super) fn pop_early(&mut self) -> Option<ChannelFrame> {
        self.early.front()?.as_ref()?;
        self.advance()
    }

    fn keep(&mut self, ahead: usize, frame: impl FnOnce() -> ChannelFrame) -> ChannelVerdict {
        if self.early.len() <= ahead {
            self.early.resize(ahead + 1, None);
        }
        let place = &mut self.early[ahead];
        if place.is_some() {
            return ChannelVerdict::Duplicate;
        }
        *place = Some(frame());
        ChannelVerdict::Early
    }

    fn advance(&mut self) -> Option<ChannelFrame> {
        self.expected = self.expected.wrapping_add(1);
        self.early.pop_front().flatten()
    }
}

#[cfg(test)]
impl ChannelReceiver {
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
