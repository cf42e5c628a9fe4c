//! The lock of the engine, and of programs cached for collectives. Held for a turn or a submission, and nearly always
//! free.
//!
//! Taking it is one atomic instruction, and releasing it a plain store. A `std` mutex needs a second atomic instruction
//! for the release, to find out whether a thread sleeps on it. That one waits until the slot just written to a peer has
//! left this processor, which made it the most expensive instruction of a send.
//!
//! A thread that looks for messages again and again has the lock nearly always. So a thread that waits for the lock says so, and
//! the other one [gives way](SpinLock::give_way).
#![expect(unsafe_code, reason = "lends the value that the flag guards")]

use std::{
    cell::UnsafeCell,
    fmt, hint,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
};

/// Number of looks before a waiter yields its processor. A holder that is running has finished by then.
const LOOKS: u32 = 100;

/// A value for one thread at a time. `held` is set exactly while a [`SpinGuard`] exists.
pub struct SpinLock<T> {
    held: AtomicBool,
    /// True if a thread waits. It may be late in both directions, and nothing but fairness depends on it.
    wanted: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is lent to one thread at a time, so it only has to be `Send`.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Guard that holds the lock.
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
    /// Makes the guard `Sync` only if the value is.
    lends: PhantomData<&'a mut T>,
}

impl<T> SpinLock<T> {
    /// Creates a free lock.
    pub const fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free, and takes it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        SpinGuard {
            lock: self,
            lends: PhantomData,
        }
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.held
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_ok()
    }

    /// Returns true if another thread waits for the lock.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Lets a waiting thread have the lock first. For a thread that is about to take the lock again, and has no work yet.
    #[inline]
    pub(crate) fn give_way(&self) {
        if self.is_wanted() {
            self.wait_for_taker();
        }
    }

    #[cold]
    fn wait_for_taker(&self) {
        for _ in 0..LOOKS {
            hint::spin_loop();
            if !self.is_wanted() {
                return;
            }
        }
        // The waiting thread does not run, perhaps because this thread has its processor. It will say anew that it waits when it
        // runs. Until then, this thread would lose the time of all these looks each time it is about to take the lock.
        self.wanted.store(false, Relaxed);
        thread::yield_now();
    }

    #[cold]
    fn wait(&self) {
        loop {
            // Said anew in each round, because a thread that gets the lock takes back what other threads have said.
            self.wanted.store(true, Relaxed);
            for _ in 0..LOOKS {
                // Look before trying: a failed exchange would take the cache line away from the holder.
                if !self.held.load(Relaxed) && self.try_take() {
                    self.wanted.store(false, Relaxed);
                    return;
                }
                hint::spin_loop();
            }
            // The holder may be waiting for this very processor.
            thread::yield_now();
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(false, Release);
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpinLock")
    }
}

impl<T> fmt::Debug for SpinGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpinGuard")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let lock = SpinLock::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn a_thread_that_takes_the_lock_again_and_again_gives_way() {
        const TAKES: u32 = 1_000;
        let (lock, is_over) = (SpinLock::new(0_u32), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..TAKES {
                    *lock.lock() += 1;
                }
                is_over.store(true, Relaxed);
            });
            while !is_over.load(Relaxed) {
                let held = lock.lock();
                // A thread that looks for messages has the lock for as long as it likes, unless another one wants it.
                while !lock.is_wanted() && !is_over.load(Relaxed) {
                    hint::spin_loop();
                }
                drop(held);
                lock.give_way();
            }
        });
        assert_eq!(*lock.lock(), TAKES);
        assert!(!lock.is_wanted());
    }

    #[test]
    fn a_thread_gives_way_once_to_one_that_does_not_run() {
        let lock = SpinLock::new(());
        lock.wanted.store(true, Relaxed);
        lock.give_way();
        assert!(!lock.is_wanted());
    }

    #[test]
    fn a_panic_lets_go() {
        let lock = SpinLock::new(0);
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("while held");
        }));
        assert!(held.is_err());
        *lock.lock() = 1;
    }
}
