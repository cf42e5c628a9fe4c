//! How the time of a step is spent.

use std::time::Instant;

use super::Lap;

/// A clock that runs from its start, and adds up the time of communication.
#[derive(Debug)]
pub(super) struct Stopwatch {
    start: Instant,
    since: Option<Instant>,
    lap: Lap,
}

impl Stopwatch {
    /// Starts the clock; the time counts as computation.
    pub(super) fn start() -> Self {
        Self {
            start: now(),
            since: None,
            lap: Lap::default(),
        }
    }

    /// Counts the time from here on as communication.
    pub(super) fn communicating(&mut self) {
        self.since = Some(now());
    }

    /// Counts the time from here on as computation.
    pub(super) fn computing(&mut self) {
        if let Some(since) = self.since.take() {
            self.lap.comm_us += us(since, now());
        }
    }

    /// Awaits a future, and counts the time as waiting.
    pub(super) async fn waiting<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let since = now();
        let output = awaited.await;
        self.lap.wait_us += us(since, now());
        output
    }

    /// Stops the clock.
    pub(super) fn stop(mut self) -> Lap {
        self.computing();
        self.lap.whole_us = us(self.start, now());
        self.lap
    }
}

#[expect(clippy::disallowed_methods, reason = "this program measures itself")]
fn now() -> Instant {
    Instant::now()
}

fn us(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64() * 1e6
}
