//! The sending half: packets until they are acknowledged, and when they go again.

use std::collections::VecDeque;

use super::{Answer, Data, Limits, Said};
use crate::random::Random;

/// Towards one adapter. `T` names a packet.
#[derive(Debug)]
pub(in crate::sim) struct Sender<T> {
    /// The number of the first of `packets`.
    first: u64,
    /// Not acknowledged, and not sent yet.
    packets: VecDeque<T>,
    /// The number of the next one to send.
    cursor: u64,
    /// The first number that was never sent.
    fresh: u64,
    /// How many may be under way now.
    window: u32,
    wait: Wait,
    /// When the last of those under way should be answered.
    due: u64,
    /// Until then a gap is one that was seen already.
    mending: u64,
    /// Repetitions and refusals since something was acknowledged.
    tries: u32,
    /// When the peer was heard last, or should have been heard first.
    heard: u64,
    dead: bool,
}

/// What ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing is under way.
    Off,
    /// An answer is late from this time on.
    Answer(u64),
    /// The receiver will call; from this time on it is not waited for.
    Call(u64),
}

impl<T: Copy> Sender<T> {
    pub(in crate::sim) fn new() -> Self {
        Self {
            first: 0,
            packets: VecDeque::new(),
            cursor: 0,
            fresh: 0,
            window: WINDOW_FIRST,
            wait: Wait::Off,
            due: 0,
            mending: 0,
            tries: 0,
            heard: 0,
            dead: false,
        }
    }

    /// One more to send.
    pub(in crate::sim) fn push(&mut self, packet: T, now: u64) {
        if self.packets.is_empty() {
            self.heard = self.heard.max(now);
        }
        self.packets.push_back(packet);
    }

    /// The next packet that goes now; say [`sent`](Self::sent) when it went.
    #[must_use]
    pub(in crate::sim) fn poll_transmit(&mut self, now: u64, limits: &Limits) -> Option<(Data, T)> {
        self.look_at_clock(now, limits);
        let ahead = self.cursor - self.first;
        let called = !matches!(self.wait, Wait::Call(_));
        let may = called && !self.dead && ahead < u64::from(self.window);
        let packet = *self.packets.get(position(ahead)).filter(|_| may)?;
        let more = position(ahead) + 1 < self.packets.len();
        let data = Data {
            seq: self.cursor,
            ask: !more || ahead + 1 == u64::from(self.window),
            more,
        };
        Some((data, packet))
    }

    /// The packet of the last [`poll_transmit`](Self::poll_transmit) is under way, and can be answered at `due`.
    pub(in crate::sim) fn sent(&mut self, due: u64, limits: &Limits) {
        self.due = self.due.max(due);
        if self.cursor == self.fresh {
            self.fresh += 1;
            self.heard = self.heard.max(due);
        } else if self.cursor == self.first {
            self.mending = due;
        }
        self.cursor += 1;
        self.await_answer(0, limits);
    }

    /// Hears the receiver. What is acknowledged goes to `done`, in order.
    pub(in crate::sim) fn handle_answer(
        &mut self,
        answer: Answer,
        now: u64,
        limits: &Limits,
        done: &mut Vec<T>,
    ) {
        // From the past, or about what was never sent.
        if answer.expected < self.first || answer.expected > self.fresh || self.dead {
            return;
        }
        self.heard = self.heard.max(now);
        self.acknowledge(answer.expected, limits, done);
        if self.packets.is_empty() {
            self.wait = Wait::Off;
            return;
        }
        match answer.what {
            Said::Ack => {}
            Said::Gap => {
                if self.cursor > self.first && now >= self.mending {
                    self.window = (self.window / 2).max(1);
                    self.rewind(now, limits);
                }
            }
            // Its place in the queue is certain; only the call can be lost.
            Said::Pause => self.await_call(limits.silence / CALL_PARTS, now, limits),
            Said::NoSlot(hold) => {
                if !matches!(self.wait, Wait::Call(_)) {
                    let wait = self.patience(hold, limits.silence / CALL_PARTS, limits);
                    self.tries += 1;
                    self.await_call(wait, now, limits);
                }
            }
            Said::Grant => self.rewind(now, limits),
        }
    }

    /// When [`poll_transmit`](Self::poll_transmit) must be called without any other reason.
    pub(in crate::sim) const fn next_timeout(&self) -> Option<u64> {
        match self.wait {
            Wait::Answer(at) | Wait::Call(at) if !self.dead => Some(at),
            _ => None,
        }
    }

    /// The peer was silent for too long; nothing goes to it any more.
    pub(in crate::sim) const fn is_dead(&self) -> bool {
        self.dead
    }

    /// What was pushed and not acknowledged, for good.
    pub(in crate::sim) fn take_all(&mut self) -> VecDeque<T> {
        self.dead = true;
        self.wait = Wait::Off;
        std::mem::take(&mut self.packets)
    }

    /// The number of the first packet that is not acknowledged.
    pub(in crate::sim) const fn first(&self) -> u64 {
        self.first
    }

    /// Whether a packet was never sent.
    pub(in crate::sim) const fn is_fresh(&self, seq: u64) -> bool {
        seq >= self.fresh
    }

    #[cfg(test)]
    pub(in crate::sim) fn len(&self) -> usize {
        self.packets.len()
    }

    fn look_at_clock(&mut self, now: u64, limits: &Limits) {
        match self.wait {
            Wait::Answer(at) if now >= at => {
                self.dead = self.is_silent(now, limits);
                self.tries += 1;
                self.window = (self.window / 2).max(1);
                self.rewind(now, limits);
            }
            Wait::Call(at) if now >= at => {
                self.dead = self.is_silent(now, limits);
                self.tries += 1;
                self.rewind(now, limits);
            }
            _ => {}
        }
    }

    /// Answers may be late because links are busy, so many must be missing too.
    const fn is_silent(&self, now: u64, limits: &Limits) -> bool {
        now.saturating_sub(self.heard) >= limits.silence && self.tries >= TRIES_MIN
    }

    fn acknowledge(&mut self, expected: u64, limits: &Limits, done: &mut Vec<T>) {
        let count = expected - self.first;
        if count == 0 {
            return;
        }
        done.extend(self.packets.drain(..position(count)));
        self.first = expected;
        self.cursor = self.cursor.max(expected);
        self.tries = 0;
        let grown = u64::from(self.window).saturating_add(count);
        self.window = u32::try_from(grown).map_or(limits.window, |grown| grown.min(limits.window));
        self.await_answer(0, limits);
    }

    /// Sends again from the first on.
    fn rewind(&mut self, now: u64, limits: &Limits) {
        self.cursor = self.first;
        self.await_answer(now, limits);
    }

    /// What is under way may wait in front of a link for long, and nothing is gained by sending it once more.
    fn await_answer(&mut self, now: u64, limits: &Limits) {
        let slack = self.patience(limits.slack, limits.silence / SILENCE_PARTS, limits);
        self.wait = Wait::Answer(self.due.max(now).saturating_add(slack));
    }

    fn await_call(&mut self, wait: u64, now: u64, limits: &Limits) {
        self.cursor = self.first;
        self.window = 1;
        let at = now.saturating_add(wait);
        self.wait = Wait::Call(at.max(self.due.saturating_add(limits.slack)));
    }

    /// A wait that doubles with every try, up to `longest`, and is up to a quarter shorter.
    fn patience(&self, base: u64, longest: u64, limits: &Limits) -> u64 {
        let doubled = base.saturating_mul(1 << self.tries.min(TRIES_DOUBLING));
        let wait = doubled.min(longest.max(base));
        let salt = self.first.wrapping_mul(31) ^ u64::from(self.tries);
        wait - Random::new(limits.seed ^ salt).within(0..wait / 4 + 1)
    }
}

/// A number relative to the first one, as an index.
fn position(ahead: u64) -> usize {
    usize::try_from(ahead).unwrap_or(usize::MAX)
}

/// Before anything is known about the peer.
const WINDOW_FIRST: u32 = 16;
/// 2^6 times the first wait is as long as a receiver with a thousand senders takes to call each of them.
const TRIES_DOUBLING: u32 = 6;
/// So many tries at the least before a peer counts as dead: at a loss of one half they all fail once in 2^64 times.
const SILENCE_PARTS: u64 = 64;
/// Who waits for a call looks again after a sixteenth of that, in case the call was lost.
const CALL_PARTS: u64 = 16;
/// A silence that long links account for is none: among the pairs of 4 096 ranks, under 20 % loss, nine tries fail now and then.
const TRIES_MIN: u32 = 48;
