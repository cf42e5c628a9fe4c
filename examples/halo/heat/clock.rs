//! How the time of a step is spent.

#[path = "../../common/clock.rs"]
mod spans;

use self::spans::SpanClock;

/// Parts of a step that are timed.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeatSpan {
    Compute,
    /// Packing, starting and unpacking, which is communication like waiting.
    Pack,
    /// Waiting, which is exposed.
    Wait,
}

impl From<HeatSpan> for usize {
    fn from(span: HeatSpan) -> Self {
        span as Self
    }
}

/// The clock of a step.
pub(super) type HeatStopwatch = SpanClock<3>;

impl HeatStopwatch {
    /// Awaits a future while it communicates, and counts the time as waiting.
    pub(super) async fn waiting<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        self.count(HeatSpan::Pack);
        let output = awaited.await;
        self.count(HeatSpan::Wait);
        output
    }
}

/// The µs of a step: computing, packing, waiting.
pub(crate) type HeatLap = [f64; 3];
