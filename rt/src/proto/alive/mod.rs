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
//! Our own absence is not the peers' silence: who looks late gives everybody another interval to answer.

use std::collections::{BTreeMap, BTreeSet};

/// The peers that are waited for. Times are in nanoseconds, of any clock that does not run backwards.
#[derive(Debug)]
pub(crate) struct Alive {
    interval: u64,
    watched: BTreeMap<u32, Watched>,
    /// When we looked last.
    looked: u64,
    next: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    /// When something came last.
    heard: u64,
    /// Not pinged before this.
    quiet_until: u64,
    /// By its adapter, at the last look.
    answers: u64,
}

/// What is to be done after a look.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Findings {
    pub(crate) to_ping: Vec<u32>,
    pub(crate) failed: Vec<u32>,
}

impl Alive {
    /// `interval` is in nanoseconds.
    pub(crate) fn new(interval: u64) -> Self {
        Self {
            interval: interval.max(u64::from(PINGS)),
            watched: BTreeMap::new(),
            looked: 0,
            next: None,
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
        // The longest silence that we may hold against somebody whom we did not listen to.
        let one_interval_ago = now.saturating_sub(*interval);
        let late = self.next.map_or(0, |due| now.saturating_sub(due));
        if late > *interval / LATE {
            for peer in watched.values_mut() {
                peer.heard = peer.heard.max(one_interval_ago);
            }
        }
        watched.retain(|rank, _| waited.contains(rank));
        for &rank in waited {
            let answers = answers(rank);
            let peer = watched.entry(rank).or_insert(Watched {
                heard: one_interval_ago,
                quiet_until: 0,
                answers,
            });
            if std::mem::replace(&mut peer.answers, answers) != answers {
                // It was there after the last look; nothing is known of when.
                peer.heard = peer.heard.max(looked);
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
            let silent = now - peer.heard.min(now);
            let failed = silent >= 2 * interval;
            if failed {
                findings.failed.push(rank);
            } else if silent >= interval && now >= peer.quiet_until {
                findings.to_ping.push(rank);
                peer.quiet_until = now.saturating_add(interval / u64::from(PINGS));
            }
            !failed
        });
        findings
    }

    fn due(&self, peer: &Watched) -> u64 {
        let limit = peer.heard.saturating_add(2 * self.interval);
        let silent = peer.heard.saturating_add(self.interval);
        silent.max(peer.quiet_until).min(limit)
    }
}

/// How often a silent peer is pinged until it has failed. With 30 % of loss a ping and its answer arrive with a chance of one
/// half, so one peer in 4 · 10⁹ is wronged.
const PINGS: u32 = 32;

/// A look that is late by more than this part of an interval was not a little late: this rank was away.
const LATE: u64 = 16;

#[cfg(test)]
mod tests;
