//! Reduce: the inputs of all ranks, combined element by element, in the output of `root`.

use super::{
    BufferSpan, OperandOrder, OperandSide, Plan,
    ProgramBuffer::{Input, Output},
    RankLayout, UnfitPlan,
    allreduce::{VectorHalvings, reduce_halves},
    builder::{PlanBuilder, ScratchSlots, StepDependency},
    names::algorithms,
    rank_layout::RankTeam,
    shape::{FoldRole, PowerOfTwoFold, RangeTreeLinks, powers},
};

algorithms! {
    /// The algorithms of a reduction to one rank. Both keep the order of ranks.
    Reduce of "reduce" {
        /// Partial results go up a binomial tree whose subtrees are ranges of ranks. lg p · (α + nβ + nγ); scratch for 3n,
        /// leaves need none.
        Binomial as "binomial",
        /// A reduce-scatter by recursive halving of the vector, then a gather along the same way (Rabenseifner 2004).
        /// 2 lg p · α + 2nβ + nγ, and α + nβ + nγ more unless p is a power of two; scratch for 3n.
        Rabenseifner as "rabenseifner",
    }
}

impl Reduce {
    /// Returns the order of operands that the algorithm keeps.
    #[must_use]
    pub const fn order(self) -> OperandOrder {
        OperandOrder::RankOrder
    }

    /// Makes the plan of a rank for `len` elements and an operation that needs `order`.
    ///
    /// # Errors
    /// None of today's algorithms fails.
    ///
    /// # Panics
    /// Panics if the group has no rank `root`.
    pub fn plan(
        self,
        place: &RankLayout<'_>,
        root: usize,
        len: usize,
        order: OperandOrder,
    ) -> Result<Plan, UnfitPlan> {
        place.assert_rank(root);
        UnfitPlan::require_order(self.name(), self.order(), order)?;
        let mut b = PlanBuilder::new(place);
        match self {
            Self::Binomial => binomial(&mut b, &place.team(), root, len),
            Self::Rabenseifner => rabenseifner(&mut b, &place.team(), root, len),
        }
        Ok(b.build())
    }
}

fn binomial(b: &mut PlanBuilder, team: &RankTeam<'_>, root: usize, len: usize) {
    let place = RangeTreeLinks::new(team.me, team.size, root);
    let own = Input.span(0, len);
    let leaf = place.children.is_empty();
    let acc = match place.parent {
        None => Output.span(0, len),
        Some(_) if leaf => own,
        Some(_) => b.scratch(len),
    };
    let copied = if acc == own {
        None
    } else {
        b.copy(own, acc, &[])
    };
    reduce_up_tree(b, team, &place, acc, copied);
}

/// Reduces to the root in place. The spans of the other ranks are undefined afterwards.
pub(super) fn in_place(b: &mut PlanBuilder, team: &RankTeam<'_>, root: usize, acc: BufferSpan) {
    let place = RangeTreeLinks::new(team.me, team.size, root);
    reduce_up_tree(b, team, &place, acc, None);
}

/// Reduces up the tree, combining in `acc`, which holds this rank's operand after `ready`.
pub(super) fn reduce_up_tree(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    place: &RangeTreeLinks,
    acc: BufferSpan,
    ready: StepDependency,
) {
    // The plan has two slots, so that one message lands while another is combined.
    let mut landing = b.scratch_slots(place.children.len().min(2), acc.len);
    let mut last = ready;
    for child in place.children.iter().rev() {
        let side = side_of(child.rank, team.me);
        last = recv_and_reduce(
            b,
            &mut landing,
            team.rank_at(child.rank),
            side,
            acc,
            &[last],
        )
        .or(last);
    }
    if let Some(parent) = place.parent {
        b.send(team.rank_at(parent), acc, &[last]);
    }
}

/// Receives an operand and combines it into `acc`, which may be written after `ready`.
pub(super) fn recv_and_reduce(
    b: &mut PlanBuilder,
    landing: &mut ScratchSlots,
    from: usize,
    side: OperandSide,
    acc: BufferSpan,
    ready: &[StepDependency],
) -> StepDependency {
    let (landed, free) = landing.next_slot(acc.len);
    let got = b.recv(from, landed, &[free]);
    let after: Vec<StepDependency> = [got].iter().chain(ready).copied().collect();
    let combined = b.reduce(landed, acc, side, &after);
    landing.release_slot(combined);
    combined
}

/// Returns the side on which the operand of `peer` and its neighbors is combined.
pub(super) const fn side_of(peer: usize, me: usize) -> OperandSide {
    if peer < me {
        OperandSide::Left
    } else {
        OperandSide::Right
    }
}

fn rabenseifner(b: &mut PlanBuilder, team: &RankTeam<'_>, root: usize, len: usize) {
    let fold = PowerOfTwoFold::new(team.size, root);
    let (own, FoldRole::In { index: goal, .. }) = (Input.span(0, len), fold.role(root)) else {
        unreachable!("the root is kept");
    };
    let (index, partner) = match fold.role(team.me) {
        FoldRole::In { index, partner } => (index, partner),
        FoldRole::Out { partner } => {
            b.send(team.rank_at(partner), own, &[]);
            return;
        }
    };
    let acc = if team.me == root {
        Output.span(0, len)
    } else {
        b.scratch(len)
    };
    let copied = b.copy(own, acc, &[]);
    let VectorHalvings { halves, last } =
        reduce_halves(b, team, &fold, index, partner, acc, copied);
    // Back along the halving: of each pair, the rank on the root's side receives the other rank's half.
    let mut have = vec![last];
    for (half, distance) in halves.iter().rev().zip(powers(fold.power).rev()) {
        if (index ^ goal) & distance != 0 {
            b.send(half.peer, half.kept, &have);
            return;
        }
        have.push(b.recv(half.peer, half.given, &[half.sent]));
    }
}
