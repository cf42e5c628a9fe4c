//! Whether those that we wait for are still there, where the driver does not say.
//!
//! A peer that is waited for and was silent for an interval is pinged, again and again, for pings and answers may be lost; after
//! two intervals of silence it counts as failed. So a peer that is paused for less than an interval is never taken for dead, and
//! one that is dead is known to be dead within two intervals of its death, or of the beginning of the wait. Nobody is pinged
//! while nothing is waited for.
//!
//! Where the driver counts what a peer's adapter has answered, that is a sign of life too: what a busy peer says itself lies
//! behind all that it was sent before.
//!
//! Our own absence is not the peers' silence: a rank that looks late gives all peers another interval to answer, and as long as
//! more has come than a turn takes, a peer's answer may be among it.
//!
//! A rank that sees a process end tells the others. They do not believe it, but ask at once, and wait for a part of an interval.

use std::collections::{BTreeMap, BTreeSet};

/// The peers that are waited for. Times are in nanoseconds, of any clock that does not run backwards.
#[derive(Debug)]
pub(crate) struct Alive {
    interval: u64,
    watched: BTreeMap<u32, Watched>,
    /// When we looked last.
    looked: u64,
    /// When this rank made its last turn, as far as it was said.
    turned: u64,
    next: Option<u64>,
    /// Peers that others have seen die, and that were not asked since.
    doubted: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    /// When something came last.
    heard: u64,
    /// Not pinged before this.
    quiet_until: u64,
    /// By its adapter, at the last look.
    answers: u64,
    /// Since when it is asked because another rank has seen it die, and nothing came from it.
    doubted: Option<u64>,
}

/// What is to be done after a look.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Findings {
    pub(crate) to_ping: Vec<u32>,
    pub(crate) failed: Vec<u32>,
    /// Those of `failed` that another rank has seen die.
    pub(crate) seen: Vec<u32>,
}

impl Alive {
    /// `interval` is in nanoseconds.
    pub(crate) fn new(interval: u64) -> Self {
        Self {
            interval: interval.max(u64::from(PINGS)),
            watched: BTreeMap::new(),
            looked: 0,
            turned: 0,
            next: None,
            doubted: BTreeSet::new(),
        }
    }

    /// A turn is made. Whether it is time to [`look`](Self::look); `all` says that nothing more has come than it has taken.
    pub(crate) fn is_due(&mut self, now: u64, all: bool) -> bool {
        let late = self.next.map_or(0, |due| now.saturating_sub(due));
        let due = self.next.is_some_and(|due| due <= now) && (all || late > self.interval);
        if !due {
            self.turned = now;
        }
        due
    }

    /// How long a peer may be silent.
    pub(crate) fn limit(&self) -> u64 {
        2 * self.interval
    }

    /// How long a peer may be silent that another rank has seen die.
    pub(crate) fn limit_of_doubt(&self) -> u64 {
        self.interval / DOUBT
    }

    /// Another rank says that it has seen this one die: it is asked at once, if it is waited for, or when it is.
    pub(crate) fn doubt(&mut self, rank: u32, now: u64) {
        self.doubted.insert(rank);
        if let Some(next) = &mut self.next {
            *next = now.min(*next);
        }
    }

    /// When to [`look`](Self::look); `None` while nothing is waited for.
    pub(crate) fn next_look(&self) -> Option<u64> {
        self.next
    }

    /// Something is waited for from now on, so that a look is due within an interval.
    pub(crate) fn expect_wait(&mut self, now: u64) {
        let due = now.saturating_add(self.interval);
        self.next.get_or_insert(due);
    }

    /// Something came from this peer.
    pub(crate) fn handle_heard(&mut self, rank: u32, now: u64) {
        if let Some(watched) = self.watched.get_mut(&rank) {
            watched.heard = now;
            watched.doubted = None;
        }
        if !self.doubted.is_empty() {
            self.doubted.remove(&rank);
        }
    }

    /// Who must be pinged, and who has failed, of those that are waited for now. Costs what is waited for.
    ///
    /// `answers` tells how often the adapter of a peer has answered so far.
    pub(crate) fn look(
        &mut self,
        now: u64,
        waited: &BTreeSet<u32>,
        answers: impl Fn(u32) -> u64,
    ) -> Findings {
        let Self {
            interval, watched, ..
        } = self;
        let looked = std::mem::replace(&mut self.looked, now);
        let turned = std::mem::replace(&mut self.turned, now);
        // The longest silence that we may hold against a peer that we did not listen to.
        let one_interval_ago = now.saturating_sub(*interval);
        let away = |due: u64| now.saturating_sub(due.max(turned));
        if self.next.is_some_and(|due| away(due) > *interval / LATE) {
            for peer in watched.values_mut() {
                peer.heard = peer.heard.max(one_interval_ago);
                peer.doubted = peer.doubted.and(Some(now));
            }
        }
        watched.retain(|rank, _| waited.contains(rank));
        for &rank in waited {
            let answers = answers(rank);
            // At the last look nothing was waited for from a peer that is new here.
            let peer = watched.entry(rank).or_insert_with(|| Watched {
                heard: one_interval_ago.max(looked),
                quiet_until: 0,
                answers,
                doubted: None,
            });
            if std::mem::replace(&mut peer.answers, answers) != answers {
                // It was there after the last look; nothing is known of when.
                peer.heard = peer.heard.max(looked);
                peer.doubted = None;
            }
            if self.doubted.remove(&rank) {
                peer.quiet_until = 0;
                peer.doubted = Some(now);
            }
        }
        let findings = self.judge(now);
        self.next = self.watched.values().map(|peer| self.due(peer)).min();
        findings
    }

    fn judge(&mut self, now: u64) -> Findings {
        let mut findings = Findings::default();
        let interval = self.interval;
        self.watched.retain(|&rank, peer| {
            let failed = now >= peer.limit(interval);
            if failed {
                findings.failed.push(rank);
                findings.seen.extend(peer.doubted.map(|_| rank));
            } else if now >= peer.asked_from(interval) && now >= peer.quiet_until {
                findings.to_ping.push(rank);
                peer.quiet_until = now.saturating_add(interval / u64::from(PINGS));
            }
            !failed
        });
        findings
    }

    fn due(&self, peer: &Watched) -> u64 {
        let asked = peer.asked_from(self.interval).max(peer.quiet_until);
        asked.min(peer.limit(self.interval))
    }
}

impl Watched {
    /// When its silence is so long that it counts as failed.
    fn limit(&self, interval: u64) -> u64 {
        let of_doubt = self.doubted.map(|since| since + interval / DOUBT);
        let limit = self.heard.saturating_add(2 * interval);
        of_doubt.unwrap_or(u64::MAX).min(limit)
    }

    /// From when on it is asked whether it is there.
    fn asked_from(&self, interval: u64) -> u64 {
        let silent = self.heard.saturating_add(interval);
        self.doubted.unwrap_or(u64::MAX).min(silent)
    }
}

/// How often a silent peer is pinged until it has failed. With 30 % of loss a ping and its answer arrive with a chance of one
/// half, so one peer in 4 · 10⁹ is wronged.
const PINGS: u32 = 32;

/// A rank that another has seen die has this part of an interval to answer: two hundred times as long as an answer takes, and a
/// second where nothing else is said.
const DOUBT: u64 = 5;

/// A look that is late by more than this part of an interval was not a little late: this rank was away.
const LATE: u64 = 16;

#[cfg(test)]
mod tests;
