//! The seat: the right to sleep on the driver's events, and the queue of threads that wait for it.
//!
//! While the seat is free and a thread waits for it, another thread is awake that will either take the seat, wait for
//! it too, or [`offer`](SeatLock::offer) it before it runs a future or a task, which may compute for long.

use std::sync::{Arc, atomic::Ordering};
#[cfg(feature = "tokio")]
use std::task::{Poll, Waker};

use super::Notifier;
use crate::{
    executor::Parker,
    sync::{AtomicBool, AtomicUsize, Mutex, lock},
};

/// Lock that records which thread has the seat. What a thread does in the seat does not matter here.
#[derive(Debug)]
pub(crate) struct SeatLock<B = Notifier> {
    /// True while a thread has the seat. An atomic, not a mutex: a check whether the seat is free must not acquire the seat,
    /// because a thread that only checks does not wake the next waiter afterwards.
    taken: AtomicBool,
    waiting: Mutex<Vec<Arc<Parker<B>>>>,
    waiting_len: AtomicUsize,
    /// True if a task of another executor waits until a thread leaves the seat.
    #[cfg(feature = "tokio")]
    called: AtomicBool,
    #[cfg(feature = "tokio")]
    caller: Mutex<Option<Waker>>,
}

/// Guard of the seat. Dropping it leaves the seat and wakes a waiting thread.
#[derive(Debug)]
#[must_use = "dropping it leaves the seat"]
pub(crate) struct SeatGuard<'a, B>(&'a SeatLock<B>);

impl<B> SeatLock<B> {
    pub(crate) fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            waiting: Mutex::default(),
            waiting_len: AtomicUsize::new(0),
            #[cfg(feature = "tokio")]
            called: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            caller: Mutex::new(None),
        }
    }

    /// Registers a task to wake when a thread leaves the seat, or when [`wake_next`](Self::wake_next) is called. A later call
    /// replaces an earlier one.
    #[cfg(feature = "tokio")]
    pub(crate) fn register_waiter(&self, waker: &Waker) {
        let before = lock(&self.caller).replace(waker.clone());
        drop(before);
        self.called.store(true, Ordering::SeqCst);
    }

    /// Returns ready when the last `register_waiter` has been answered.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_waiter(&self, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut caller = lock(&self.caller);
        if caller.is_none() {
            return Poll::Ready(());
        }
        let before = caller.replace(waker);
        drop(caller);
        drop(before); // without a lock held, because this may drop the last handle of a task
        Poll::Pending
    }

    /// Unregisters the waiter because its task has ended. The registration may belong to another task by now, which then wakes up
    /// and registers again.
    #[cfg(feature = "tokio")]
    pub(crate) fn unregister_waiter(&self) {
        let caller = lock(&self.caller).take();
        caller.into_iter().for_each(Waker::wake);
    }

    #[cfg(feature = "tokio")]
    fn answer(&self) {
        if self.called.load(Ordering::SeqCst) && self.called.swap(false, Ordering::SeqCst) {
            let caller = lock(&self.caller).take();
            caller.into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) fn take(&self) -> Option<SeatGuard<'_, B>> {
        self.taken
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
            .then(|| SeatGuard(self))
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// Returns true if a thread waits for the seat.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting_len.load(Ordering::SeqCst) > 0
    }

    /// Parks until woken, or until the seat is free. `may` is called once this thread is visible to threads that
    /// [pass](Self::wake_next) the seat.
    pub(crate) fn wait(&self, parker: &Arc<Parker<B>>, may: impl FnOnce() -> bool) {
        lock(&self.waiting).push(Arc::clone(parker));
        // Pairs with the store of `taken` and the load of `waiting_len` by a thread that leaves the seat: one of the
        // two threads sees the other.
        self.waiting_len.fetch_add(1, Ordering::SeqCst);
        if self.is_taken() && may() {
            parker.park();
        }
        lock(&self.waiting).retain(|other| !Arc::ptr_eq(other, parker));
        self.waiting_len.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        // The order matters: a thread that waits registers first and then checks `taken`, so one of the two threads sees the
        // other.
        self.taken.store(false, Ordering::SeqCst);
        self.wake_next();
    }

    /// Wakes one waiting thread, and a task that may wait instead.
    pub(crate) fn wake_next(&self) {
        #[cfg(feature = "tokio")]
        self.answer();
        if self.waiting_len.load(Ordering::SeqCst) > 0
            && let Some(next) = lock(&self.waiting).last()
        {
            next.unpark();
        }
    }

    /// Called before this thread does something else: wakes a waiting thread if the seat is free.
    pub(crate) fn offer(&self) {
        if self.waiting_len.load(Ordering::SeqCst) > 0 && !self.is_taken() {
            self.wake_next();
        }
    }
}

impl<B> Drop for SeatGuard<'_, B> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
