//! The seat: the right to sleep on the driver's events, and the threads that wait for it.
//!
//! While the seat is free and somebody waits for it, a thread that is awake is on its way: to the seat, to wait itself, or to
//! [`offer`](SeatLock::offer) the seat before it runs a future or a task, which may compute for long.

use std::sync::{Arc, atomic::Ordering};
#[cfg(feature = "tokio")]
use std::task::{Poll, Waker};

use super::Notifier;
use crate::{
    executor::Parker,
    sync::{AtomicBool, AtomicUsize, Mutex, lock},
};

/// Says who has the seat; what one does there is no concern of it.
#[derive(Debug)]
pub(crate) struct SeatLock<B = Notifier> {
    /// Not a mutex: to see whether it is free nobody must take it, since who only looks rouses nobody afterwards.
    taken: AtomicBool,
    waiting: Mutex<Vec<Arc<Parker<B>>>>,
    waiting_len: AtomicUsize,
    /// A task of somebody else's executor, which has nothing to do until somebody leaves the seat.
    #[cfg(feature = "tokio")]
    called: AtomicBool,
    #[cfg(feature = "tokio")]
    caller: Mutex<Option<Waker>>,
}

/// The seat is ours until this is dropped; then a thread that waits is told.
#[derive(Debug)]
#[must_use = "dropping it leaves the seat"]
pub(crate) struct Sitting<'a, B>(&'a SeatLock<B>);

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

    /// Has this task woken when somebody leaves the seat, or a thread that waits for it is to look around. A later call is
    /// instead of an earlier one.
    #[cfg(feature = "tokio")]
    pub(crate) fn call(&self, waker: &Waker) {
        let before = lock(&self.caller).replace(waker.clone());
        drop(before);
        self.called.store(true, Ordering::SeqCst);
    }

    /// Ready when the last call has been answered.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_called(&self, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut caller = lock(&self.caller);
        if caller.is_none() {
            return Poll::Ready(());
        }
        let before = caller.replace(waker);
        drop(caller);
        drop(before); // with no lock held: it may be the last of a task
        Poll::Pending
    }

    /// The task is gone. The call may be another's by now, which calls again.
    #[cfg(feature = "tokio")]
    pub(crate) fn call_off(&self) {
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

    pub(crate) fn take(&self) -> Option<Sitting<'_, B>> {
        self.taken
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
            .then(|| Sitting(self))
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// Parks until woken, or until the seat is free. `may` is asked when those who [pass](Self::pass) can see that one waits.
    pub(crate) fn wait(&self, parker: &Arc<Parker<B>>, may: impl FnOnce() -> bool) {
        lock(&self.waiting).push(Arc::clone(parker));
        // Against the store of `taken` and load of `waiting_len` by who leaves: one of the two sees the other.
        self.waiting_len.fetch_add(1, Ordering::SeqCst);
        if self.is_taken() && may() {
            parker.park();
        }
        lock(&self.waiting).retain(|other| !Arc::ptr_eq(other, parker));
        self.waiting_len.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.taken.store(false, Ordering::SeqCst);
        self.pass();
    }

    /// Has one waiting thread look around, and a task that may be on its own.
    pub(crate) fn pass(&self) {
        #[cfg(feature = "tokio")]
        self.answer();
        if self.waiting_len.load(Ordering::SeqCst) > 0
            && let Some(next) = lock(&self.waiting).last()
        {
            next.unpark();
        }
    }

    /// The calling thread has something else to do: if the seat is free, a waiting thread is told.
    pub(crate) fn offer(&self) {
        if self.waiting_len.load(Ordering::SeqCst) > 0 && !self.is_taken() {
            self.pass();
        }
    }
}

impl<B> Drop for Sitting<'_, B> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
