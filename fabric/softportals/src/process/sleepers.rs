//! Threads that sleep until there is news, and wait for the lock when they are called.
//!
//! A condition variable has them take the lock where nobody sees that they wait for it: so who calls them counts them, and each
//! that has the lock again is counted no more.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many there are, behind the lock.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    all: u32,
    /// Of them, those that were called and have not had the lock since.
    called: u32,
}

impl Sleepers {
    pub(super) const fn count(&self) -> u32 {
        self.all
    }

    /// This thread is going to sleep.
    pub(super) const fn enter(&mut self) {
        self.all += 1;
    }

    /// It sleeps no more.
    pub(super) const fn leave(&mut self) {
        self.all -= 1;
    }

    /// All are called. From here on they are among those who wait.
    pub(super) fn call(&mut self, kept_waiting: &AtomicU32) {
        kept_waiting.fetch_add(self.all - self.called, Relaxed);
        self.called = self.all;
    }

    /// One of them has the lock. Who came without a call stands for one that was called, which is not counted when it comes.
    pub(super) fn come_back(&mut self, kept_waiting: &AtomicU32) {
        if let Some(others) = self.called.checked_sub(1) {
            self.called = others;
            kept_waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicU32, Relaxed, Sleepers};

    #[test]
    fn who_was_called_waits_until_he_has_the_lock_and_is_counted_once() {
        let (mut sleepers, waiting) = (Sleepers::default(), AtomicU32::new(7));
        let waits = || waiting.load(Relaxed) - 7;
        (0..3).for_each(|_| sleepers.enter());
        assert_eq!(waits(), 0);
        sleepers.call(&waiting);
        sleepers.call(&waiting);
        assert_eq!(waits(), 3);
        sleepers.come_back(&waiting);
        sleepers.leave();
        assert_eq!((waits(), sleepers.count()), (2, 2));
        sleepers.enter(); // and comes without having been called
        sleepers.come_back(&waiting);
        sleepers.leave();
        sleepers.call(&waiting);
        assert_eq!(waits(), 2, "both are under way");
        for left in [1, 0, 0] {
            sleepers.come_back(&waiting);
            assert_eq!(waits(), left);
        }
    }
}
