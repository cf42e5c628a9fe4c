//! Gather: the inputs of all ranks, one block each, in the output of `root`.

use super::{
    BlockPartition, Plan,
    ProgramBuffer::{Input, Output},
    RankLayout, UnfitPlan,
    builder::{PlanBuilder, StepDependency},
    names::algorithms,
    rank_layout::RankTeam,
    shape::RangeTreeLinks,
};

algorithms! {
    /// The algorithms of a gather.
    Gather of "gather" {
        /// Blocks go up a binomial tree whose subtrees are ranges of ranks (for any root and any lengths: Träff 2018).
        /// lg p · α + nβ, n being all blocks; inner ranks hold their subtree's blocks in scratch.
        Binomial as "binomial",
        /// Every rank sends to the root, which receives `window` blocks at a time. p · α + nβ at the root; no scratch.
        Linear {
            /// Receives in flight.
            window = 32
        } as "linear",
    }
}

impl Gather {
    /// Makes the plan of a rank. The root's receives land in its output.
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
        match self {
            Self::Binomial => binomial(&mut b, &place.team(), root, blocks),
            Self::Linear { window } => linear(&mut b, &place.team(), root, blocks, window),
        }
        Ok(b.build())
    }
}

fn binomial(b: &mut PlanBuilder, team: &RankTeam<'_>, root: usize, blocks: &BlockPartition) {
    let place = RangeTreeLinks::new(team.me, team.size, root);
    let (first, all) = (
        place.range.start,
        blocks.range_span(Output, place.range.clone()),
    );
    let own = Input.span(0, blocks.len(team.me));
    let inner = !place.children.is_empty();
    let room = match place.parent {
        None => all,
        Some(_) if inner => b.scratch(all.len),
        Some(_) => own,
    };
    let mut have: Vec<StepDependency> = Vec::new();
    if inner || place.parent.is_none() {
        have.push(b.copy(own, blocks.within(room, first, team.me..team.me + 1), &[]));
    }
    for child in place.children.into_iter().rev() {
        let theirs = blocks.within(room, first, child.range);
        have.push(b.recv(team.rank_at(child.rank), theirs, &[]));
    }
    if let Some(parent) = place.parent {
        b.send(team.rank_at(parent), room, &have);
    }
}

fn linear(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    root: usize,
    blocks: &BlockPartition,
    window: usize,
) {
    let own = Input.span(0, blocks.len(team.me));
    if team.me != root {
        b.send(team.rank_at(root), own, &[]);
        return;
    }
    b.copy(own, blocks.block_span(Output, root), &[]);
    let mut got: Vec<StepDependency> = Vec::new();
    for distance in 1..team.size {
        let from = (root + distance) % team.size;
        let before = got.len().checked_sub(window).and_then(|index| got[index]);
        let step = b.recv(
            team.rank_at(from),
            blocks.block_span(Output, from),
            &[before],
        );
        got.extend(step.map(Some));
    }
}
