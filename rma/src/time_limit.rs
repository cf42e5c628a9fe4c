//! Time-outs of futures that wait for other ranks.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use ripstop_rt::Comm;

/// The time limit of a future.
pub(crate) struct TimeLimit {
    after: Duration,
    sleep: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl TimeLimit {
    pub(crate) fn new(comm: &Comm, after: Duration) -> Self {
        let sleep = Box::pin(comm.sleep(after));
        Self { after, sleep }
    }

    /// Completes when the limit has passed, and returns its length.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        self.sleep.as_mut().poll(cx).map(|()| self.after)
    }
}

impl fmt::Debug for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeLimit({:?})", self.after)
    }
}
