//! Short messages to a peer without a connection: parcels, over datagrams that may be lost, doubled and late.
//!
//! Go-back-n (spec P15): parcels are numbered, the receiver takes them in their order only, and answers with the number that is
//! to come next. Where no answer comes, the oldest leaves again alone; the answer to it tells which others are missing. Both
//! directions of a pair are independent, and connections that come and go change nothing: who has one sends by it once all
//! parcels are answered, and who has lost it in good order sends parcels again.

use std::collections::VecDeque;

use super::Local;

/// Parcels to and from one peer, from this side. Times are picoseconds, as in [`Connection`](super::Connection).
#[derive(Clone, Debug, Default)]
pub(crate) struct Parcels {
    /// Those without an answer, the oldest first.
    kept: VecDeque<Box<[u8]>>,
    /// The number of the oldest; of the next one, if there is none.
    first: u32,
    /// How many of them have left since the oldest did for the last time, and how many ever have.
    left: usize,
    known: usize,
    /// No answer came in time.
    probing: bool,
    deadline: Option<u64>,
    tries: u16,
    /// The number that is to come from the peer next.
    expected: u32,
    /// What was said since the peer was last worth a connection.
    said: u32,
    said_bytes: u64,
}

impl Parcels {
    /// Whether there is room for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.kept.len() < KEPT_MAX
    }

    /// Whether the peer has all of them.
    pub(crate) fn is_answered(&self) -> bool {
        self.kept.is_empty()
    }

    /// Adds one. Whether the peer is spoken to so much that a connection pays (spec P9).
    pub(crate) fn push(&mut self, parcel: Box<[u8]>) -> bool {
        self.said += 1;
        self.said_bytes += parcel.len() as u64;
        self.kept.push_back(parcel);
        let much = self.said >= SAID_MAX || self.said_bytes >= SAID_BYTES_MAX;
        if much {
            (self.said, self.said_bytes) = (0, 0);
        }
        much
    }

    /// Whether one is to leave now.
    pub(crate) fn has_next(&self) -> bool {
        let flying_max = if self.probing { 1 } else { FLYING_MAX };
        self.left < self.kept.len().min(flying_max)
    }

    /// The next to leave, with its number and place for that.
    pub(crate) fn next(&mut self, local: &Local, now: u64) -> Option<(u32, &mut [u8])> {
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

    /// The peer has all before this number. Whether that is news.
    pub(crate) fn handle_answer(&mut self, next: u32, local: &Local, now: u64) -> bool {
        let count = next.wrapping_sub(self.first) as usize;
        if count == 0 || count > self.known {
            return false; // an old one, or none of ours
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

    /// When something leaves again, if no answer comes.
    pub(crate) const fn next_timeout(&self) -> Option<u64> {
        self.deadline
    }

    /// It is so late. Whether the peer may still be there.
    pub(crate) fn handle_time(&mut self, local: &Local, now: u64) -> bool {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.tries += 1;
            (self.left, self.probing, self.deadline) = (0, true, None);
        }
        self.tries < local.limits.tries_max
    }

    fn wait(&mut self, local: &Local, now: u64) {
        self.deadline = Some(now + local.limits.wait(self.tries, local.seed));
    }

    /// One came. Whether it is to be handed on; it has come before otherwise, or one before it is missing.
    pub(crate) fn take(&mut self, number: u32) -> bool {
        let next = number == self.expected;
        if next {
            self.expected = self.expected.wrapping_add(1);
        }
        next
    }

    /// The answer to all that came.
    pub(crate) const fn expected(&self) -> u32 {
        self.expected
    }

    /// The number of the next to be added.
    #[cfg(test)]
    fn next_number(&self) -> u32 {
        number(self.first, self.kept.len())
    }

    /// Nothing more leaves: the peer is gone.
    pub(crate) fn clear(&mut self) {
        self.first = number(self.first, self.kept.len());
        self.kept.clear();
        (self.left, self.known, self.deadline) = (0, 0, None);
    }
}

fn number(first: u32, nth: usize) -> u32 {
    first.wrapping_add(u32::try_from(nth).unwrap_or(u32::MAX))
}

/// Parcels without an answer, and those of them that leave without one.
const KEPT_MAX: usize = 32;
const FLYING_MAX: usize = 16;
/// What goes to a peer before a connection pays.
const SAID_MAX: u32 = 16;
const SAID_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::{FLYING_MAX, KEPT_MAX, Parcels, SAID_MAX};
    use crate::{
        connect::{End, Limits, Local},
        random::Random,
    };

    const MS: u64 = 1_000_000_000;

    fn local() -> Local {
        let end = End {
            rank: 0,
            incarnation: 1,
        };
        Local {
            end,
            limits: Limits::default(),
            seed: 1,
        }
    }

    /// Who sent it, a parcel's number and what it says, and the answer.
    type Flying = (usize, Option<(u32, u32)>, u32);

    /// Two sides, and what is under way between them.
    struct Pair {
        sides: [Parcels; 2],
        pushed: [u32; 2],
        heard: [Vec<u32>; 2],
        wire: Vec<Flying>,
        now: u64,
    }

    impl Pair {
        fn new(first: u32) -> Self {
            let side = || {
                let mut side = Parcels::default();
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

        /// One of those under way comes.
        fn hear(&mut self, nth: usize) {
            let (from, parcel, answer) = self.wire.remove(nth);
            let to = 1 - from;
            self.sides[to].handle_answer(answer, &local(), self.now);
            if let Some((number, said)) = parcel {
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
            let mut random = Random::new(seed);
            // Numbers go round.
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
        assert!(pair.sides[0].is_answered());
        assert_eq!(pair.sides[0].next_timeout(), None);
    }

    #[test]
    fn who_is_silent_is_asked_with_one_parcel_at_a_time_and_given_up_in_the_end() {
        let mut side = Parcels::default();
        while side.has_room() {
            side.push([0; 8].into());
        }
        let local = local();
        let leave = |side: &mut Parcels, now| {
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
        let mut side = Parcels::default();
        for _ in 0..KEPT_MAX {
            side.push([0; 8].into());
        }
        while side.next(&local, 0).is_some() {}
        let flying = u32::try_from(FLYING_MAX).unwrap();
        for wrong in [0, flying + 1, side.next_number(), u32::MAX] {
            assert!(!side.handle_answer(wrong, &local, 0), "{wrong}");
        }
        assert!(side.handle_answer(flying, &local, 0));
        assert!(side.has_next() && !side.is_answered());
    }

    #[test]
    fn a_peer_that_much_is_said_to_is_worth_a_connection() {
        let mut side = Parcels::default();
        let much = (1..=SAID_MAX).map(|_| side.push([0; 8].into()));
        assert_eq!(much.filter(|much| *much).count(), 1);
        let mut side = Parcels::default();
        assert!(side.push(vec![0; 64 << 10].into()));
    }
}
