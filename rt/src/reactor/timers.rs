//! A queue of deadlines. Pure: the caller passes the time.

use std::collections::BTreeMap;

use crate::clock::ClockTime;

/// Deadlines, each with a key that the caller chooses. Every call costs O(log n).
#[derive(Debug, Default)]
pub(crate) struct Timers {
    pending: BTreeMap<TimerId, u64>,
    made: u64,
}

/// Id of a pending timer. Ids are never reused, so a stale one cancels nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId {
    deadline: ClockTime,
    // The number is the second field, so that timers with the same deadline expire in the order in which they were made.
    number: u64,
}

impl Timers {
    /// Adds a timer that returns `key` once `deadline` has passed.
    pub(crate) fn insert(&mut self, deadline: ClockTime, key: u64) -> TimerId {
        let id = TimerId {
            deadline,
            number: self.made,
        };
        self.made += 1;
        self.pending.insert(id, key);
        id
    }

    /// Cancels a timer. Returns false if it has expired or been canceled before.
    pub(crate) fn cancel(&mut self, id: TimerId) -> bool {
        self.pending.remove(&id).is_some()
    }

    /// Returns true if no timer is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<ClockTime> {
        self.pending.first_key_value().map(|(id, _)| id.deadline)
    }

    /// Returns the keys of all timers, earliest first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        self.pending.values().copied()
    }

    /// Removes and returns the key of the earliest timer whose deadline is `now` or before. Call this until it returns
    /// `None`.
    pub(crate) fn pop_expired(&mut self, now: ClockTime) -> Option<u64> {
        let first = self.pending.first_entry()?;
        (first.key().deadline <= now).then(|| first.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::Timers;
    use crate::clock::ClockTime;
    use proptest::prelude::{Strategy, any, prop, proptest};

    const fn at(nanos: u64) -> ClockTime {
        ClockTime::from_nanos(nanos)
    }

    #[test]
    fn nothing_is_due_before_its_deadline_and_everything_is_at_it() {
        let mut timers = Timers::default();
        timers.insert(at(5), 1);
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop_expired(at(4)), None);
        assert_eq!(timers.pop_expired(at(5)), Some(1));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn timers_with_one_deadline_expire_in_the_order_they_were_made() {
        let mut timers = Timers::default();
        for key in [3, 1, 2] {
            timers.insert(at(9), key);
        }
        assert_eq!(
            [(); 3].map(|()| timers.pop_expired(at(9))),
            [Some(3), Some(1), Some(2)]
        );
    }

    #[test]
    fn a_timer_is_cancelled_once_and_a_stale_id_cancels_nothing() {
        let mut timers = Timers::default();
        let first = timers.insert(at(1), 1);
        let second = timers.insert(at(1), 2);
        assert!(timers.cancel(first));
        assert!(!timers.cancel(first));
        assert_eq!(timers.pop_expired(at(1)), Some(2));
        assert!(!timers.cancel(second));
    }

    proptest! {
        #[test]
        fn what_is_not_cancelled_expires_once_in_order(
            timers_in in prop::collection::vec((0_u64..100, any::<bool>()), 0..200),
            steps in prop::collection::vec(0_u64..20, 0..20).prop_map(|steps| [steps, vec![200]].concat()),
        ) {
            let mut timers = Timers::default();
            let ids: Vec<_> = timers_in.iter().zip(0..).map(|(&(due, _), key)| timers.insert(at(due), key)).collect();
            for (id, _) in ids.iter().zip(&timers_in).filter(|(_, (_, cancelled))| *cancelled) {
                assert!(timers.cancel(*id));
            }
            let mut expected: Vec<_> = timers_in.iter().zip(0_u64..).filter(|((_, cancelled), _)| !cancelled).collect();
            expected.sort_by_key(|&(&(due, _), key)| (due, key));
            let (mut now, mut popped) = (0, Vec::new());
            for step in steps {
                now += step;
                popped.extend(std::iter::from_fn(|| timers.pop_expired(at(now))));
                assert!(timers.next().is_none_or(|next| next > at(now)));
            }
            assert_eq!(popped, expected.iter().map(|&(_, key)| key).collect::<Vec<_>>());
        }
    }
}
