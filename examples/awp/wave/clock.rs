//! Where the time of a step goes.

use std::time::Instant;

/// Where the time of a step went, in µs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lap {
    /// All of it.
    pub(crate) whole_us: f64,
    /// Computing velocities, which comes first.
    pub(crate) velocity_us: f64,
    /// Packing, starting, waiting and unpacking.
    pub(crate) comm_us: f64,
    /// Waiting: what is left exposed.
    pub(crate) wait_us: f64,
}

/// Runs from its start, and adds up what is said to be communication.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    start: Instant,
    since: Option<Instant>,
    lap: Lap,
}

impl Stopwatch {
    /// Starts, computing.
    pub(super) fn start() -> Self {
        Self {
            start: now(),
            since: None,
            lap: Lap::default(),
        }
    }

    /// Communication from here on.
    pub(super) fn communicating(&mut self) {
        self.since = Some(now());
    }

    /// Computation from here on.
    pub(super) fn computing(&mut self) {
        if let Some(since) = self.since.take() {
            self.lap.comm_us += us(since, now());
        }
    }

    /// The velocities are there: what is computed from here on are stresses.
    pub(super) fn half(&mut self) {
        self.lap.velocity_us = us(self.start, now()) - self.lap.comm_us;
    }

    /// Times what is awaited, as waiting.
    pub(super) async fn waiting<R>(&mut self, awaited: impl Future<Output = R>) -> R {
        let since = now();
        let output = awaited.await;
        self.lap.wait_us += us(since, now());
        output
    }

    /// The end.
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
