//! Allgather: every rank's output holds the inputs of all ranks, one block each. Blocks may have any lengths.

use super::{
    BlockPartition, BufferSpan, Plan,
    ProgramBuffer::{Input, Output},
    RankLayout, UnfitPlan,
    builder::{PlanBuilder, StepDependency},
    names::algorithms,
    rank_layout::RankTeam,
    shape::{FoldRole, PowerOfTwoFold, powers},
};

algorithms! {
    /// The algorithms of an allgather; n is the length of the output. They need no scratch, and all receives land in the
    /// output.
    AllGather of "all_gather" {
        /// Blocks go around a ring. (p − 1) · α + nβ; 2p − 1 steps.
        Ring as "ring",
        /// Pairs exchange what they have, at distances 1, 2, 4, …. If the size is no power of two, some ranks first give their
        /// block to a neighbor, and get all blocks at the end. lg p · α + nβ, and 2α + nβ more for other sizes.
        RecursiveDoubling as "recursive_doubling",
        /// In round i each rank gets up to 2ⁱ blocks from the one 2ⁱ ahead (Bruck and others 1997). lg p · α + nβ. The blocks
        /// land where they belong, so a message that crosses the end of the output goes in two.
        Bruck as "bruck",
    }
}

impl AllGather {
    /// Makes the plan of a rank.
    ///
    /// # Errors
    /// None of today's algorithms fails.
    ///
    /// # Panics
    /// Panics if fewer blocks than ranks were given.
    pub fn plan(self, place: &RankLayout<'_>, blocks: &BlockPartition) -> Result<Plan, UnfitPlan> {
        let mut b = PlanBuilder::new(place).with_empty_blocks(blocks);
        let team = place.team();
        match self {
            Self::Ring => {
                keep(&mut b, &team, blocks);
                ring(&mut b, &team, blocks, Input.span(0, blocks.len(team.me)));
            }
            Self::RecursiveDoubling => recursive_doubling(&mut b, &team, blocks),
            Self::Bruck => bruck(&mut b, &team, blocks),
        }
        Ok(b.build())
    }
}

/// Copies this rank's block to its place in the output.
fn keep(b: &mut PlanBuilder, team: &RankTeam<'_>, blocks: &BlockPartition) -> StepDependency {
    let own = Input.span(0, blocks.len(team.me));
    b.copy(own, blocks.block_span(Output, team.me), &[])
}

/// Gathers all blocks in the output; this rank's own block is in `own`.
pub(super) fn ring(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    blocks: &BlockPartition,
    own: BufferSpan,
) {
    let block = |back: usize| blocks.block_span(Output, (team.me + team.size - back) % team.size);
    let (mut part, mut got) = (own, None);
    for round in 1..team.size {
        b.send(team.ahead(1), part, &[got]);
        part = block(round);
        got = b.recv(team.behind(1), part, &[]);
    }
}

fn recursive_doubling(b: &mut PlanBuilder, team: &RankTeam<'_>, blocks: &BlockPartition) {
    let fold = PowerOfTwoFold::new(team.size, 0);
    let all = blocks.range_span(Output, 0..team.size);
    let (index, partner) = match fold.role(team.me) {
        FoldRole::In { index, partner } => (index, partner),
        FoldRole::Out { partner } => {
            let own = Input.span(0, blocks.len(team.me));
            b.send(team.rank_at(partner), own, &[]);
            // The whole output comes back, this rank's own block included.
            b.recv(team.rank_at(partner), all, &[]);
            return;
        }
    };
    let copied = keep(b, team, blocks);
    let merged =
        partner.and_then(|from| b.recv(team.rank_at(from), blocks.block_span(Output, from), &[]));
    let mut have = vec![copied, merged];
    for distance in powers(fold.power) {
        let first = index & !(distance - 1);
        let (mine, theirs) = (first..first + distance, first ^ distance);
        let peer = team.rank_at(fold.rank(index ^ distance));
        b.send(peer, blocks.range_span(Output, fold.ranks(mine)), &have);
        let theirs = fold.ranks(theirs..theirs + distance);
        have.push(b.recv(peer, blocks.range_span(Output, theirs), &[]));
    }
    if let Some(partner) = partner {
        b.send(team.rank_at(partner), all, &have);
    }
}

fn bruck(b: &mut PlanBuilder, team: &RankTeam<'_>, blocks: &BlockPartition) {
    let size = team.size;
    // Returns `count` blocks from `first` on, around the end. Sender and receiver cut them at the same place.
    let parts = |first: usize, count: usize| {
        let (first, end) = (first % size, first % size + count);
        [first..end.min(size), 0..end.saturating_sub(size)]
            .map(|range| blocks.range_span(Output, range))
    };
    let mut have = vec![keep(b, team, blocks)];
    for distance in powers(size) {
        let count = distance.min(size - distance);
        for part in parts(team.me, count) {
            b.send(team.behind(distance), part, &have);
        }
        let landed =
            parts(team.me + distance, count).map(|part| b.recv(team.ahead(distance), part, &[]));
        have.extend(landed);
    }
}
