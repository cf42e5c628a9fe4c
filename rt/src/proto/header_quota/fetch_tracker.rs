//! The receiver's record of peers that hold messages back, and of what it has asked for there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    group::WorldRank,
    proto::matching::{MessageEnvelope, RecvPattern},
};

/// Peers that hold messages back, and the receives that have asked there. Allocates nothing until there is such a peer.
#[derive(Debug, Default)]
pub(crate) struct FetchTracker(Option<Box<TrackerState>>);

#[derive(Debug, Default)]
struct TrackerState {
    /// Peers that are blocked and wait for room.
    blocked: BTreeSet<WorldRank>,
    /// Number of a peer's messages that are here out of order and not yet matched. The peer's queue does not move past
    /// them.
    outs: BTreeMap<WorldRank, u32>,
    /// For each peer, the number of the first receive that has not yet asked there since the peer's queue was new.
    sought_before: BTreeMap<WorldRank, u64>,
    /// Envelopes that probes looked for without success, the latest last.
    probes: VecDeque<RecvPattern>,
    /// Peers that have been asked for these envelopes.
    probed: BTreeSet<(WorldRank, u32, Option<u32>)>,
}

impl FetchTracker {
    /// Returns true if there is any peer to ask.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|state| !state.blocked.is_empty() || !state.outs.is_empty())
    }

    /// Handles the notification that the peer is blocked, and waits for room.
    pub(crate) fn handle_blocked(&mut self, rank: WorldRank) {
        self.state().blocked.insert(rank);
        self.probe_again(rank);
    }

    /// Returns the number of the first receive for which the peer must be asked.
    ///
    /// `next` is the number of the next receive, which is not posted yet. Returns 0 (all receives) unless `tells` says
    /// that the peer notifies this rank of new messages in its queue.
    pub(crate) fn fetch_from(&mut self, rank: WorldRank, tells: bool, next: u64) -> u64 {
        let from = self.state().sought_before.insert(rank, next).unwrap_or(0);
        if tells { from } else { 0 }
    }

    /// Returns true if a message of this peer is here out of order and not yet matched.
    pub(crate) fn has_fetched(&self, rank: WorldRank) -> bool {
        self.0
            .as_ref()
            .is_some_and(|state| state.outs.contains_key(&rank))
    }

    /// Records that the peer has got room.
    pub(crate) fn handle_granted(&mut self, rank: WorldRank) {
        self.state().blocked.remove(&rank);
    }

    /// Records that a message of this peer is here out of order.
    pub(crate) fn record_fetched(&mut self, rank: WorldRank) {
        *self.state().outs.entry(rank).or_default() += 1;
    }

    /// Records that a message of this peer was matched, or is sent back.
    pub(crate) fn resolved(&mut self, rank: WorldRank) {
        let outs = &mut self.state().outs;
        if let Some(count) = outs.get_mut(&rank) {
            *count -= 1;
            if *count == 0 {
                outs.remove(&rank);
            }
        }
    }

    pub(crate) fn forget(&mut self, rank: WorldRank) {
        let Some(state) = &mut self.0 else { return };
        state.blocked.remove(&rank);
        state.outs.remove(&rank);
        state.sought_before.remove(&rank);
        self.probe_again(rank);
    }

    /// Returns the peers that may hold back a message for this receive. A source of `None` means any.
    pub(crate) fn holders(&self, source: Option<WorldRank>) -> Vec<WorldRank> {
        let Some(state) = &self.0 else {
            return Vec::new();
        };
        let holds =
            |rank: &WorldRank| state.blocked.contains(rank) || state.outs.contains_key(rank);
        match source {
            Some(rank) => Some(rank).filter(holds).into_iter().collect(),
            None => {
                let all: BTreeSet<WorldRank> = state
                    .blocked
                    .iter()
                    .chain(state.outs.keys())
                    .copied()
                    .collect();
                all.into_iter().collect()
            }
        }
    }

    /// Records a probe that found no message. Returns true if this peer must be asked for one.
    pub(crate) fn probe(&mut self, want: RecvPattern, rank: WorldRank) -> bool {
        let TrackerState { probes, probed, .. } = self.state();
        if !probes.contains(&want) {
            if probes.len() == PROBES_MAX {
                probes.pop_front();
                probed.clear();
            }
            probes.push_back(want);
        }
        probed.insert((rank, want.ctx, want.tag))
    }

    /// Makes probes ask this peer again, because a message arrived from it.
    pub(crate) fn probe_again(&mut self, rank: WorldRank) {
        let all = (rank, 0, None)..=(rank, u32::MAX, Some(u32::MAX));
        let Some(TrackerState { probed, .. }) = self.0.as_deref_mut() else {
            return;
        };
        let asked: Vec<_> = probed.range(all).copied().collect();
        for key in asked {
            probed.remove(&key);
        }
    }

    /// Returns true if a probe has looked for a message with this envelope.
    pub(crate) fn is_probed(&self, envelope: &MessageEnvelope, first: bool) -> bool {
        let fits = |want: &RecvPattern| want.fits(envelope) && (first || want.tag.is_some());
        let state = self.0.as_ref();
        state.is_some_and(|state| state.probes.iter().any(fits))
    }

    fn state(&mut self) -> &mut TrackerState {
        self.0.get_or_insert_default()
    }
}

/// Number of probed envelopes to remember. A forgotten envelope is asked for at every probe.
const PROBES_MAX: usize = 16;
