//! How the time of a step is spent.

#[path = "../../common/clock.rs"]
mod spans;

use self::spans::SpanClock;

/// Parts of a step that are timed.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaveSpan {
    /// Computing velocities, the first part of a step.
    Velocity,
    /// Computing stresses, the second part of a step.
    Stress,
    /// Packing, starting and unpacking, which is communication like waiting.
    Pack,
    /// Waiting, which is exposed.
    Wait,
}

impl From<WaveSpan> for usize {
    fn from(span: WaveSpan) -> Self {
        span as Self
    }
}

/// The clock of a step.
pub(crate) type AwpStopwatch = SpanClock<4>;

impl AwpStopwatch {
    /// Awaits a future while it communicates, and counts the time as waiting.
    pub(super) async fn waiting<R>(&mut self, awaited: impl Future<Output = R>) -> R {
        self.count(WaveSpan::Pack);
        let output = awaited.await;
        self.count(WaveSpan::Wait);
        output
    }
}

/// The µs of a step: velocities, stresses, packing, waiting.
pub(crate) type AwpStepTimes = [f64; 4];
