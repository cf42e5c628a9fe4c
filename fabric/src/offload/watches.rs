//! Thresholds that a rank waits for.

use super::{Counter, counter::NOBODY};
use crate::driver::Token;

/// Counters that a rank's driver was asked to watch. A check costs a load for each of them, and nothing if there are none.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    counter: Counter,
    threshold: u64,
    token: Token,
}

impl Watches {
    pub(crate) const fn new() -> Self {
        Self {
            watched: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, counter: &Counter, threshold: u64, token: Token) {
        let watched = Watched {
            counter: counter.clone(),
            threshold,
            token,
        };
        self.watched.push(watched);
        self.wake_for(counter);
    }

    /// Notes that the owner has added to a counter itself, so that peers have less to add until it must be woken.
    pub(crate) fn counted(&self, counter: &Counter) {
        self.wake_for(counter);
    }

    /// Removes a watch.
    pub(crate) fn remove(&mut self, token: Token) {
        if let Some(at) = self
            .watched
            .iter()
            .position(|watched| watched.token == token)
        {
            self.take(at);
        }
    }

    /// Returns true if any watched counter matches.
    pub(crate) fn any(&self, which: impl Fn(&Counter) -> bool) -> bool {
        self.watched.iter().any(|watched| which(&watched.counter))
    }

    /// Removes and returns a watch whose threshold is reached.
    pub(crate) fn pop_reached(&mut self) -> Option<Token> {
        let at = self.watched.iter().position(Watched::is_reached)?;
        Some(self.take(at))
    }

    /// Returns true if the threshold of any watch is reached.
    #[inline]
    pub(crate) fn is_reached(&self) -> bool {
        self.watched.iter().any(Watched::is_reached)
    }

    /// Removes a watch. The others stay in order, so that thresholds reached at the same time are reported in the order of
    /// watching.
    fn take(&mut self, at: usize) -> Token {
        let Watched { counter, token, .. } = self.watched.remove(at);
        self.wake_for(&counter);
        token
    }

    /// Makes a counter wake its owner for the least of its thresholds.
    fn wake_for(&self, counter: &Counter) {
        let same = self
            .watched
            .iter()
            .filter(|watched| watched.counter.is(counter));
        let least = same.map(|watched| watched.threshold).min();
        counter.wake_from(least.unwrap_or(NOBODY));
    }
}

impl Watched {
    #[inline]
    fn is_reached(&self) -> bool {
        self.counter.value() >= self.threshold
    }
}
