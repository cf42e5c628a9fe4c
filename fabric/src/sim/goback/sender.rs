//! The sending half of go-back-n: keeps packets until they are acknowledged, and decides when to send them again.

use std::collections::VecDeque;

use super::{GoBackAnswer, GoBackAnswerKind, GoBackHeader, GoBackLimits};
use crate::random::SeededRandom;

/// Sender of packets to one adapter. `T` names a packet.
#[derive(Debug)]
pub(in crate::sim) struct GoBackSender<T> {
    /// Number of the first of `packets`.
    first: u64,
    /// Packets that are not acknowledged, including those not sent yet.
    packets: VecDeque<T>,
    /// Number of the next packet to send.
    cursor: u64,
    /// Lowest number that was never sent.
    fresh: u64,
    /// Most packets in flight now.
    window: u32,
    wait: GoBackWait,
    /// Time at which the last packet in flight should be answered.
    due: u64,
    /// Until this time, a reported gap is one that was already repaired.
    mending: u64,
    /// Repetitions and refusals since the last acknowledgment.
    tries: u32,
    /// Time at which the peer was last heard, or should have been heard first.
    heard: u64,
    dead: bool,
}

/// Event that the sender waits for, with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoBackWait {
    /// Nothing is in flight.
    Off,
    /// An answer, which is late from this time on.
    Answer(u64),
    /// A call of the receiver, which is not waited for after this time.
    Call(u64),
}

impl<T: Copy> GoBackSender<T> {
    pub(in crate::sim) fn new() -> Self {
        Self {
            first: 0,
            packets: VecDeque::new(),
            cursor: 0,
            fresh: 0,
            window: WINDOW_FIRST,
            wait: GoBackWait::Off,
            due: 0,
            mending: 0,
            tries: 0,
            heard: 0,
            dead: false,
        }
    }

    /// Adds a packet to send.
    pub(in crate::sim) fn push(&mut self, packet: T, now: u64) {
        if self.packets.is_empty() {
            self.heard = self.heard.max(now);
        }
        self.packets.push_back(packet);
    }

    /// Returns the next packet to send now. Call [`sent`](Self::sent) when it was sent.
    #[must_use]
    pub(in crate::sim) fn poll_transmit(
        &mut self,
        now: u64,
        limits: &GoBackLimits,
    ) -> Option<(GoBackHeader, T)> {
        self.look_at_clock(now, limits);
        let ahead = self.cursor - self.first;
        let called = !matches!(self.wait, GoBackWait::Call(_));
        let may = called && !self.dead && ahead < u64::from(self.window);
        let packet = *self.packets.get(position(ahead)).filter(|_| may)?;
        let more = position(ahead) + 1 < self.packets.len();
        let data = GoBackHeader {
            seq: self.cursor,
            ask: !more || ahead + 1 == u64::from(self.window),
            more,
        };
        Some((data, packet))
    }

    /// Records that the packet of the last [`poll_transmit`](Self::poll_transmit) was sent, and can be answered at `due`.
    pub(in crate::sim) fn sent(&mut self, due: u64, limits: &GoBackLimits) {
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

    /// Handles an answer of the receiver. Acknowledged packets are appended to `done`, in order.
    pub(in crate::sim) fn handle_answer(
        &mut self,
        answer: GoBackAnswer,
        now: u64,
        limits: &GoBackLimits,
        done: &mut Vec<T>,
    ) {
        // The answer is outdated, or about packets that were never sent.
        if answer.expected < self.first || answer.expected > self.fresh || self.dead {
            return;
        }
        self.heard = self.heard.max(now);
        self.acknowledge(answer.expected, limits, done);
        if self.packets.is_empty() {
            self.wait = GoBackWait::Off;
            return;
        }
        match answer.kind {
            GoBackAnswerKind::Ack => {}
            GoBackAnswerKind::Gap => {
                if self.cursor > self.first && now >= self.mending {
                    self.window = (self.window / 2).max(1);
                    self.rewind(now, limits);
                }
            }
            // The sender's place in the queue is certain; only the call can be lost.
            GoBackAnswerKind::Pause => self.await_call(limits.silence / CALL_PARTS, now, limits),
            GoBackAnswerKind::NoSlot(hold) => {
                if !matches!(self.wait, GoBackWait::Call(_)) {
                    let wait = self.patience(hold, limits.silence / CALL_PARTS, limits);
                    self.tries += 1;
                    self.await_call(wait, now, limits);
                }
            }
            GoBackAnswerKind::Grant => self.rewind(now, limits),
        }
    }

    /// Returns when [`poll_transmit`](Self::poll_transmit) must be called without any other reason.
    pub(in crate::sim) const fn next_timeout(&self) -> Option<u64> {
        match self.wait {
            GoBackWait::Answer(at) | GoBackWait::Call(at) if !self.dead => Some(at),
            _ => None,
        }
    }

    /// Returns true if the peer was silent for too long. No packet is sent to it any more.
    pub(in crate::sim) const fn is_dead(&self) -> bool {
        self.dead
    }

    /// Takes all packets that were not acknowledged, and stops for good.
    pub(in crate::sim) fn take_all(&mut self) -> VecDeque<T> {
        self.dead = true;
        self.wait = GoBackWait::Off;
        std::mem::take(&mut self.packets)
    }

    /// Returns the number of the first packet that is not acknowledged.
    pub(in crate::sim) const fn first(&self) -> u64 {
        self.first
    }

    /// Returns true if this packet was never sent.
    pub(in crate::sim) const fn is_fresh(&self, seq: u64) -> bool {
        seq >= self.fresh
    }

    #[cfg(test)]
    pub(in crate::sim) fn len(&self) -> usize {
        self.packets.len()
    }

    fn look_at_clock(&mut self, now: u64, limits: &GoBackLimits) {
        match self.wait {
            GoBackWait::Answer(at) if now >= at => {
                self.dead = self.is_silent(now, limits);
                self.tries += 1;
                self.window = (self.window / 2).max(1);
                self.rewind(now, limits);
            }
            GoBackWait::Call(at) if now >= at => {
                self.dead = self.is_silent(now, limits);
                self.tries += 1;
                self.rewind(now, limits);
            }
            _ => {}
        }
    }

    /// Returns true if the peer counts as dead. Answers may be late because links are busy, so many of them must be missing too.
    const fn is_silent(&self, now: u64, limits: &GoBackLimits) -> bool {
        now.saturating_sub(self.heard) >= limits.silence && self.tries >= TRIES_MIN
    }

    fn acknowledge(&mut self, expected: u64, limits: &GoBackLimits, done: &mut Vec<T>) {
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

    /// Sends again from the first packet on.
    fn rewind(&mut self, now: u64, limits: &GoBackLimits) {
        self.cursor = self.first;
        self.await_answer(now, limits);
    }

    /// Sets the deadline for an answer. It counts from when the last packet in flight is due, because packets may wait long for a
    /// link and sending them again would not help.
    fn await_answer(&mut self, now: u64, limits: &GoBackLimits) {
        let slack = self.patience(limits.slack, limits.silence / SILENCE_PARTS, limits);
        self.wait = GoBackWait::Answer(self.due.max(now).saturating_add(slack));
    }

    fn await_call(&mut self, wait: u64, now: u64, limits: &GoBackLimits) {
        self.cursor = self.first;
        self.window = 1;
        let at = now.saturating_add(wait);
        self.wait = GoBackWait::Call(at.max(self.due.saturating_add(limits.slack)));
    }

    /// Returns a wait that doubles with every try, up to `longest`, and is randomly up to a quarter shorter.
    fn patience(&self, base: u64, longest: u64, limits: &GoBackLimits) -> u64 {
        let doubled = base.saturating_mul(1 << self.tries.min(TRIES_DOUBLING));
        let wait = doubled.min(longest.max(base));
        let salt = self.first.wrapping_mul(31) ^ u64::from(self.tries);
        wait - SeededRandom::new(limits.seed ^ salt).within(0..wait / 4 + 1)
    }
}

/// Converts a number relative to the first one to an index.
fn position(ahead: u64) -> usize {
    usize::try_from(ahead).unwrap_or(usize::MAX)
}

/// Initial window, before anything is known about the peer.
const WINDOW_FIRST: u32 = 16;
/// Most doublings of a wait. 2⁶ times the first wait is as long as a receiver with a thousand senders takes to call each of them.
const TRIES_DOUBLING: u32 = 6;
/// A single wait for an answer is at most this part of the silence limit, so there are at least that many tries. At a loss of one
/// half, they all fail once in 2⁶⁴ cases.
const SILENCE_PARTS: u64 = 64;
/// A single wait for a call is at most this part of the silence limit, in case the call was lost.
const CALL_PARTS: u64 = 16;
/// Least number of tries before a peer counts as dead, because long waits for links also look like silence. With 4 096 ranks and
/// 20 % loss, nine tries fail for some pair now and then.
const TRIES_MIN: u32 = 48;
