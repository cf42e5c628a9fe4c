//! The numbers of one rank. Pure.

use std::collections::BTreeMap;

use crate::view::{
    RankSnapshot, RecordedTotals,
    report::{ObservedRank, RankState},
};

/// What is known of a rank, from its views so far. What can be counted only grows.
#[derive(Debug, Default)]
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
    /// Number of the last snapshot that could be read.
    pub(super) number: u64,
    /// Messages sent and received by peer, as far as they were counted. Peers that are not in a snapshot stay.
    pub(super) peers: BTreeMap<u32, [SeenCount; 2]>,
    /// Collectives by communicator, as far as they were counted.
    pub(super) comms: BTreeMap<u32, SeenCount>,
}

/// A count of 32 bits in the snapshots of a rank, as it was when it was largest; `None` before the first snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeenCount(Option<u32>);

impl RankMetrics {
    /// Takes over what a look at the rank has shown, at this time of the machine's clock.
    pub(super) fn add(&mut self, rank: &ObservedRank, now: u64) {
        self.state = rank.state();
        (self.pending, self.oldest, self.unexpected_bytes) = (0, 0, 0);
        let Ok(view) = &rank.view else {
            return;
        };
        if self.state == RankState::Left {
            return;
        }
        // The views of ranks that have ended are those of their last moments.
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
        if snapshot.number == self.number {
            return;
        }
        self.number = snapshot.number;
        for peer in &snapshot.peers {
            let seen = self.peers.entry(peer.rank).or_default();
            let [sent, received] = &mut self.exchanged;
            *sent += seen[0].advance(peer.sent);
            *received += seen[1].advance(peer.received);
        }
        // The collectives of a communicator that came and went between two snapshots are missing.
        for comm in &snapshot.comms {
            let seen = self.comms.entry(comm.comm).or_default();
            self.collectives += seen.advance(comm.next);
        }
        // A communicator that a whole list does not have was dropped, and a rank does not use its number again.
        if !snapshot.is_truncated && !snapshot.comms.is_empty() {
            let is_there = |number: u32| snapshot.comms.iter().any(|comm| comm.comm == number);
            self.comms.retain(|&number, _| is_there(number));
        }
        if snapshot.recorded.is_some() {
            self.recorded = snapshot.recorded;
        }
    }
}

impl SeenCount {
    /// Takes over what a snapshot says. Returns by how much the count has grown. A count that goes back, because a message did
    /// not leave after all, has not grown before it is larger than it was.
    fn advance(&mut self, now: u32) -> u64 {
        let Some(before) = self.0 else {
            self.0 = Some(now);
            return u64::from(now);
        };
        let more = RankSnapshot::grown(now, before);
        if more > 0 {
            self.0 = Some(now);
        }
        more
    }
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
            is_probed: false,
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
                is_running: false,
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
    fn a_peer_and_a_communicator_that_one_snapshot_lacks_are_not_counted_again() {
        let mut metrics = RankMetrics::default();
        metrics.add(&rank(1, [10, 5], 7), 100);
        let mut without = rank(2, [0, 0], 0);
        let snapshot = &mut without.view.as_mut().unwrap().snapshot;
        snapshot.peers.clear();
        snapshot.comms.clear();
        metrics.add(&without, 100);
        assert_eq!((metrics.exchanged, metrics.collectives), ([10, 5], 7));
        metrics.add(&rank(3, [12, 6], 8), 100);
        assert_eq!((metrics.exchanged, metrics.collectives), ([12, 6], 8));
    }

    #[test]
    fn a_communicator_is_forgotten_only_when_a_whole_list_lacks_it() {
        let mut metrics = RankMetrics::default();
        metrics.add(&rank(1, [0, 0], 7), 100);
        let mut other = rank(2, [0, 0], 3);
        let snapshot = &mut other.view.as_mut().unwrap().snapshot;
        snapshot.comms[0].comm = 2;
        snapshot.is_truncated = true;
        metrics.add(&other, 100);
        assert_eq!((metrics.collectives, metrics.comms.len()), (10, 2));
        let snapshot = &mut other.view.as_mut().unwrap().snapshot;
        (snapshot.number, snapshot.is_truncated) = (3, false);
        metrics.add(&other, 100);
        assert_eq!((metrics.collectives, metrics.comms.len()), (10, 1));
    }

    #[test]
    fn a_count_that_goes_back_by_one_is_not_nearly_all_of_its_bits() {
        let mut metrics = RankMetrics::default();
        for (number, sent, counted) in [(1, 5, 5), (2, 4, 5), (3, 5, 5), (4, 7, 7)] {
            metrics.add(&rank(number, [sent, 0], 0), 100);
            assert_eq!(metrics.exchanged, [counted, 0], "snapshot {number}");
        }
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
