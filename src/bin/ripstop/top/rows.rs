//! What a table says of each rank, from two looks at the job. Pure.

use ripstop_rt::internal::view::RankSnapshot;
use ripstop_rt::internal::view::report::{ObservedJob, ObservedRank, ProcessState, RankState};
use serde_json::{Value, json};

/// The ranks of a job that were found, by number.
#[derive(Debug)]
pub(super) struct JobRows {
    pub(super) name: String,
    /// Number of ranks of the job, here and elsewhere.
    pub(super) size: u32,
    pub(super) ranks: Vec<RankRow>,
}

/// One rank. What is not known is `None`.
#[derive(Debug, Default)]
pub(super) struct RankRow {
    pub(super) rank: u32,
    pub(super) pid: u32,
    pub(super) state: RankState,
    /// Percent of one processor.
    pub(super) processor: Option<u32>,
    pub(super) rates: Option<RankRates>,
    pub(super) in_flight: Option<usize>,
    /// Messages that no receive has taken.
    pub(super) unmatched: Option<u64>,
    pub(super) oldest: Option<OldestOperation>,
    /// Why the rank's view cannot be read; empty if it can.
    pub(super) unreadable: String,
}

/// What a rank did, in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RankRates {
    /// Operations that ended.
    pub(super) ended: f64,
    /// Messages sent to peers.
    pub(super) sent: f64,
    /// Messages received from peers.
    pub(super) received: f64,
}

/// The operation that has been in flight longest.
#[derive(Debug)]
pub(super) struct OldestOperation {
    pub(super) words: String,
    pub(super) at: String,
    pub(super) age_nanos: u64,
}

/// Version of the document. It changes when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

impl JobRows {
    pub(super) fn of(job: &ObservedJob) -> Self {
        let mut ranks: Vec<RankRow> = job
            .ranks
            .iter()
            .map(|rank| RankRow::of(rank, job))
            .collect();
        ranks.sort_by_key(|row| row.rank);
        Self {
            name: job.name.clone(),
            size: job.size,
            ranks,
        }
    }

    /// Returns true if all ranks that were found have left or ended.
    pub(super) fn is_over(&self) -> bool {
        self.ranks.iter().all(|row| row.state.is_over())
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "schema": SCHEMA,
            "job": self.name,
            "size": self.size,
            "ranks": self.ranks.iter().map(RankRow::json).collect::<Vec<_>>(),
        })
    }
}

impl RankRow {
    fn of(rank: &ObservedRank, job: &ObservedJob) -> Self {
        let mut row = Self {
            rank: rank.rank,
            pid: rank.pid,
            state: rank.state(),
            processor: match rank.process {
                ProcessState::Alive { percent, .. } if job.between > 0 => Some(percent),
                _ => None,
            },
            ..Self::default()
        };
        match &rank.view {
            Ok(view) => row.describe(rank, &view.snapshot, job.now),
            Err(why) => row.unreadable.clone_from(why),
        }
        row
    }

    fn describe(&mut self, rank: &ObservedRank, snapshot: &RankSnapshot, now: u64) {
        let is_current = rank.view.as_ref().is_ok_and(|view| view.is_current);
        let earlier = rank.before.as_ref().map(|before| &before.snapshot);
        self.rates = earlier.and_then(|earlier| RankRates::between(earlier, snapshot, is_current));
        self.in_flight = Some(snapshot.waits.len());
        self.unmatched = Some(snapshot.stored.iter().map(|group| group.count).sum());
        let oldest = snapshot.waits.iter().min_by_key(|wait| wait.since);
        self.oldest = oldest.map(|wait| OldestOperation {
            words: wait.to_string(),
            at: wait.at.clone(),
            age_nanos: now.saturating_sub(wait.since),
        });
    }

    fn json(&self) -> Value {
        let rate = |of: fn(&RankRates) -> f64| self.rates.as_ref().map(of);
        json!({
            "rank": self.rank,
            "pid": self.pid,
            "state": self.state.name(),
            "processor_percent": self.processor,
            "ended_per_s": rate(|rates| rates.ended),
            "sent_per_s": rate(|rates| rates.sent),
            "received_per_s": rate(|rates| rates.received),
            "in_flight": self.in_flight,
            "unmatched": self.unmatched,
            "oldest": self.oldest.as_ref().map(|oldest| json!({
                "what": oldest.words,
                "at": oldest.at,
                "age_ns": oldest.age_nanos,
            })),
            "error": Some(&self.unreadable).filter(|why| !why.is_empty()),
        })
    }
}

impl RankRates {
    /// Returns what happened between two snapshots of a rank. A rank that has published nothing new has done nothing only if its
    /// snapshot still describes it.
    fn between(earlier: &RankSnapshot, later: &RankSnapshot, is_current: bool) -> Option<Self> {
        if later.number == earlier.number {
            return is_current.then(Self::default);
        }
        let seconds = later
            .taken
            .checked_sub(earlier.taken)
            .filter(|nanos| *nanos > 0)? as f64
            / 1e9;
        let has_ended = later.ended.saturating_sub(earlier.ended);
        let counts = later.exchanged_since(earlier);
        let [sent, received] = counts.map(|count| count as f64 / seconds);
        Some(Self {
            ended: has_ended as f64 / seconds,
            sent,
            received,
        })
    }
}

#[cfg(test)]
mod tests {
    use ripstop_rt::internal::view::PublishedPeer;

    use super::{RankRates, RankSnapshot};

    fn snapshot(number: u64, taken: u64, ended: u64, peers: &[(u32, u32, u32)]) -> RankSnapshot {
        let mut snapshot = RankSnapshot::default();
        (snapshot.number, snapshot.taken, snapshot.ended) = (number, taken, ended);
        let peers = peers.iter().map(|&(rank, sent, received)| PublishedPeer {
            rank,
            sent,
            received,
        });
        snapshot.peers = peers.collect();
        snapshot
    }

    #[test]
    fn rates_are_over_the_time_between_the_snapshots_and_counts_may_wrap_around() {
        let earlier = snapshot(1, 1_000_000_000, 10, &[(3, u32::MAX, 5)]);
        let later = snapshot(4, 1_500_000_000, 40, &[(3, 3, 6), (9, 1, 0)]);
        let rates = RankRates::between(&earlier, &later, false).unwrap();
        let expected = RankRates {
            ended: 60.0,
            sent: 10.0,
            received: 2.0,
        };
        assert_eq!(rates, expected);
    }

    #[test]
    fn a_rank_that_writes_nothing_new_has_rates_only_while_its_snapshot_describes_it() {
        let same = snapshot(1, 1_000_000_000, 10, &[]);
        assert_eq!(
            RankRates::between(&same, &same, true),
            Some(RankRates::default())
        );
        assert_eq!(RankRates::between(&same, &same, false), None);
        let same_time = snapshot(2, 1_000_000_000, 11, &[]);
        assert_eq!(RankRates::between(&same, &same_time, true), None);
    }
}
