//! What a runtime knows of being simulated.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use ripstop_fabric::sim::Cluster;

/// One rank's host.
pub(crate) struct Host {
    cluster: Cluster,
    rank: u32,
    /// The rank's function is to be polled.
    woken: AtomicBool,
    /// Who waits for the end of a computation.
    computes: Mutex<Option<Waker>>,
}

impl Host {
    pub(super) fn new(cluster: Cluster, rank: u32) -> Self {
        Self {
            cluster,
            rank,
            woken: AtomicBool::new(true),
            computes: Mutex::default(),
        }
    }

    /// The rank's function is woken. Whether it was not before.
    pub(crate) fn wake(&self) -> bool {
        !self.woken.swap(true, Ordering::Relaxed)
    }

    /// Takes the wake-up, if there is one.
    pub(super) fn take_wake_up(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// From now on the application computes, for so long; then `waker` is woken.
    pub(super) fn compute(&self, time: Duration, waker: Waker) {
        self.cluster.compute(self.rank, time);
        *self.lock() = Some(waker);
    }

    /// Turns so far.
    pub(super) fn turns(&self) -> u64 {
        self.cluster.rank_stats(self.rank).turns
    }

    /// Whether the application computes.
    pub(super) fn computes(&self) -> bool {
        self.lock().is_some()
    }

    /// The computation is over.
    pub(super) fn computed(&self) {
        let waker = self.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.computes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
