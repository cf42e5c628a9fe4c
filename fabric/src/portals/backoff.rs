//! Backoff timer for resources whose availability is never signaled. The code is pure.
//!
//! A library does not signal when it has room or releases an object, and a peer does not signal when it has an entry. A thread
//! that waits for one of these sleeps briefly at first and then longer each time. So each sleep is at most 64 µs longer than the
//! wait so far, and at most 4 ms. A thread that makes turns without sleeping retries in its turns.

/// Backoff state of a rank.
#[derive(Debug, Default)]
pub(super) struct BackoffTimer {
    /// Consecutive sleeps that lasted to their end.
    count: u32,
    /// End of the current sleep, in picoseconds.
    until: Option<u64>,
    /// Turns since the last one with an expensive retry.
    turns: u32,
    /// True if this turn makes expensive retries: those that cost a packet, or a call that is likely to be refused.
    asks: bool,
    /// Turns that could have been made during the sleep that this turn has ended.
    slept: u32,
    /// Same as `slept`, until the first refusal of this turn has taken it as its weight.
    uncounted: u32,
}

impl BackoffTimer {
    /// Begins a turn. The clock is read only if there is a sleep.
    pub(super) fn begin_turn(&mut self, now: impl FnOnce() -> u64) {
        self.slept = 0;
        if self.until.is_some_and(|until| now() >= until) {
            self.until = None;
            self.slept = NAP_US << self.count;
            self.count = (self.count + 1).min(LONGER_MAX);
        }
        self.uncounted = self.slept;
        self.turns += 1;
        self.asks = self.slept > 0 || self.turns >= PATIENCE;
        if self.asks {
            self.turns = 0;
        }
    }

    /// Begins a sleep, unless one is in progress, and returns its end.
    pub(super) fn begin(&mut self, now: u64) -> u64 {
        let len = PS_PER_US * u64::from(NAP_US << self.count);
        *self.until.get_or_insert_with(|| now.saturating_add(len))
    }

    /// Returns true if something was waited for since the last [`Self::reset`].
    pub(super) const fn have_begun(&self) -> bool {
        self.count > 0 || self.until.is_some()
    }

    /// Ends the wait: the next sleep is short again.
    pub(super) const fn reset(&mut self) {
        self.count = 0;
        self.until = None;
    }

    /// Returns true if this turn makes expensive retries.
    pub(super) const fn is_retry_turn(&self) -> bool {
        self.asks
    }

    /// Returns the number of turns that a refusal in this turn counts for.
    pub(super) const fn weight(&self) -> u32 {
        self.slept + 1
    }

    /// Returns the number of turns that a refusal counts for if it is retried only in turns that [ask](Self::asks).
    pub(super) const fn weight_of_asking(&self) -> u32 {
        self.slept + PATIENCE
    }

    /// Returns [`weight`](Self::weight) for the first refusal of this turn, and one for each further refusal.
    pub(super) fn weight_once(&mut self) -> u32 {
        std::mem::take(&mut self.uncounted) + 1
    }
}

/// First sleep: 64 µs, about what falling asleep and waking up cost. A turn takes about 1 µs.
const NAP_US: u32 = 64;
/// Most doublings of a sleep, which is then 4 ms long. Longer waits are for a peer that may be dead or stopped.
const LONGER_MAX: u32 = 6;
const PS_PER_US: u64 = 1_000_000;
/// Turns between expensive retries. A retry at a peer costs both ranks a packet, and a refused call is only worth repeating after
/// some completions.
const PATIENCE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::{BackoffTimer, PATIENCE, PS_PER_US};

    #[test]
    fn naps_are_longer_and_longer_until_nothing_is_waited_for() {
        let mut timer = BackoffTimer::default();
        let mut now = 5 * PS_PER_US;
        for us in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            let until = timer.begin(now);
            assert_eq!(until - now, us * PS_PER_US);
            timer.begin_turn(|| until - 1);
            assert!(
                !timer.is_retry_turn() && timer.weight() == 1,
                "it is not over"
            );
            assert_eq!(timer.begin(now + 1), until, "one begins in another");
            timer.begin_turn(|| until);
            assert!(timer.is_retry_turn());
            assert_eq!(u64::from(timer.weight()), us + 1);
            assert_eq!(u64::from(timer.weight_once()), us + 1);
            assert_eq!(timer.weight_once(), 1, "counted twice");
            now = until;
        }
        timer.reset();
        assert!(!timer.have_begun());
        assert_eq!(timer.begin(now) - now, 64 * PS_PER_US);
    }

    #[test]
    fn a_rank_that_does_not_sleep_retries_every_few_turns_without_reading_the_clock() {
        let mut timer = BackoffTimer::default();
        let asked = (0..10 * PATIENCE).filter(|_| {
            timer.begin_turn(|| panic!("nothing has begun"));
            timer.is_retry_turn()
        });
        assert_eq!(asked.count(), 10);
    }
}
