//! How the time of a transform is spent.

#[path = "../../common/clock.rs"]
mod spans;

use self::spans::SpanClock;

/// The phases of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Transforms along x, and transposing lines of y.
    X,
    /// Transforms along y, and cutting lines.
    Y,
    /// Transforms along z, and transposing lines.
    Z,
    /// Starting transposes, and polling them.
    Start,
    /// Waiting for transposes, which is exposed.
    Wait,
}

/// All phases, in order.
pub(crate) const PHASES: [Phase; 5] = [Phase::X, Phase::Y, Phase::Z, Phase::Start, Phase::Wait];

/// µs in each phase.
pub(crate) type Times = [f64; PHASES.len()];

/// The clock of a transform.
pub(super) type Watch = SpanClock<{ PHASES.len() }>;

impl From<Phase> for usize {
    fn from(phase: Phase) -> Self {
        phase as Self
    }
}
