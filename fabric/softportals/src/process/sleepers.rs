//! Accounting of threads that sleep on a condition variable and need the lock when notified.
//!
//! A condition variable hides that its notified threads wait for the lock. So the notifying thread counts them as waiting, and
//! each stops counting once it has the lock.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of sleeping threads, protected by the lock.
#[derive(Debug, Default)]
pub(super) struct NicSleepers {
    all: u32,
    /// Threads that were notified and have not had the lock since.
    called: u32,
}

impl NicSleepers {
    pub(super) const fn count(&self) -> u32 {
        self.all
    }

    /// Counts this thread as sleeping.
    pub(super) const fn enter(&mut self) {
        self.all += 1;
    }

    /// Stops counting this thread as sleeping.
    pub(super) const fn leave(&mut self) {
        self.all -= 1;
    }

    /// Counts all sleepers as waiting for the lock, because they are being notified.
    pub(super) fn call(&mut self, kept_waiting: &AtomicU32) {
        kept_waiting.fetch_add(self.all - self.called, Relaxed);
        self.called = self.all;
    }

    /// Counts one waiting thread less, because a sleeper has the lock again.
    ///
    /// A thread that woke without a notification takes the place of a notified one, which is then not counted when it gets the
    /// lock.
    pub(super) fn come_back(&mut self, kept_waiting: &AtomicU32) {
        if let Some(others) = self.called.checked_sub(1) {
            self.called = others;
            kept_waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicU32, NicSleepers, Relaxed};

    #[test]
    fn a_notified_sleeper_waits_until_it_has_the_lock_and_is_counted_once() {
        let (mut sleepers, waiting) = (NicSleepers::default(), AtomicU32::new(7));
        let waits = || waiting.load(Relaxed) - 7;
        (0..3).for_each(|_| sleepers.enter());
        assert_eq!(waits(), 0);
        sleepers.call(&waiting);
        sleepers.call(&waiting);
        assert_eq!(waits(), 3);
        sleepers.come_back(&waiting);
        sleepers.leave();
        assert_eq!((waits(), sleepers.count()), (2, 2));
        sleepers.enter(); // wakes without a notification
        sleepers.come_back(&waiting);
        sleepers.leave();
        sleepers.call(&waiting);
        assert_eq!(waits(), 2, "both are in flight");
        for left in [1, 0, 0] {
            sleepers.come_back(&waiting);
            assert_eq!(waits(), left);
        }
    }
}
