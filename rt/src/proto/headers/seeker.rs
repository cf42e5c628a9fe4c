//! The receiver's memory of whom it may have to ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::proto::matching::{Envelope, Want};

/// Peers that hold messages back, and what was sought there.
#[derive(Debug, Default)]
pub(crate) struct Seeker {
    /// Peers that are blocked, and that wait for room in vain.
    blocked: BTreeSet<u32>,
    /// How many messages of a peer are here out of turn, unmet: its line does not move past them.
    outs: BTreeMap<u32, u32>,
    /// Receives posted before this one were sought at the peer already, since it told that its line was new.
    sought_before: BTreeMap<u32, u64>,
    /// What probes looked for in vain, the latest last.
    probes: VecDeque<Want>,
    /// Peers that were asked for them.
    probed: BTreeSet<(u32, u32, Option<u32>)>,
}

impl Seeker {
    /// Whether there is anybody to ask.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        !self.blocked.is_empty() || !self.outs.is_empty()
    }

    /// The peer is blocked, and waits for room.
    pub(crate) fn handle_blocked(&mut self, rank: u32) {
        self.blocked.insert(rank);
        self.ask_again(rank);
    }

    /// From which receive on a peer must be asked, as it holds messages back now: all, if it does not tell of what is new in its
    /// line. Receives from `next` on are not posted yet.
    pub(crate) fn ask_from(&mut self, rank: u32, tells: bool, next: u64) -> u64 {
        let from = self.sought_before.insert(rank, next).unwrap_or(0);
        if tells { from } else { 0 }
    }

    /// Whether a message of this peer is here out of turn, unmet.
    pub(crate) fn is_out(&self, rank: u32) -> bool {
        self.outs.contains_key(&rank)
    }

    /// The peer has got room.
    pub(crate) fn handle_granted(&mut self, rank: u32) {
        self.blocked.remove(&rank);
    }

    /// A message of this peer is here out of turn.
    pub(crate) fn out(&mut self, rank: u32) {
        *self.outs.entry(rank).or_default() += 1;
    }

    /// It is met, or goes back.
    pub(crate) fn resolved(&mut self, rank: u32) {
        if let Some(outs) = self.outs.get_mut(&rank) {
            *outs -= 1;
            if *outs == 0 {
                self.outs.remove(&rank);
            }
        }
    }

    pub(crate) fn forget(&mut self, rank: u32) {
        self.blocked.remove(&rank);
        self.outs.remove(&rank);
        self.sought_before.remove(&rank);
        self.ask_again(rank);
    }

    /// Peers that may hold a message for this receive back; `None` is from anybody.
    pub(crate) fn holders(&self, source: Option<u32>) -> Vec<u32> {
        let holds = |rank: &u32| self.blocked.contains(rank) || self.outs.contains_key(rank);
        match source {
            Some(rank) => Some(rank).filter(holds).into_iter().collect(),
            None => {
                let all: BTreeSet<u32> = self
                    .blocked
                    .iter()
                    .chain(self.outs.keys())
                    .copied()
                    .collect();
                all.into_iter().collect()
            }
        }
    }

    /// A probe has found nothing. Whether this peer is to be asked for it.
    pub(crate) fn probe(&mut self, want: Want, rank: u32) -> bool {
        if !self.probes.contains(&want) {
            if self.probes.len() == PROBES_MAX {
                self.probes.pop_front();
                self.probed.clear();
            }
            self.probes.push_back(want);
        }
        self.probed.insert((rank, want.ctx, want.tag))
    }

    /// Something came from this peer: probes ask it again.
    pub(crate) fn ask_again(&mut self, rank: u32) {
        let all = (rank, 0, None)..=(rank, u32::MAX, Some(u32::MAX));
        let asked: Vec<_> = self.probed.range(all).copied().collect();
        for key in asked {
            self.probed.remove(&key);
        }
    }

    /// Whether a probe has looked for such a message.
    pub(crate) fn is_probed(&self, envelope: &Envelope, first: bool) -> bool {
        let fits = |want: &Want| want.fits(envelope) && (first || want.tag.is_some());
        self.probes.iter().any(fits)
    }
}

/// Wants of probes that are remembered. Those that were forgotten are asked for at every probe.
const PROBES_MAX: usize = 16;
