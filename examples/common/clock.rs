//! A clock that counts all time to one span or another, such as computing and waiting.

use std::time::Instant;

/// Adds up the time of each of its spans.
#[derive(Debug)]
pub(crate) struct SpanClock<const SPANS: usize> {
    since: Instant,
    spans_us: [f64; SPANS],
}

impl<const SPANS: usize> SpanClock<SPANS> {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        Self {
            since: now(),
            spans_us: [0.0; SPANS],
        }
    }

    /// Counts the time since the last call, or since the start, to `span`. Returns this time in µs.
    #[inline]
    pub(crate) fn count(&mut self, span: impl Into<usize>) -> f64 {
        let now = now();
        let passed_us = now.duration_since(self.since).as_secs_f64() * 1e6;
        self.spans_us[span.into()] += passed_us;
        self.since = now;
        passed_us
    }

    /// Returns the µs of each span.
    pub(crate) fn spans_us(&self) -> [f64; SPANS] {
        self.spans_us
    }
}

#[expect(clippy::disallowed_methods, reason = "this program measures itself")]
fn now() -> Instant {
    Instant::now()
}
