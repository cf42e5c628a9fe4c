//! Datagram messages: short messages to a peer without a connection, over datagrams that may be lost, duplicated or late.
//!
//! The protocol is go-back-n: messages are numbered, the receiver takes them only in order, and answers with the number that it
//! expects next. If no answer comes, the oldest message alone is sent again, and the answer to it tells which others are missing.
//! Both directions of a pair are independent, and connections that come and go change nothing. A rank with a connection uses it
//! once all datagram messages are acknowledged. A rank whose connection was drained in good order sends datagram messages again.

use std::collections::VecDeque;

use super::ConnectConfig;

/// Datagram messages to and from one peer, on this side. Times are picoseconds, as in [`PeerConnection`](super::PeerConnection).
#[derive(Clone, Debug, Default)]
pub(crate) struct DatagramMessages {
    /// Messages that are not acknowledged, the oldest first.
    kept: VecDeque<Box<[u8]>>,
    /// Number of the oldest one, or of the next one if there is none.
    first: u32,
    /// Messages among these that were sent since the oldest was sent last, and those that were ever sent.
    left: usize,
    known: usize,
    /// True if no answer came in time, so that only the oldest is sent.
    probing: bool,
    deadline: Option<u64>,
    tries: u16,
    /// Number that is expected from the peer next.
    expected: u32,
    /// Messages and bytes sent since the peer was last found worth a connection.
    said: u32,
    said_bytes: u64,
}

impl DatagramMessages {
    /// Returns true if there is room for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.kept.len() < KEPT_MAX
    }

    /// Returns true if the peer has acknowledged all messages.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.kept.is_empty()
    }

    /// Adds a message. Returns true if so much was sent to the peer that a connection pays.
    pub(crate) fn push(&mut self, message: Box<[u8]>) -> bool {
        self.said += 1;
        self.said_bytes += message.len() as u64;
        self.kept.push_back(message);
        let much = self.said >= SAID_MAX || self.said_bytes >= SAID_BYTES_MAX;
        if much {
            (self.said, self.said_bytes) = (0, 0);
        }
        much
    }

    /// Returns true if a message must leave now.
    pub(crate) fn has_next(&self) -> bool {
        let flying_max = if self.probing { 1 } else { FLYING_MAX };
        self.left < self.kept.len().min(flying_max)
    }

    /// Returns the next message to leave, and the number to write into it.
    pub(crate) fn next(&mut self, local: &ConnectConfig, now: u64) -> Option<(u32, &mut [u8])> {
        if !self.has_next() {
            return None;
        }
        let nth = self.left;
        self.left += 1;
        self.known = self.known.max(self.left);
        if self.deadline.is_none() {
            self.wait(local, now);
        }
        Some((number(self.first, nth), &mut self.kept[nth]))
    }

    /// Handles the acknowledgment of all messages before this number. Returns false if that was known.
    pub(crate) fn handle_ack(&mut self, next: u32, local: &ConnectConfig, now: u64) -> bool {
        let count = next.wrapping_sub(self.first) as usize;
        if count == 0 || count > self.known {
            return false; // an old one, or an impossible one
        }
        self.kept.drain(..count);
        self.first = next;
        self.left = self.left.saturating_sub(count);
        self.known -= count;
        (self.probing, self.tries) = (false, 0);
        self.deadline = None;
        if self.left > 0 {
            self.wait(local, now);
        }
        true
    }

    /// Returns when a message is sent again, if no acknowledgment comes.
    pub(crate) const fn next_timeout(&self) -> Option<u64> {
        self.deadline
    }

    /// Handles that time has passed. Returns false if the peer did not answer any of the tries.
    pub(crate) fn handle_time(&mut self, local: &ConnectConfig, now: u64) -> bool {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.tries += 1;
            (self.left, self.probing, self.deadline) = (0, true, None);
        }
        self.tries < local.limits.tries_max
    }

    fn wait(&mut self, local: &ConnectConfig, now: u64) {
        self.deadline = Some(now + local.limits.wait(self.tries, local.seed));
    }

    /// Takes a message that has arrived. Returns false if it has come before, or if an earlier one is missing.
    pub(crate) fn take(&mut self, number: u32) -> bool {
        let next = number == self.expected;
        if next {
            self.expected = self.expected.wrapping_add(1);
        }
        next
    }

    /// Returns the acknowledgment of all messages that have arrived.
    pub(crate) const fn expected(&self) -> u32 {
        self.expected
    }

    /// Returns the number of the next message to be added.
    #[cfg(test)]
    fn next_number(&self) -> u32 {
        number(self.first, self.kept.len())
    }

    /// Drops all messages, because the peer is down.
    pub(crate) fn clear(&mut self) {
        self.first = number(self.first, self.kept.len());
        self.kept.clear();
        (self.left, self.known, self.deadline) = (0, 0, None);
    }
}

fn number(first: u32, nth: usize) -> u32 {
    first.wrapping_add(u32::try_from(nth).unwrap_or(u32::MAX))
}

/// Maximum number of messages that are not acknowledged, and of those among them that are in flight.
const KEPT_MAX: usize = 32;
const FLYING_MAX: usize = 16;
/// Messages and bytes that are sent to a peer before a connection pays.
const SAID_MAX: u32 = 16;
const SAID_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::{DatagramMessages, FLYING_MAX, KEPT_MAX, SAID_MAX};
    use crate::{
        connect::{ConnectConfig, ConnectLimits, RankIncarnation},
        driver::WorldRank,
        random::SeededRandom,
    };

    const MS: u64 = 1_000_000_000;

    fn local() -> ConnectConfig {
        let end = RankIncarnation {
            rank: WorldRank(0),
            incarnation: 1,
        };
        ConnectConfig {
            end,
            limits: ConnectLimits::default(),
            seed: 1,
        }
    }

    /// Sender, number and content of a message, and the acknowledgment.
    type Flying = (usize, Option<(u32, u32)>, u32);

    /// Two sides, and the datagrams in flight between them.
    struct Pair {
        sides: [DatagramMessages; 2],
        pushed: [u32; 2],
        heard: [Vec<u32>; 2],
        wire: Vec<Flying>,
        now: u64,
    }

    impl Pair {
        fn new(first: u32) -> Self {
            let side = || {
                let mut side = DatagramMessages::default();
                (side.first, side.expected) = (first, first);
                side
            };
            Self {
                sides: [side(), side()],
                pushed: [0; 2],
                heard: [Vec::new(), Vec::new()],
                wire: Vec::new(),
                now: 0,
            }
        }

        fn push(&mut self, side: usize) {
            if self.sides[side].has_room() {
                let said = self.pushed[side].to_le_bytes();
                self.sides[side].push(said.into());
                self.pushed[side] += 1;
            }
        }

        fn send(&mut self, side: usize) {
            let answer = self.sides[side].expected();
            while let Some((number, bytes)) = self.sides[side].next(&local(), self.now) {
                let said = u32::from_le_bytes((*bytes).try_into().unwrap());
                self.wire.push((side, Some((number, said)), answer));
            }
        }

        /// Delivers a datagram that is in flight.
        fn hear(&mut self, nth: usize) {
            let (from, message, answer) = self.wire.remove(nth);
            let to = 1 - from;
            self.sides[to].handle_ack(answer, &local(), self.now);
            if let Some((number, said)) = message {
                if self.sides[to].take(number) {
                    self.heard[to].push(said);
                }
                self.wire.push((to, None, self.sides[to].expected()));
            }
        }

        fn pass(&mut self, time: u64) {
            self.now += time;
            for side in &mut self.sides {
                assert!(side.handle_time(&local(), self.now), "it gave up");
            }
        }
    }

    #[test]
    fn all_arrive_once_and_in_order_whatever_is_lost_doubled_or_late() {
        for seed in 0..200 {
            let mut random = SeededRandom::new(seed);
            // Numbers wrap around.
            let mut pair = Pair::new(u32::MAX - 20);
            let mut steps = 0;
            while pair.heard.iter().any(|heard| heard.len() < 100) {
                steps += 1;
                assert!(steps < 100_000, "seed {seed}: stuck");
                for side in 0..2 {
                    if pair.pushed[side] < 100 && random.chance(0.5) {
                        pair.push(side);
                    }
                    pair.send(side);
                }
                let count = pair.wire.len() as u64;
                if count > 0 {
                    let nth = usize::try_from(random.within(0..count)).unwrap();
                    match random.within(0..10) {
                        0..3 => drop(pair.wire.remove(nth)),
                        3 => {
                            let twice = pair.wire[nth];
                            pair.wire.push(twice);
                        }
                        _ => pair.hear(nth),
                    }
                }
                pair.pass(random.within(0..2) * MS);
            }
            let all: Vec<u32> = (0..100).collect();
            assert_eq!(pair.heard, [all.clone(), all], "seed {seed}");
        }
    }

    #[test]
    fn where_nothing_is_lost_nothing_leaves_twice_and_all_are_answered() {
        let mut pair = Pair::new(0);
        let mut sent = 0;
        for _ in 0..100 {
            pair.push(0);
            pair.send(0);
            sent += pair.wire.len();
            while !pair.wire.is_empty() {
                pair.hear(0);
            }
            pair.pass(MS);
        }
        assert_eq!((pair.heard[1].len(), sent), (100, 100));
        assert!(pair.sides[0].is_acknowledged());
        assert_eq!(pair.sides[0].next_timeout(), None);
    }

    #[test]
    fn a_silent_peer_gets_one_retransmission_at_a_time_and_is_given_up_in_the_end() {
        let mut side = DatagramMessages::default();
        while side.has_room() {
            side.push([0; 8].into());
        }
        let local = local();
        let leave = |side: &mut DatagramMessages, now| {
            std::iter::from_fn(|| side.next(&local, now).map(|(number, _)| number)).count()
        };
        assert_eq!(leave(&mut side, 0), FLYING_MAX);
        let mut tries = 1;
        while let Some(due) = side.next_timeout() {
            assert!(side.handle_time(&local, due - 1) && !side.has_next());
            if !side.handle_time(&local, due) {
                break;
            }
            tries += 1;
            assert_eq!(leave(&mut side, due), 1);
        }
        assert_eq!(tries, local.limits.tries_max);
    }

    #[test]
    fn an_answer_to_what_never_left_counts_for_nothing() {
        let local = local();
        let mut side = DatagramMessages::default();
        for _ in 0..KEPT_MAX {
            side.push([0; 8].into());
        }
        while side.next(&local, 0).is_some() {}
        let flying = u32::try_from(FLYING_MAX).unwrap();
        for wrong in [0, flying + 1, side.next_number(), u32::MAX] {
            assert!(!side.handle_ack(wrong, &local, 0), "{wrong}");
        }
        assert!(side.handle_ack(flying, &local, 0));
        assert!(side.has_next() && !side.is_acknowledged());
    }

    #[test]
    fn a_peer_that_much_is_said_to_is_worth_a_connection() {
        let mut side = DatagramMessages::default();
        let much = (1..=SAID_MAX).map(|_| side.push([0; 8].into()));
        assert_eq!(much.filter(|much| *much).count(), 1);
        let mut side = DatagramMessages::default();
        assert!(side.push(vec![0; 64 << 10].into()));
    }
}
