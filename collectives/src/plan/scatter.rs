//! Scatter: each rank's output is its block of `root`'s input.

use super::{
    BlockPartition, BufferSpan, Plan,
    ProgramBuffer::{Input, Output},
    RankLayout, UnfitPlan,
    builder::{PlanBuilder, StepDependency},
    names::algorithms,
    rank_layout::RankTeam,
    shape::RangeTreeLinks,
};

algorithms! {
    /// The algorithms of a scatter.
    Scatter of "scatter" {
        /// Blocks go down a binomial tree whose subtrees are ranges of ranks. lg p · α + nβ, n being all blocks; inner ranks
        /// hold their subtree's blocks in scratch.
        Binomial as "binomial",
        /// The root sends to every rank, `window` blocks at a time. p · α + nβ at the root; no scratch.
        Linear {
            /// Sends in flight.
            window = 32
        } as "linear",
    }
}

impl Scatter {
    /// Makes the plan of a rank. The leaves' receives land in their output.
    ///
    /// # Errors
    /// None of today's algorithms fails.
    ///
    /// # Panics
    /// Panics if the group has no rank `root`, or fewer blocks than ranks were given.
    pub fn plan(
        self,
        place: &RankLayout<'_>,
        root: usize,
        blocks: &BlockPartition,
    ) -> Result<Plan, UnfitPlan> {
        place.assert_rank(root);
        UnfitPlan::require_positive(self.name(), self.parameter())?;
        let mut b = PlanBuilder::new(place).with_empty_blocks(blocks);
        let all = blocks.range_span(Input, 0..place.size());
        match self {
            Self::Binomial => binomial(&mut b, &place.team(), root, blocks, all),
            Self::Linear { window } => linear(&mut b, &place.team(), root, blocks, window),
        }
        Ok(b.build())
    }
}

/// Plans the scatter of `all`, the root's data, down the tree.
pub(super) fn binomial(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    root: usize,
    blocks: &BlockPartition,
    all: BufferSpan,
) {
    let place = RangeTreeLinks::new(team.me, team.size, root);
    let (first, len) = (place.range.start, blocks.range_span(Input, place.range).len);
    let own = Output.span(0, blocks.len(team.me));
    let leaf = place.children.is_empty();
    let room = match place.parent {
        None => all,
        Some(_) if leaf => own,
        Some(_) => b.scratch(len),
    };
    let got = place
        .parent
        .and_then(|parent| b.recv(team.rank_at(parent), room, &[]));
    for child in place.children {
        let theirs = blocks.within(room, first, child.range);
        b.send(team.rank_at(child.rank), theirs, &[got]);
    }
    if !leaf || place.parent.is_none() {
        b.copy(
            blocks.within(room, first, team.me..team.me + 1),
            own,
            &[got],
        );
    }
}

fn linear(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    root: usize,
    blocks: &BlockPartition,
    window: usize,
) {
    let own = Output.span(0, blocks.len(team.me));
    if team.me != root {
        b.recv(team.rank_at(root), own, &[]);
        return;
    }
    b.copy(blocks.block_span(Input, root), own, &[]);
    let mut sent: Vec<StepDependency> = Vec::new();
    for distance in 1..team.size {
        let to = (root + distance) % team.size;
        let before = sent.len().checked_sub(window).and_then(|index| sent[index]);
        let step = b.send(team.rank_at(to), blocks.block_span(Input, to), &[before]);
        sent.extend(step.map(Some));
    }
}
