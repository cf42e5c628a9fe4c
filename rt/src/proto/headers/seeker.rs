//! The receiver's memory of whom it may have to ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::proto::matching::{Envelope, Want};

/// Peers that hold messages back, and what was sought there; nothing is kept until there is one.
#[derive(Debug, Default)]
pub(crate) struct Seeker(Option<Box<State>>);

#[derive(Debug, Default)]
struct State {
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
        self.0
            .as_ref()
            .is_some_and(|state| !state.blocked.is_empty() || !state.outs.is_empty())
    }

    /// The peer is blocked, and waits for room.
    pub(crate) fn handle_blocked(&mut self, rank: u32) {
        self.state().blocked.insert(rank);
        self.ask_again(rank);
    }

    /// From which receive on a peer must be asked, as it holds messages back now: all, if it does not tell of what is new in its
    /// line. Receives from `next` on are not posted yet.
    pub(crate) fn ask_from(&mut self, rank: u32, tells: bool, next: u64) -> u64 {
        let from = self.state().sought_before.insert(rank, next).unwrap_or(0);
        if tells { from } else { 0 }
    }

    /// Whether a message of this peer is here out of turn, unmet.
    pub(crate) fn is_out(&self, rank: u32) -> bool {
        self.0
            .as_ref()
            .is_some_and(|state| state.outs.contains_key(&rank))
    }

    /// The peer has got room.
    pub(crate) fn handle_granted(&mut self, rank: u32) {
        self.state().blocked.remove(&rank);
    }

    /// A message of this peer is here out of turn.
    pub(crate) fn out(&mut self, rank: u32) {
        *self.state().outs.entry(rank).or_default() += 1;
    }

    /// It is met, or goes back.
    pub(crate) fn resolved(&mut self, rank: u32) {
        let outs = &mut self.state().outs;
        if let Some(count) = outs.get_mut(&rank) {
            *count -= 1;
            if *count == 0 {
                outs.remove(&rank);
            }
        }
    }

    pub(crate) fn forget(&mut self, rank: u32) {
        let Some(state) = &mut self.0 else { return };
        state.blocked.remove(&rank);
        state.outs.remove(&rank);
        state.sought_before.remove(&rank);
        self.ask_again(rank);
    }

    /// Peers that may hold a message for this receive back; `None` is from anybody.
    pub(crate) fn holders(&self, source: Option<u32>) -> Vec<u32> {
        let Some(state) = &self.0 else {
            return Vec::new();
        };
        let holds = |rank: &u32| state.blocked.contains(rank) || state.outs.contains_key(rank);
        match source {
            Some(rank) => Some(rank).filter(holds).into_iter().collect(),
            None => {
                let all: BTreeSet<u32> = state
                    .blocked
                    .iter()
                    .chain(state.outs.keys())
                    .copied()
                    .collect();
                all.into_iter().collect()
            }
        }
    }

    /// A probe has found nothing. Whether this peer is to be asked for it.
    pub(crate) fn probe(&mut self, want: Want, rank: u32) -> bool {
        let State { probes, probed, .. } = self.state();
        if !probes.contains(&want) {
            if probes.len() == PROBES_MAX {
                probes.pop_front();
                probed.clear();
            }
            probes.push_back(want);
        }
        probed.insert((rank, want.ctx, want.tag))
    }

    /// Something came from this peer: probes ask it again.
    pub(crate) fn ask_again(&mut self, rank: u32) {
        let all = (rank, 0, None)..=(rank, u32::MAX, Some(u32::MAX));
        let Some(State { probed, .. }) = self.0.as_deref_mut() else {
            return;
        };
        let asked: Vec<_> = probed.range(all).copied().collect();
        for key in asked {
            probed.remove(&key);
        }
    }

    /// Whether a probe has looked for such a message.
    pub(crate) fn is_probed(&self, envelope: &Envelope, first: bool) -> bool {
        let fits = |want: &Want| want.fits(envelope) && (first || want.tag.is_some());
        let state = self.0.as_ref();
        state.is_some_and(|state| state.probes.iter().any(fits))
    }

    fn state(&mut self) -> &mut State {
        self.0.get_or_insert_default()
    }
}

/// Wants of probes that are remembered. Those that were forgotten are asked for at every probe.
const PROBES_MAX: usize = 16;
