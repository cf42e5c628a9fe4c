//! The thresholds that a rank waits for.

use super::{Counter, counter::NOBODY};
use crate::driver::Token;

/// What a rank's driver was asked to watch. A look costs a load for each of them, and nothing when there are none.
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

    /// The owner has added to a counter itself: peers have less to add until it is to be woken.
    pub(crate) fn counted(&self, counter: &Counter) {
        self.wake_for(counter);
    }

    /// Takes a watch back.
    pub(crate) fn remove(&mut self, token: Token) {
        if let Some(at) = self
            .watched
            .iter()
            .position(|watched| watched.token == token)
        {
            self.take(at);
        }
    }

    /// Whether any counter is watched that is one of those.
    pub(crate) fn any(&self, which: impl Fn(&Counter) -> bool) -> bool {
        self.watched.iter().any(|watched| which(&watched.counter))
    }

    /// One whose threshold is reached, once.
    pub(crate) fn pop_reached(&mut self) -> Option<Token> {
        let at = self.watched.iter().position(Watched::is_reached)?;
        Some(self.take(at))
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn is_reached(&self) -> bool {
        self.watched.iter().any(Watched::is_reached)
    }

    /// The order of the others stays, so that what is reached at the same time is told in the order of watching.
    fn take(&mut self, at: usize) -> Token {
        let Watched { counter, token, .. } = self.watched.remove(at);
        self.wake_for(&counter);
        token
    }

    /// Has a counter wake us for the least of its thresholds.
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
