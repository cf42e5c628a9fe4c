//! How the time of a step is spent.

#[path = "../../common/clock.rs"]
mod spans;

use self::spans::SpanClock;

/// What a step spends its time on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    Compute,
    /// Packing, starting and unpacking, which is communication like waiting.
    Pack,
    /// Waiting, which is exposed.
    Wait,
}

impl From<Span> for usize {
    fn from(span: Span) -> Self {
        span as Self
    }
}

/// The clock of a step.
pub(super) type HeatStopwatch = SpanClock<3>;

impl HeatStopwatch {
    /// Awaits a future while it communicates, and counts the time as waiting.
    pub(super) async fn waiting<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        self.count(Span::Pack);
        let output = awaited.await;
        self.count(Span::Wait);
        output
    }
}

/// The µs of a step: computing, packing, waiting.
pub(crate) type Lap = [f64; 3];
