//! What leads from rank to rank in a timeline: messages, and the posts and completions of epochs.

use std::collections::BTreeMap;

use ripstop_rt::internal::trace::format::{ACCESS_EPOCH, EXPOSURE_EPOCH, TracedKind, TracedOp};

use super::timeline::{JobTimeline, OpPlace, RankTimeline};

/// An epoch of two ranks: places of the rank that posts and of the one that accesses it, and of their operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedEpoch {
    pub(crate) exposure: OpPlace,
    pub(crate) access: OpPlace,
}

/// What leads from an operation of one rank to one of another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimelineArrow {
    pub(crate) kind: ArrowKind,
    pub(crate) from: OpPlace,
    pub(crate) to: OpPlace,
}

/// Kind of an arrow, which says at which end of an operation it leaves, and at which end of the other one it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrowKind {
    /// From the beginning of a send to the end of its receive.
    Message,
    /// From the beginning of an exposure to that of an access.
    Post,
    /// From the end of an access to that of an exposure.
    Completion,
}

impl ArrowKind {
    /// Returns whether the arrow leaves at the end of its first operation, and whether it arrives at the end of the second one.
    pub(crate) const fn is_at_ends(self) -> [bool; 2] {
        match self {
            Self::Message => [false, true],
            Self::Post => [false, false],
            Self::Completion => [true, true],
        }
    }
}

impl JoinedEpoch {
    fn arrows(self) -> [TimelineArrow; 2] {
        let Self { exposure, access } = self;
        let arrow = |kind, from, to| TimelineArrow { kind, from, to };
        [
            arrow(ArrowKind::Post, exposure, access),
            arrow(ArrowKind::Completion, access, exposure),
        ]
    }
}

impl RankTimeline {
    pub(super) fn is_exposure(&self, op: &TracedOp) -> bool {
        op.kind == TracedKind::Epoch && self.text(op.name) == EXPOSURE_EPOCH
    }

    fn is_access(&self, op: &TracedOp) -> bool {
        op.kind == TracedKind::Epoch && self.text(op.name) == ACCESS_EPOCH
    }

    /// Returns for each operation whether it has a lane.
    fn drawn(&self) -> Vec<bool> {
        let mut drawn = vec![false; self.ops.len()];
        for lane in &self.lanes {
            lane.ops.iter().for_each(|at| drawn[*at] = true);
        }
        drawn
    }
}

impl JobTimeline {
    /// Pairs the exposures with the accesses to them, which have the same numbers.
    pub(super) fn join_epochs(&mut self) {
        let mut exposures = BTreeMap::new();
        let mut accesses = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            for (at, op) in rank.ops.iter().enumerate() {
                let Some(peer) = op.peer.filter(|_| op.kind == TracedKind::Epoch) else {
                    continue;
                };
                let key = |exposed, other| (op.comm, op.tag, exposed, other, op.number);
                if rank.is_exposure(op) {
                    exposures.insert(key(rank.rank, peer), (index, at));
                } else if rank.is_access(op) {
                    accesses.push((key(peer, rank.rank), (index, at)));
                }
            }
        }
        let joined = accesses.into_iter().filter_map(|(key, access)| {
            let exposure = exposures.remove(&key)?;
            Some(JoinedEpoch { exposure, access })
        });
        self.epochs = joined.collect();
    }

    /// Returns when an arrow leaves, and when it arrives.
    pub(crate) fn times(&self, arrow: &TimelineArrow) -> [u64; 2] {
        let [from, to] = [arrow.from, arrow.to].map(|place| self.op(place));
        let time = |op: &TracedOp, is_end: bool| if is_end { op.end } else { op.begin };
        let [leaves, arrives] = arrow.kind.is_at_ends();
        [time(from, leaves), time(to, arrives)]
    }

    /// Returns what leads from rank to rank. What the end of the trace ended has not arrived.
    pub(super) fn arrows(&self) -> impl Iterator<Item = TimelineArrow> {
        let messages = self.messages.iter().map(|message| TimelineArrow {
            kind: ArrowKind::Message,
            from: message.send,
            to: message.recv,
        });
        let of_epochs = self.epochs.iter().flat_map(|epoch| epoch.arrows());
        let has_happened = move |arrow: &TimelineArrow| {
            let [leaves, arrives] = arrow.kind.is_at_ends();
            let is_open = |place| self.op(place).flags & TracedOp::OPEN != 0;
            !(leaves && is_open(arrow.from) || arrives && is_open(arrow.to))
        };
        messages.chain(of_epochs.filter(has_happened))
    }

    /// Returns the arrows whose two operations have a lane.
    pub(crate) fn drawn_arrows(&self) -> impl Iterator<Item = TimelineArrow> {
        let drawn: Vec<Vec<bool>> = self.ranks.iter().map(RankTimeline::drawn).collect();
        let is_drawn = move |(rank, op): OpPlace| drawn[rank][op];
        self.arrows()
            .filter(move |arrow| is_drawn(arrow.from) && is_drawn(arrow.to))
    }

    /// Returns a sentence about arrows that seem to go back in time.
    pub(crate) fn backward_note(&self) -> Option<String> {
        (self.backward > 0).then(|| {
            format!(
                "{} of {} messages, posts and completions seem to arrive before they leave: the clocks are not aligned well \
                 enough",
                self.backward,
                self.arrows().count()
            )
        })
    }
}
