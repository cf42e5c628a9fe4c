//! Time as a rank sees it, and computations that take time.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::RankHost;
use crate::{clock::ClockTime, comm::Comm, executor::poll_proceed, shared::RuntimeShared};

/// Returns the time of this rank's clock: virtual time if ranks are simulated, otherwise the time since the runtime was
/// made.
#[must_use]
pub fn now(comm: &Comm) -> Duration {
    comm.shared().clock.now().since(ClockTime::default())
}

/// Returns how many turns this rank's simulated host has made. Returns 0 if ranks are real.
#[must_use]
pub fn turns(comm: &Comm) -> u64 {
    comm.shared().host.as_ref().map_or(0, RankHost::turns)
}

/// Computes for `time`. A simulated rank does nothing else meanwhile, in virtual time; a real one spins for that time.
///
/// The rank's own function or a spawned task must await it, because polling it keeps the rank busy.
pub fn compute(comm: &Comm, time: Duration) -> impl Future<Output = ()> + Send + use<> {
    ComputeFuture {
        shared: Arc::clone(comm.shared()),
        time,
        until: None,
    }
}

struct ComputeFuture {
    shared: Arc<RuntimeShared>,
    time: Duration,
    until: Option<ClockTime>,
}

impl Future for ComputeFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(poll_proceed(cx));
        let now = self.shared.clock.now();
        let first = self.until.is_none();
        let time = self.time;
        let until = *self.until.get_or_insert(now + time);
        if let Some(host) = &self.shared.host {
            if now >= until {
                return Poll::Ready(());
            }
            if first {
                host.compute(time, cx.waker().clone());
            }
            return Poll::Pending;
        }
        while self.shared.clock.now() < until {
            std::hint::spin_loop();
        }
        Poll::Ready(())
    }
}
