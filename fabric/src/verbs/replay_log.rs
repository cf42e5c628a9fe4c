//! Messages and control words of a link that may have to be sent again by another lane. Pure.
//!
//! A queue pair delivers a prefix of what was posted to it, in order. So both ends number their messages from 0, whatever the
//! lane. The end that has closed a lane says how many have arrived, and the other goes on with the next one. Messages that the
//! peer's device has acknowledged have arrived, and are dropped.

use std::collections::VecDeque;

/// Messages that were sent and are not known to have arrived, and how many have arrived.
#[derive(Debug, Default)]
pub(super) struct ReplayLog {
    kept: VecDeque<ReplayEntry>,
    /// Messages sent before the first one that is kept.
    done: u64,
    /// Messages that have arrived, as the peer says.
    confirmed: u64,
    /// Messages of the peer that have arrived here.
    pub(super) received: u64,
}

/// The bytes of a message or control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplayEntry {
    pub(super) chunk: u32,
    pub(super) len: usize,
}

/// The peer's number is impossible: more have arrived than were sent, or one is missing that the device has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap;

impl ReplayLog {
    /// Keeps one that is being sent. Returns how many were sent with it.
    pub(super) fn keep(&mut self, one: ReplayEntry) -> u64 {
        self.kept.push_back(one);
        self.sent()
    }

    /// Returns how many were sent.
    pub(super) fn sent(&self) -> u64 {
        self.done + self.kept.len() as u64
    }

    /// Returns the chunk of one more of the first `sent`, which have arrived, if one is left.
    pub(super) fn pop_done(&mut self, sent: u64) -> Option<u32> {
        if self.done >= sent {
            return None;
        }
        let first = self.kept.pop_front()?;
        self.done += 1;
        Some(first.chunk)
    }

    /// Records how many have arrived, as the peer says. Earlier reports may come later.
    pub(super) fn confirm(&mut self, heard: u64) {
        self.confirmed = self.confirmed.max(heard);
    }

    /// Returns how many have arrived for sure, when nothing can arrive any more.
    ///
    /// # Errors
    /// The peer's number cannot be right.
    pub(super) fn confirmed(&self) -> Result<u64, Gap> {
        let possible = self.done..=self.sent();
        possible
            .contains(&self.confirmed)
            .then_some(self.confirmed)
            .ok_or(Gap)
    }

    /// Returns the messages that must be sent again, and how many were sent up to the last.
    pub(super) fn rest(&self) -> (Vec<ReplayEntry>, u64) {
        (self.kept.iter().copied().collect(), self.sent())
    }

    /// Returns all chunks, because nothing is sent again any more.
    pub(super) fn clear(&mut self) -> Vec<u32> {
        self.done = self.sent();
        self.kept.drain(..).map(|one| one.chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Gap, ReplayEntry, ReplayLog};

    fn of(chunks: &[u32]) -> ReplayLog {
        let mut trail = ReplayLog::default();
        for &chunk in chunks {
            trail.keep(ReplayEntry { chunk, len: 1 });
        }
        trail
    }

    fn chunks_until(trail: &mut ReplayLog, sent: u64) -> Vec<u32> {
        std::iter::from_fn(|| trail.pop_done(sent)).collect()
    }

    #[test]
    fn what_was_acknowledged_is_forgotten_and_the_rest_goes_again_in_its_order() {
        let mut trail = of(&[5, 6, 7, 8]);
        assert_eq!(chunks_until(&mut trail, 2), [5, 6]);
        trail.confirm(3);
        trail.confirm(1); // an earlier report
        let confirmed = trail.confirmed().unwrap();
        assert_eq!(chunks_until(&mut trail, confirmed), [7]);
        let (rest, sent) = trail.rest();
        assert_eq!((rest, sent), (vec![ReplayEntry { chunk: 8, len: 1 }], 4));
        assert_eq!(trail.keep(ReplayEntry { chunk: 9, len: 1 }), 5);
    }

    #[test]
    fn a_peer_that_has_heard_less_than_its_device_said_or_more_than_was_sent_is_not_believed() {
        let mut trail = of(&[1, 2, 3]);
        assert_eq!(chunks_until(&mut trail, 2), [1, 2]);
        for (heard, expected) in [(1, Err(Gap)), (2, Ok(2)), (3, Ok(3)), (4, Err(Gap))] {
            trail.confirm(heard);
            assert_eq!(trail.confirmed(), expected);
        }
    }

    #[test]
    fn when_nothing_goes_any_more_all_chunks_are_free_once() {
        let mut trail = of(&[1, 2]);
        assert_eq!(trail.clear(), [1, 2]);
        assert_eq!(trail.clear(), []);
        assert_eq!(trail.pop_done(2), None);
    }
}
