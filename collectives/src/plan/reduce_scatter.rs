//! Reduce-scatter: the inputs of all ranks, combined element by element; each rank's output is its block of the result. Blocks
//! may have any lengths.

use super::{
    BlockPartition, OperandOrder, OperandSide, Plan,
    ProgramBuffer::{Input, Output},
    RankLayout, UnfitPlan,
    builder::{PlanBuilder, StepDependency},
    names::algorithms,
    rank_layout::RankTeam,
    reduce::{self, recv_and_reduce, side_of},
    scatter,
    shape::{FoldRole, PowerOfTwoFold, RangeTreeLinks, powers},
};

algorithms! {
    /// The algorithms of a reduce-scatter; n is the length of the input.
    ReduceScatter of "reduce_scatter" {
        /// Pairs exchange halves of what they still combine, at distances p/2, p/4, …, 1. If the size is no power of two, some
        /// ranks first give their operand to a neighbor, and get their block at the end. lg p · α + n(β + γ), and 2α + n(β + γ)
        /// more for other sizes; scratch for up to 3n. Mixes the order of ranks.
        RecursiveHalving as "recursive_halving",
        /// In step k every rank sends a block to the rank k ahead and receives one from the rank k behind, `window` at a time.
        /// (p − 1) · α + n(β + γ); scratch for `window` blocks. Mixes the order of ranks.
        Pairwise {
            /// Messages in flight.
            window = 8
        } as "pairwise",
        /// Blocks go around a ring and are combined on the way. (p − 1) · α + n(β + γ); scratch for 2 blocks. Mixes the order
        /// of ranks.
        Ring as "ring",
        /// A reduction to rank 0 and a scatter from there, along binomial trees. 2 lg p · α + lg p · n(β + γ) + nβ. Keeps the
        /// order of ranks.
        ReduceAndScatter as "reduce_and_scatter",
    }
}

impl ReduceScatter {
    /// Returns the order of operands that the algorithm keeps.
    #[must_use]
    pub const fn order(self) -> OperandOrder {
        match self {
            Self::RecursiveHalving | Self::Pairwise { .. } | Self::Ring => OperandOrder::Any,
            Self::ReduceAndScatter => OperandOrder::RankOrder,
        }
    }

    /// Makes the plan of a rank for an operation that needs `order`.
    ///
    /// # Errors
    /// [`UnfitPlan`]: the order is not kept.
    ///
    /// # Panics
    /// Panics if fewer blocks than ranks were given.
    pub fn plan(
        self,
        place: &RankLayout<'_>,
        blocks: &BlockPartition,
        order: OperandOrder,
    ) -> Result<Plan, UnfitPlan> {
        UnfitPlan::require_order(self.name(), self.order(), order)?;
        UnfitPlan::require_positive(self.name(), self.parameter())?;
        let mut b = PlanBuilder::new(place).with_empty_blocks(blocks);
        let team = place.team();
        match self {
            Self::RecursiveHalving => recursive_halving(&mut b, &team, blocks),
            Self::Pairwise { window } => pairwise(&mut b, &team, blocks, window),
            Self::Ring => ring(&mut b, &team, blocks),
            Self::ReduceAndScatter => reduce_and_scatter(&mut b, &team, blocks),
        }
        Ok(b.build())
    }
}

fn recursive_halving(b: &mut PlanBuilder, team: &RankTeam<'_>, blocks: &BlockPartition) {
    let fold = PowerOfTwoFold::new(team.size, 0);
    let (all, mine) = (0..team.size, blocks.len(team.me));
    let own = blocks.range_span(Input, all.clone());
    let (index, partner) = match fold.role(team.me) {
        FoldRole::In { index, partner } => (index, partner),
        FoldRole::Out { partner } => {
            b.send(team.rank_at(partner), own, &[]);
            b.recv(team.rank_at(partner), Output.span(0, mine), &[]);
            return;
        }
    };
    let acc = b.scratch(own.len);
    let mut landing = b.scratch_slots(2.min(team.size - 1), own.len);
    let mut last = b.copy(own, acc, &[]);
    if let Some(peer) = partner {
        let (from, side) = (team.rank_at(peer), side_of(peer, team.me));
        last = recv_and_reduce(b, &mut landing, from, side, acc, &[last]).or(last);
    }
    for distance in powers(fold.power).rev() {
        let first = index & !(distance - 1);
        let given = first ^ distance;
        let given = blocks.within(acc, 0, fold.ranks(given..given + distance));
        let kept = blocks.within(acc, 0, fold.ranks(first..first + distance));
        let peer = fold.rank(index ^ distance);
        b.send(team.rank_at(peer), given, &[last]);
        let (from, side) = (team.rank_at(peer), side_of(peer, team.me));
        last = recv_and_reduce(b, &mut landing, from, side, kept, &[last]).or(last);
    }
    let block = |rank: usize| blocks.within(acc, 0, rank..rank + 1);
    if let Some(partner) = partner {
        b.send(team.rank_at(partner), block(partner), &[last]);
    }
    b.copy(block(team.me), Output.span(0, mine), &[last]);
}

fn pairwise(b: &mut PlanBuilder, team: &RankTeam<'_>, blocks: &BlockPartition, window: usize) {
    let (size, me) = (team.size, team.me);
    let result = Output.span(0, blocks.len(me));
    let window = window.min(size - 1);
    let mut landing = b.scratch_slots(window, result.len);
    let mut last = b.copy(blocks.block_span(Input, me), result, &[]);
    let mut sent: Vec<StepDependency> = Vec::new();
    for distance in 1..size {
        let to = (me + distance) % size;
        let before = sent.len().checked_sub(window).and_then(|index| sent[index]);
        let step = b.send(team.rank_at(to), blocks.block_span(Input, to), &[before]);
        sent.extend(step.map(Some));
        let from = team.behind(distance);
        last = recv_and_reduce(b, &mut landing, from, OperandSide::Left, result, &[last]);
    }
}

fn ring(b: &mut PlanBuilder, team: &RankTeam<'_>, blocks: &BlockPartition) {
    let (size, me) = (team.size, team.me);
    let result = Output.span(0, blocks.len(me));
    if size == 1 {
        b.copy(Input.span(0, result.len), result, &[]);
        return;
    }
    let block = |back: usize| blocks.block_span(Input, (me + size - back) % size);
    let mut landing = b.scratch_slots(2.min(size - 2), blocks.longest(size));
    let (mut part, mut last) = (block(1), None);
    for round in 2..=size {
        let sent = b.send(team.ahead(1), part, &[last]);
        if round > 2 {
            landing.release_slot(sent);
        }
        let own = block(round);
        let (landed, free) = if round == size {
            (result, None)
        } else {
            landing.next_slot(own.len)
        };
        let got = b.recv(team.behind(1), landed, &[free]);
        last = b.reduce(own, landed, OperandSide::Right, &[got]);
        part = landed;
    }
}

fn reduce_and_scatter(b: &mut PlanBuilder, team: &RankTeam<'_>, blocks: &BlockPartition) {
    let own = blocks.range_span(Input, 0..team.size);
    let place = RangeTreeLinks::new(team.me, team.size, 0);
    let acc = if place.children.is_empty() {
        own
    } else {
        b.scratch(own.len)
    };
    let copied = if acc == own {
        None
    } else {
        b.copy(own, acc, &[])
    };
    reduce::reduce_up_tree(b, team, &place, acc, copied);
    b.fence();
    scatter::binomial(b, team, 0, blocks, acc);
}
