//! How patient a connection is.

use crate::random::Random;

/// Waits, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The first wait for an answer; it doubles each time that none came.
    pub retry_first: u64,
    /// The longest wait.
    pub retry_max: u64,
    /// How often a message is sent before the peer counts as unreachable, at least 1.
    pub tries_max: u16,
}

/// 10 ms to 500 ms as in spec P9; 64 of them are 30 s, in which a fabric that loses a third of everything still connects.
impl Default for Limits {
    fn default() -> Self {
        Self {
            retry_first: 10_000_000_000,
            retry_max: 500_000_000_000,
            tries_max: 64,
        }
    }
}

impl Limits {
    /// As many tries as go on for so long, and not fewer than there were: a peer whose host computes answers nothing meanwhile.
    #[must_use]
    pub fn patient(self, patience: u64) -> Self {
        let shortest = (self.retry_max - self.retry_max / 4).max(1);
        let tries = patience.div_ceil(shortest);
        let tries = u16::try_from(tries).unwrap_or(u16::MAX);
        Self {
            tries_max: self.tries_max.max(tries),
            ..self
        }
    }

    /// The wait after try number `tries` (from 0): up to a quarter less than the doubled one, so that ranks which began
    /// together do not go on together.
    pub(super) fn wait(&self, tries: u16, seed: u64) -> u64 {
        let doubled = 1_u64.checked_shl(u32::from(tries)).unwrap_or(u64::MAX);
        let wait = self.retry_first.saturating_mul(doubled).min(self.retry_max);
        wait - Random::new(seed ^ u64::from(tries)).within(0..wait / 4)
    }
}
