//! The seat: the right to sleep on the driver's events, and the threads that wait for it.
//!
//! While the seat is free and somebody waits for it, a thread that is awake is on its way: to the seat, to wait itself, or to
//! [`offer`](SeatLock::offer) the seat before it runs a future or a task, which may compute for long.

use std::sync::{Arc, atomic::Ordering};

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

    /// Parks until woken, or until the seat is free.
    pub(crate) fn wait(&self, parker: &Arc<Parker<B>>) {
        lock(&self.waiting).push(Arc::clone(parker));
        // Against the store of `taken` and load of `waiting_len` by who leaves: one of the two sees the other.
        self.waiting_len.fetch_add(1, Ordering::SeqCst);
        if self.is_taken() {
            parker.park();
        }
        lock(&self.waiting).retain(|other| !Arc::ptr_eq(other, parker));
        self.waiting_len.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.taken.store(false, Ordering::SeqCst);
        self.pass();
    }

    /// Has one waiting thread look around.
    pub(crate) fn pass(&self) {
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
