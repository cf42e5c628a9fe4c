//! How the time of a transform is spent.

#[path = "../../common/clock.rs"]
mod spans;

use self::spans::SpanClock;

/// The phases of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FftPhase {
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
pub(crate) const PHASES: [FftPhase; 5] = [
    FftPhase::X,
    FftPhase::Y,
    FftPhase::Z,
    FftPhase::Start,
    FftPhase::Wait,
];

/// µs in each phase.
pub(crate) type PhaseTimes = [f64; PHASES.len()];

/// The clock of a transform.
pub(super) type PhaseClock = SpanClock<{ PHASES.len() }>;

impl From<FftPhase> for usize {
    fn from(phase: FftPhase) -> Self {
        phase as Self
    }
}
