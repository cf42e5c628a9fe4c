//! The part of a runtime that knows that it is simulated.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use ripstop_fabric::sim::Cluster;

/// The simulated host of one rank.
pub(crate) struct RankHost {
    cluster: Cluster,
    rank: u32,
    /// True if the rank's main function must be polled.
    woken: AtomicBool,
    /// Waker of the future that waits for the end of a computation.
    computes: Mutex<Option<Waker>>,
}

impl RankHost {
    pub(super) fn new(cluster: Cluster, rank: u32) -> Self {
        Self {
            cluster,
            rank,
            woken: AtomicBool::new(true),
            computes: Mutex::default(),
        }
    }

    /// Wakes the rank's main function. Returns true if it was not already woken.
    pub(crate) fn wake(&self) -> bool {
        !self.woken.swap(true, Ordering::Relaxed)
    }

    /// Takes the wake-up. Returns true if there was one.
    pub(super) fn take_wake_up(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// Makes the application compute for `time`, after which `waker` is woken.
    pub(super) fn compute(&self, time: Duration, waker: Waker) {
        self.cluster.compute(self.rank, time);
        *self.lock() = Some(waker);
    }

    /// Returns the number of turns so far.
    pub(super) fn turns(&self) -> u64 {
        self.cluster.rank_stats(self.rank).turns
    }

    /// Returns true while the application computes.
    pub(super) fn is_computing(&self) -> bool {
        self.lock().is_some()
    }

    /// Ends the computation.
    pub(super) fn end_compute(&self) {
        let waker = self.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.computes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
