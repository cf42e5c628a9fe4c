//! Where the time goes.

use std::time::Instant;

/// What is done at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Transforms along x, and laying lines of y across.
    X,
    /// Transforms along y, and cutting lines.
    Y,
    /// Transforms along z, and laying lines across.
    Z,
    /// Starting transposes, and looking after them.
    Start,
    /// Waiting for transposes: what is left exposed.
    Wait,
}

/// All of them, in their order.
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

    /// What was done since the last call.
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
