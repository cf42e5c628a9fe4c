//! Timeouts and retries of a connection.

use crate::random::SeededRandom;

/// Timeouts in picoseconds, and the number of tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectLimits {
    /// First wait for an answer. It doubles each time that none comes.
    pub retry_first: u64,
    /// Longest wait.
    pub retry_max: u64,
    /// Times that a message is sent before the peer counts as unreachable, at least 1.
    pub tries_max: u16,
}

/// Waits of 10 ms to 500 ms. 64 tries take 30 s, in which a fabric that loses a third of all datagrams still connects.
impl Default for ConnectLimits {
    fn default() -> Self {
        Self {
            retry_first: 10_000_000_000,
            retry_max: 500_000_000_000,
            tries_max: 64,
        }
    }
}

impl ConnectLimits {
    /// Raises the number of tries so that they last for `patience` picoseconds. A peer whose host computes answers nothing
    /// meanwhile.
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

    /// Returns the wait after try number `tries` (from 0). It is up to a quarter shorter than the doubled one, at random, so that
    /// ranks which began together do not go on together.
    pub(super) fn wait(&self, tries: u16, seed: u64) -> u64 {
        let doubled = 1_u64.checked_shl(u32::from(tries)).unwrap_or(u64::MAX);
        let wait = self.retry_first.saturating_mul(doubled).min(self.retry_max);
        wait - SeededRandom::new(seed ^ u64::from(tries)).within(0..wait / 4)
    }
}
