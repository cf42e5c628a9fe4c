//! The sending half: copies until they are acknowledged, and when to send them again.

use std::collections::VecDeque;

use super::Frame;

/// What a channel may do, and how patient it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Unacknowledged messages; at most [`WINDOW_MAX`].
    pub(crate) window: u16,
    /// The first wait for an acknowledgement, in nanoseconds; it doubles each time that nothing came.
    pub(crate) timeout: u64,
    /// The longest wait, in nanoseconds.
    pub(crate) timeout_max: u64,
    /// The first pause after a refusal, and the least time between two refusals, in nanoseconds.
    pub(crate) hold: u64,
    /// How often everything is sent again without any progress before the peer counts as dead.
    pub(crate) rewinds_max: u32,
}

/// 64 messages in flight cover what a receiver keeps early. 1 ms is far above a turn of the progress agent, and 64 ms keeps a
/// rank that computes without one from being flooded; 1 000 rewinds are then a good minute, so that only a peer that is really
/// gone, and that no driver reported, is given up.
impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 64,
            timeout: 1_000_000,
            timeout_max: 64_000_000,
            hold: 50_000,
            rewinds_max: 1_000,
        }
    }
}

/// A quarter of the numbers, so that a late acknowledgement is never taken for a new one.
pub(crate) const WINDOW_MAX: u16 = 1 << 14;

#[derive(Debug)]
pub(super) struct Sender {
    limits: Limits,
    /// The number of the first of `unacked`.
    first: u16,
    unacked: VecDeque<Frame>,
    /// Which of `unacked` are to be sent again, in order.
    again: std::ops::Range<usize>,
    timer: Timer,
    /// Rewinds since the last progress.
    rewinds: u32,
}

/// What happens next by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Nothing: all is acknowledged, or the peer is dead.
    Off,
    /// A message left; the wait begins when somebody says what time it is.
    Unset,
    /// Everything is sent again at this time.
    Timeout(u64),
    /// The same, after the peer refused something.
    Hold(u64),
}

impl Sender {
    pub(super) fn new(limits: Limits) -> Self {
        let window = limits.window.clamp(1, WINDOW_MAX);
        Self {
            limits: Limits { window, ..limits },
            first: 0,
            unacked: VecDeque::new(),
            again: 0..0,
            timer: Timer::Off,
            rewinds: 0,
        }
    }

    pub(super) fn next_seq(&self) -> Option<u16> {
        let outstanding = self.outstanding();
        (outstanding < self.limits.window && !self.is_dead())
            .then(|| self.first.wrapping_add(outstanding))
    }

    pub(super) fn sent(&mut self, frame: Frame) {
        debug_assert!(self.next_seq().is_some(), "the window was asked before");
        self.unacked.push_back(frame);
        if self.timer == Timer::Off {
            self.timer = Timer::Unset;
        }
    }

    pub(super) fn poll_transmit(&mut self, now: u64) -> Option<&Frame> {
        match self.timer {
            Timer::Unset => self.wait(now),
            Timer::Timeout(due) | Timer::Hold(due) if now >= due => self.rewind(now),
            _ => {}
        }
        let next = self.again.next()?;
        self.unacked.get(next)
    }

    pub(super) fn untransmit(&mut self) {
        self.again.start = self.again.start.saturating_sub(1);
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        match self.timer {
            Timer::Off => None,
            Timer::Unset => Some(0),
            Timer::Timeout(due) | Timer::Hold(due) => Some(due),
        }
    }

    pub(super) fn handle_ack(&mut self, ack: u16, now: u64) {
        let done = ack.wrapping_sub(self.first);
        if done == 0 || done > self.outstanding() || self.is_dead() {
            return; // from the past, or of nothing we sent
        }
        self.first = ack;
        self.unacked.drain(..usize::from(done));
        self.again.start = self.again.start.saturating_sub(usize::from(done));
        self.again.end = self.again.end.saturating_sub(usize::from(done));
        self.rewinds = 0;
        self.wait(now);
    }

    pub(super) fn handle_nack(&mut self, first_bad: u16, now: u64) {
        self.handle_ack(first_bad, now);
        let ours = first_bad == self.first && !self.unacked.is_empty() && !self.is_dead();
        // One refusal is enough until everything has been sent again: the others are of the same flight.
        if ours && self.again.is_empty() && !matches!(self.timer, Timer::Hold(_)) {
            self.timer = Timer::Hold(now.saturating_add(self.backoff(self.limits.hold)));
        }
    }

    pub(super) fn unacked_len(&self) -> usize {
        self.unacked.len()
    }

    pub(super) const fn is_dead(&self) -> bool {
        self.rewinds > self.limits.rewinds_max
    }

    /// Sends everything again, or gives up.
    fn rewind(&mut self, now: u64) {
        self.rewinds += 1;
        if self.is_dead() {
            self.timer = Timer::Off;
            self.again = 0..0;
            self.unacked.clear();
            return;
        }
        self.again = 0..self.unacked.len();
        self.wait(now);
    }

    /// Starts to wait for an acknowledgement, if one is missing.
    fn wait(&mut self, now: u64) {
        self.timer = if self.unacked.is_empty() {
            Timer::Off
        } else {
            Timer::Timeout(now.saturating_add(self.backoff(self.limits.timeout)))
        };
    }

    fn backoff(&self, first: u64) -> u64 {
        let doubled = 1_u64.checked_shl(self.rewinds).unwrap_or(u64::MAX);
        first.saturating_mul(doubled).min(self.limits.timeout_max)
    }

    fn outstanding(&self) -> u16 {
        u16::try_from(self.unacked.len()).expect("at most a window")
    }
}

#[cfg(test)]
impl Sender {
    pub(super) fn starting_at(limits: Limits, first: u16) -> Self {
        Self {
            first,
            ..Self::new(limits)
        }
    }
}
