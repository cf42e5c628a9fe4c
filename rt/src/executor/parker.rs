//! Wakes a thread in `block_on`, wherever it sleeps.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Wake,
};

use crate::{
    reactor::Notifier,
    sync::{self, AtomicBool, AtomicU8, Thread},
};

/// State of one thread in `block_on`.
#[derive(Debug)]
pub(crate) struct Parker<B = Notifier> {
    woken: AtomicBool,
    /// Place where the thread sleeps: one of the constants below.
    at: AtomicU8,
    thread: Thread,
    /// Notifier that ends the sleep in the seat.
    bell: B,
}

/// Ends a sleep in the seat, or the next one if there is none.
pub(crate) trait SeatDoorbell {
    fn ring(&self);
}

const UP: u8 = 0;
const IN_SEAT: u8 = 1;
const PARKED: u8 = 2;

impl<B> Parker<B> {
    /// Creates the state of the calling thread. It is woken from the start, so that its future is polled.
    pub(crate) fn new(bell: B) -> Self {
        Self {
            woken: AtomicBool::new(true),
            at: AtomicU8::new(UP),
            thread: sync::current(),
            bell,
        }
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// Takes the wake-up. Returns true if there was one.
    pub(crate) fn take(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::SeqCst)
    }

    /// Sleeps in the seat, unless the thread was woken.
    pub(crate) fn sit(&self, sleep: impl FnOnce()) {
        // Pairs with the waker's store of `woken` and load of `at`: one of the two threads sees the other.
        self.at.store(IN_SEAT, Ordering::SeqCst);
        if !self.is_woken() {
            sleep();
        }
        self.at.store(UP, Ordering::SeqCst);
    }

    /// Parks the thread until it is woken or [`unpark`](Self::unpark)ed. May end early.
    pub(crate) fn park(&self) {
        self.at.store(PARKED, Ordering::SeqCst);
        if !self.is_woken() {
            sync::park();
        }
        self.at.store(UP, Ordering::SeqCst);
    }

    pub(crate) fn unpark(&self) {
        self.thread.unpark();
    }
}

impl<B: SeatDoorbell> Wake for Parker<B> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(true, Ordering::SeqCst) {
            return;
        }
        match self.at.load(Ordering::SeqCst) {
            IN_SEAT => self.bell.ring(),
            PARKED => self.unpark(),
            _ => {}
        }
    }
}

impl SeatDoorbell for Notifier {
    fn ring(&self) {
        self.notify();
    }
}
