//! The numbers of one rank. Pure.

use crate::view::{
    RankSnapshot, RecordedTotals,
    report::{ObservedRank, RankState},
};

/// What is known of a rank, from its views so far. What can be counted only grows.
#[derive(Clone, Debug, Default)]
pub(super) struct RankMetrics {
    pub(super) state: RankState,
    /// Messages sent and received, also as parts of collectives.
    pub(super) exchanged: [u64; 2],
    /// Collectives begun.
    pub(super) collectives: u64,
    /// What a trace has recorded, if the rank records one.
    pub(super) recorded: Option<RecordedTotals>,
    /// Operations in flight.
    pub(super) pending: u64,
    /// Age of the oldest of them, in nanoseconds; 0 if the rank has gone on since its last snapshot.
    pub(super) oldest: u64,
    /// Bytes of messages that no receive has taken.
    pub(super) unexpected_bytes: u64,
    /// Processor time of the agent, in nanoseconds.
    pub(super) agent: u64,
    /// The last snapshot that could be read.
    pub(super) last: RankSnapshot,
}

impl RankMetrics {
    /// Takes over what a look at the rank has shown, at this time of the machine's clock.
    pub(super) fn add(&mut self, rank: &ObservedRank, now: u64) {
        self.state = rank.state();
        (self.pending, self.oldest, self.unexpected_bytes) = (0, 0, 0);
        // The views of ranks that have ended are those of their last moments.
        let Ok(view) = &rank.view else {
            return;
        };
        if self.state == RankState::Left {
            return;
        }
        self.count(&view.snapshot);
        if self.state.is_over() {
            return;
        }
        let snapshot = &view.snapshot;
        self.pending = snapshot.waits.len() as u64;
        self.unexpected_bytes = snapshot.stored.iter().map(|group| group.bytes).sum();
        let oldest = snapshot.waits.iter().map(|wait| wait.since).min();
        self.oldest = oldest
            .filter(|_| view.is_current)
            .map_or(0, |since| now.saturating_sub(since));
    }

    fn count(&mut self, snapshot: &RankSnapshot) {
        if snapshot.number == self.last.number {
            return;
        }
        let more = snapshot.exchanged_since(&self.last);
        for (count, more) in self.exchanged.iter_mut().zip(more) {
            *count += more;
        }
        self.collectives += collectives_since(snapshot, &self.last);
        if snapshot.recorded.is_some() {
            self.recorded = snapshot.recorded;
        }
        self.last = snapshot.clone();
    }
}

/// Returns how many collectives a rank has begun since an earlier snapshot. Those of a communicator that came and went between
/// the two are missing.
fn collectives_since(snapshot: &RankSnapshot, earlier: &RankSnapshot) -> u64 {
    let comms = snapshot.comms.iter().map(|comm| {
        let mut before = earlier.comms.iter();
        let before = before.find(|other| other.comm == comm.comm);
        // A rank does not use the number of a communicator again.
        comm.next
            .wrapping_sub(before.map_or(0, |before| before.next))
    });
    comms.map(u64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{
        PublishedComm, PublishedPeer, PublishedWait, RankPhase, StoredGroup, WaitKind,
        layout::RankView, report::ProcessState,
    };

    /// Returns a rank that waits, has exchanged these numbers of messages, and has begun `next` collectives.
    fn rank(number: u64, [sent, received]: [u32; 2], next: u32) -> ObservedRank {
        let mut view = RankView::resting(3, 8, RankPhase::Waiting);
        let snapshot = &mut view.snapshot;
        snapshot.number = number;
        snapshot.peers = vec![PublishedPeer {
            rank: 1,
            sent,
            received,
        }];
        snapshot.comms = vec![PublishedComm {
            comm: 0,
            size: 8,
            members: 5,
            next,
            last: String::new(),
        }];
        snapshot.waits = vec![PublishedWait {
            kind: WaitKind::Recv,
            id: 1,
            comm: 0,
            peer: None,
            tag: None,
            sig: 0,
            bytes: 8,
            is_awaited: true,
            since: 40,
            name: String::new(),
            at: String::new(),
        }];
        snapshot.stored = vec![StoredGroup {
            source: 1,
            comm: 0,
            tag: 0,
            sig: 0,
            count: 2,
            bytes: 77,
            name: String::new(),
        }];
        ObservedRank {
            rank: 3,
            node: String::new(),
            pid: 1,
            process: ProcessState::Alive {
                percent: 0,
                sleeps_in: String::new(),
            },
            view: Ok(view),
            before: None,
        }
    }

    #[test]
    fn counts_grow_by_what_is_new_although_those_of_the_views_wrap() {
        let mut metrics = RankMetrics::default();
        metrics.add(&rank(1, [u32::MAX, 5], 7), 100);
        metrics.add(&rank(1, [u32::MAX, 5], 7), 100);
        let first = u64::from(u32::MAX);
        assert_eq!((metrics.exchanged, metrics.collectives), ([first, 5], 7));
        metrics.add(&rank(2, [2, 6], 9), 100);
        assert_eq!(
            (metrics.exchanged, metrics.collectives),
            ([first + 3, 6], 9)
        );
    }

    #[test]
    fn what_is_in_flight_counts_only_while_the_rank_lives() {
        let mut metrics = RankMetrics::default();
        metrics.add(&rank(1, [1, 1], 1), 100);
        let gauges = |it: &RankMetrics| [it.pending, it.oldest, it.unexpected_bytes];
        assert_eq!(gauges(&metrics), [1, 60, 77]);
        let mut moved = rank(1, [1, 1], 1);
        moved.view.as_mut().unwrap().is_current = false;
        metrics.add(&moved, 100);
        assert_eq!(gauges(&metrics), [1, 0, 77], "the rank has gone on");
        let mut killed = rank(2, [4, 1], 1);
        killed.process = ProcessState::Ended {
            how: String::new(),
            ago: None,
        };
        metrics.add(&killed, 100);
        assert_eq!(gauges(&metrics), [0; 3]);
        assert_eq!(metrics.exchanged, [4, 1], "its last snapshot counts");
    }
}
