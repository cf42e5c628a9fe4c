//! How the time is spent.

use std::time::Instant;

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

/// Counts all time to one phase or another.
#[derive(Debug)]
pub(super) struct Watch {
    since: Instant,
    times: Times,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self {
            since: now(),
            times: Times::default(),
        }
    }

    /// Adds the time since the last call to `phase`.
    #[inline]
    pub(super) fn was(&mut self, phase: Phase) {
        let now = now();
        self.times[phase as usize] += now.duration_since(self.since).as_secs_f64() * 1e6;
        self.since = now;
    }

    pub(super) fn times(&self) -> Times {
        self.times
    }
}

#[expect(clippy::disallowed_methods, reason = "this program measures itself")]
fn now() -> Instant {
    Instant::now()
}
