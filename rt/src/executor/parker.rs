//! Wakes a thread in `block_on`, wherever it waits.

use std::{
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    task::Wake,
    thread::{self, Thread},
};

use crate::reactor::Notifier;

/// One thread in `block_on`.
#[derive(Debug)]
pub(crate) struct Parker {
    woken: AtomicBool,
    /// Where the thread waits: one of the constants below.
    at: AtomicU8,
    thread: Thread,
    notifier: Notifier,
}

const UP: u8 = 0;
const IN_SEAT: u8 = 1;
const PARKED: u8 = 2;

impl Parker {
    /// For the calling thread; woken from the start, so that its future is polled.
    pub(crate) fn new(notifier: Notifier) -> Self {
        Self {
            woken: AtomicBool::new(true),
            at: AtomicU8::new(UP),
            thread: thread::current(),
            notifier,
        }
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// Takes the wake-up, if there is one.
    pub(crate) fn take(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::SeqCst)
    }

    /// The thread is about to sleep in the seat, or is back.
    pub(crate) fn sits(&self, sits: bool) {
        self.at
            .store(if sits { IN_SEAT } else { UP }, Ordering::SeqCst);
    }

    /// Parks the thread until woken or [`unpark`](Self::unpark)ed; may also end early.
    pub(crate) fn park(&self) {
        self.at.store(PARKED, Ordering::SeqCst);
        if !self.is_woken() {
            thread::park();
        }
        self.at.store(UP, Ordering::SeqCst);
    }

    pub(crate) fn unpark(&self) {
        self.thread.unpark();
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(true, Ordering::SeqCst) {
            return;
        }
        match self.at.load(Ordering::SeqCst) {
            IN_SEAT => self.notifier.notify(),
            PARKED => self.unpark(),
            _ => {}
        }
    }
}
