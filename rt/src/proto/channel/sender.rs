//! Sending half of a channel: keeps copies until they are acknowledged, and decides when to resend them.

use std::collections::VecDeque;

use super::{ChannelFrame, round_trip::RoundTrip};

/// Limits and timing of a channel. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelLimits {
    /// Maximum number of unacknowledged messages; at most [`WINDOW_MAX`].
    pub(crate) window: u16,
    /// Wait for an acknowledgment until the round trip is known. The wait doubles after each timeout.
    pub(crate) timeout: u64,
    /// Shortest wait, however fast the peer has answered so far.
    pub(crate) timeout_min: u64,
    /// Longest wait.
    pub(crate) timeout_max: u64,
    /// First pause after a refusal, and least time between two refusals.
    pub(crate) hold: u64,
    /// Maximum random extension of waits and pauses, in percent, so that senders that collided do not collide again.
    pub(crate) jitter: u64,
    /// Number of rewinds without progress after which the peer counts as dead.
    pub(crate) rewinds_max: u32,
}

/// A window of 64 messages is what a receiver keeps early.
///
/// The first wait is far longer than a turn of the progress agent, and the shortest is longer than a round trip on a
/// busy processor. The longest wait protects a rank that computes without an agent from a flood. With it, 1 000 rewinds
/// take more than a minute, so only a peer whose failure was not reported otherwise is given up.
impl Default for ChannelLimits {
    fn default() -> Self {
        Self {
            window: 64,
            timeout: 1_000_000,
            timeout_min: 50_000,
            timeout_max: 64_000_000,
            hold: 50_000,
            jitter: 25,
            rewinds_max: 1_000,
        }
    }
}

/// Number of answers without a new acknowledgment that mean a lost message, and not just a late one.
const DUPLICATES: u32 = 3;

/// A quarter of all sequence numbers, so that a late acknowledgment is never taken for a new one.
pub(crate) const WINDOW_MAX: u16 = 1 << 14;

#[derive(Debug)]
pub(super) struct ChannelSender {
    limits: ChannelLimits,
    /// Sequence number of the first frame in `unacked`.
    first: u16,
    unacked: VecDeque<ChannelFrame>,
    /// Range of `unacked` that must be resent, in order.
    again: std::ops::Range<usize>,
    timer: ChannelTimer,
    /// Rewinds since the last progress.
    rewinds: u32,
    round_trip: RoundTrip,
    /// Answers since the last progress that acknowledged nothing new.
    duplicates: u32,
    /// Number of frames of `unacked` that were resent. `rewound` is the time of that: early rewinds are at least a
    /// round trip apart.
    recovering: usize,
    rewound: u64,
    /// Number of times that the wait was doubled.
    doubled: u32,
    /// Seed of the next random extension.
    seed: u64,
}

/// The event that is due next, without any message from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelTimer {
    /// The sender waits for nothing: everything is acknowledged, or the peer is dead.
    Off,
    /// A message left, and the wait begins at the next `set_clock`.
    Unset,
    /// Everything is resent at this time.
    Timeout(u64),
    /// Everything is resent at this time, because the peer refused a message.
    Hold(u64),
}

impl ChannelSender {
    pub(super) fn new(limits: ChannelLimits, seed: u64) -> Self {
        let window = limits.window.clamp(1, WINDOW_MAX);
        Self {
            limits: ChannelLimits { window, ..limits },
            first: 0,
            unacked: VecDeque::new(),
            again: 0..0,
            timer: ChannelTimer::Off,
            rewinds: 0,
            round_trip: RoundTrip::default(),
            duplicates: 0,
            recovering: 0,
            rewound: 0,
            doubled: 0,
            seed,
        }
    }

    pub(super) fn next_seq(&self) -> Option<u16> {
        let outstanding = self.outstanding();
        (outstanding < self.limits.window && !self.is_dead())
            .then(|| self.first.wrapping_add(outstanding))
    }

    pub(super) fn sent(&mut self, frame: ChannelFrame) {
        debug_assert!(self.next_seq().is_some(), "the window was asked before");
        self.round_trip
            .sent(self.first.wrapping_add(self.outstanding()));
        self.unacked.push_back(frame);
        if self.timer == ChannelTimer::Off {
            self.timer = ChannelTimer::Unset;
        }
    }

    /// Returns true if no message can leave before the peer acknowledges one.
    pub(super) fn is_full(&self) -> bool {
        self.outstanding() >= self.limits.window && self.again.is_empty()
    }

    pub(super) fn set_clock(&mut self, now: u64) {
        if self.timer == ChannelTimer::Unset {
            self.wait(now);
        }
        self.round_trip.set_clock(now);
    }

    pub(super) fn poll_transmit(&mut self, now: u64) -> Option<&ChannelFrame> {
        match self.timer {
            ChannelTimer::Unset => self.wait(now),
            ChannelTimer::Timeout(due) | ChannelTimer::Hold(due) if now >= due => self.rewind(now),
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
            ChannelTimer::Off => None,
            ChannelTimer::Unset => Some(0),
            ChannelTimer::Timeout(due) | ChannelTimer::Hold(due) => Some(due),
        }
    }

    pub(super) fn handle_ack(&mut self, ack: u16, now: u64) {
        let done = ack.wrapping_sub(self.first);
        if done == 0 || done > self.outstanding() || self.is_dead() {
            return; // an old number, or of messages that were never sent
        }
        self.round_trip.acked(self.first, done, now);
        self.duplicates = 0;
        self.recovering = self.recovering.saturating_sub(usize::from(done));
        self.first = ack;
        self.unacked.drain(..usize::from(done));
        self.again.start = self.again.start.saturating_sub(usize::from(done));
        self.again.end = self.again.end.saturating_sub(usize::from(done));
        self.rewinds = 0;
        self.doubled = 0;
        self.wait(now);
    }

    /// Handles an acknowledgment without a message: the peer has just received a message, but perhaps not the one that
    /// it waits for.
    pub(super) fn handle_bare_ack(&mut self, ack: u16, now: u64) {
        let nothing_new = ack == self.first && !self.unacked.is_empty() && !self.is_dead();
        self.handle_ack(ack, now);
        if nothing_new {
            self.duplicates += 1;
            self.doubled = 0; // the peer receives this rank's messages
            self.rewind_early(now);
        }
    }

    pub(super) fn handle_nack(&mut self, first_bad: u16, now: u64) {
        self.handle_ack(first_bad, now);
        let ours = first_bad == self.first && !self.unacked.is_empty() && !self.is_dead();
        // One refusal is enough until everything has been resent: further ones belong to the same flight.
        if ours && self.again.is_empty() && !matches!(self.timer, ChannelTimer::Hold(_)) {
            let pause = self.backoff(self.limits.hold);
            self.timer = ChannelTimer::Hold(now.saturating_add(pause));
        }
    }

    /// Resends everything without waiting for the timeout, because a message is missing. At most once per round trip,
    /// because resent messages cause answers too.
    fn rewind_early(&mut self, now: u64) {
        let round_trip = self.round_trip.smooth();
        let heard = round_trip.is_some_and(|trip| now >= self.rewound.saturating_add(trip));
        let waits = matches!(self.timer, ChannelTimer::Timeout(_) | ChannelTimer::Unset);
        if self.duplicates >= DUPLICATES && waits && (self.recovering == 0 || heard) {
            self.round_trip.rewound(false);
            self.send_again(now);
        }
    }

    fn send_again(&mut self, now: u64) {
        self.again = 0..self.unacked.len();
        self.recovering = self.unacked.len();
        self.rewound = now;
        self.duplicates = 0;
        self.wait(now);
    }

    pub(super) fn unacked_len(&self) -> usize {
        self.unacked.len()
    }

    pub(super) const fn is_dead(&self) -> bool {
        self.rewinds > self.limits.rewinds_max
    }

    /// Resends everything, or gives up.
    fn rewind(&mut self, now: u64) {
        self.rewinds += 1;
        if self.is_dead() {
            self.timer = ChannelTimer::Off;
            self.again = 0..0;
            self.unacked.clear();
            return;
        }
        self.doubled += 1;
        self.round_trip.rewound(true);
        self.send_again(now);
        self.round_trip.set_clock(now);
    }

    /// Starts to wait for an acknowledgment, if any message is unacknowledged.
    fn wait(&mut self, now: u64) {
        self.timer = if self.unacked.is_empty() {
            ChannelTimer::Off
        } else {
            let measured = self.round_trip.timeout();
            let wait = measured.map_or(self.limits.timeout, |wait| {
                wait.max(self.limits.timeout_min)
            });
            ChannelTimer::Timeout(now.saturating_add(self.backoff(wait)))
        };
    }

    fn backoff(&mut self, first: u64) -> u64 {
        let doubled = 1_u64.checked_shl(self.doubled).unwrap_or(u64::MAX);
        let wait = first.saturating_mul(doubled).min(self.limits.timeout_max);
        wait + self.chance() % (wait / 100 * self.limits.jitter + 1)
    }

    /// Returns the next pseudo-random number (splitmix64).
    fn chance(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ self.seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn outstanding(&self) -> u16 {
        u16::try_from(self.unacked.len()).expect("at most a window")
    }
}

#[cfg(test)]
impl ChannelSender {
    pub(super) fn starting_at(limits: ChannelLimits, first: u16) -> Self {
        Self {
            first,
            ..Self::new(limits, 0)
        }
    }
}
