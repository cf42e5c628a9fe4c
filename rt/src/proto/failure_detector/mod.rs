//! Failure detector: finds out whether awaited peers are still alive, where the driver does not report failures.
//!
//! A peer that this rank waits for, and that was silent for an interval, is pinged repeatedly, because pings and
//! answers may be lost. After two intervals of silence it counts as failed. So a peer that pauses for less than an
//! interval never counts as failed. A failed peer is detected within two intervals of its failure, or of the beginning
//! of the wait. No peer is pinged while this rank waits for none.
//!
//! If the driver counts the answers of a peer's adapter, these are a sign of life too. A busy peer's own answer to a
//! ping is queued behind all messages that it was sent before.
//!
//! This rank's own absence must not count as silence of its peers. If this rank looks late, it gives all peers another
//! interval to answer. While more messages have arrived than one turn takes, a peer's answer may be among them.
//!
//! A rank that sees a process end notifies the others. They do not trust the notification, but ping the peer
//! immediately, and wait for a part of an interval.

use crate::group::WorldRank;
use std::collections::{BTreeMap, BTreeSet};

/// The awaited peers. Times are in nanoseconds, of any clock that does not run backwards.
#[derive(Debug)]
pub(crate) struct FailureDetector {
    interval: u64,
    watched: BTreeMap<WorldRank, WatchedPeer>,
    /// Time of the last look.
    looked: u64,
    /// Time of this rank's last turn, as far as it was reported.
    turned: u64,
    next: Option<u64>,
    /// Peers that other ranks have seen fail, and that this rank has not pinged since.
    doubted: BTreeSet<WorldRank>,
}

#[derive(Clone, Copy, Debug)]
struct WatchedPeer {
    /// Time when the last message arrived.
    heard: u64,
    /// No ping before this time.
    quiet_until: u64,
    /// Answers of the peer's adapter, counted until the last look.
    answers: u64,
    /// Time since when this peer is pinged because another rank has seen it fail. Reset by any message from the peer.
    doubted: Option<u64>,
}

/// Actions to take after a look.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct DetectorFindings {
    pub(crate) to_ping: Vec<WorldRank>,
    pub(crate) failed: Vec<WorldRank>,
    /// Ranks of `failed` that another rank has seen fail.
    pub(crate) seen: Vec<WorldRank>,
}

impl FailureDetector {
    /// Creates a detector with this interval, in nanoseconds.
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

    /// Returns true if it is time to [`check_peers`](Self::check_peers). Called in every turn; `all` is true if the turn has
    /// taken all messages that had arrived.
    pub(crate) fn is_due(&mut self, now: u64, all: bool) -> bool {
        let late = self.next.map_or(0, |due| now.saturating_sub(due));
        let due = self.next.is_some_and(|due| due <= now) && (all || late > self.interval);
        if !due {
            self.turned = now;
        }
        due
    }

    /// Returns how long a peer may be silent, in nanoseconds.
    pub(crate) fn limit(&self) -> u64 {
        2 * self.interval
    }

    /// Returns how long a peer may be silent after another rank has seen it fail, in nanoseconds.
    pub(crate) fn suspect_limit(&self) -> u64 {
        self.interval / SUSPECT_FRACTION
    }

    /// Handles the notification that another rank has seen this peer fail. The peer is pinged immediately if this rank
    /// waits for it, otherwise as soon as this rank does.
    pub(crate) fn suspect(&mut self, rank: WorldRank, now: u64) {
        self.doubted.insert(rank);
        if let Some(next) = &mut self.next {
            *next = now.min(*next);
        }
    }

    /// Returns the time of the next [`check_peers`](Self::check_peers); `None` while this rank waits for no peer.
    pub(crate) fn next_check(&self) -> Option<u64> {
        self.next
    }

    /// Begins to wait for a peer, so that a look is due within an interval.
    pub(crate) fn expect_wait(&mut self, now: u64) {
        let due = now.saturating_add(self.interval);
        self.next.get_or_insert(due);
    }

    /// Records that a message arrived from this peer.
    pub(crate) fn handle_heard(&mut self, rank: WorldRank, now: u64) {
        if let Some(watched) = self.watched.get_mut(&rank) {
            watched.heard = now;
            watched.doubted = None;
        }
        if !self.doubted.is_empty() {
            self.doubted.remove(&rank);
        }
    }

    /// Returns the awaited peers to ping, and those that have failed. O(awaited peers).
    ///
    /// `answers` returns how often the adapter of a peer has answered so far.
    pub(crate) fn check_peers(
        &mut self,
        now: u64,
        waited: &BTreeSet<WorldRank>,
        mut answers: impl FnMut(WorldRank) -> u64,
    ) -> DetectorFindings {
        let Self {
            interval, watched, ..
        } = self;
        let looked = std::mem::replace(&mut self.looked, now);
        let turned = std::mem::replace(&mut self.turned, now);
        // Longest silence that may count against a peer while this rank did not listen.
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
            // At the last look, this rank did not wait for a peer that is new in the map.
            let peer = watched.entry(rank).or_insert_with(|| WatchedPeer {
                heard: one_interval_ago.max(looked),
                quiet_until: 0,
                answers,
                doubted: None,
            });
            if std::mem::replace(&mut peer.answers, answers) != answers {
                // The peer was alive after the last look, but the exact time of its answer is not known.
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

    fn judge(&mut self, now: u64) -> DetectorFindings {
        let mut findings = DetectorFindings::default();
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

    fn due(&self, peer: &WatchedPeer) -> u64 {
        let asked = peer.asked_from(self.interval).max(peer.quiet_until);
        asked.min(peer.limit(self.interval))
    }
}

impl WatchedPeer {
    /// Returns the time when the peer counts as failed.
    fn limit(&self, interval: u64) -> u64 {
        let of_doubt = self
            .doubted
            .map(|since| since + interval / SUSPECT_FRACTION);
        let limit = self.heard.saturating_add(2 * interval);
        of_doubt.unwrap_or(u64::MAX).min(limit)
    }

    /// Returns the time from which on the peer is pinged.
    fn asked_from(&self, interval: u64) -> u64 {
        let silent = self.heard.saturating_add(interval);
        self.doubted.unwrap_or(u64::MAX).min(silent)
    }
}

/// Pings to a silent peer before it counts as failed. With 30 % loss, a ping and its answer arrive with probability one
/// half, so 1 of 4 · 10⁹ live peers would count as failed.
const PINGS: u32 = 32;

/// A peer that another rank has seen fail has this part of an interval to answer. With default settings this is a
/// second, about two hundred times the time of an answer.
const SUSPECT_FRACTION: u64 = 5;

/// If a look is late by more than this part of an interval, this rank was absent.
const LATE: u64 = 16;

#[cfg(test)]
mod tests;
