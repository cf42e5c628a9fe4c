//! Allreduce: the outputs of all ranks, combined element by element, in place and on every rank.

use super::{
    BlockPartition, BufferSpan, OperandOrder, OperandSide, Plan,
    ProgramBuffer::Output,
    RankLayout, UnfitPlan, bcast,
    builder::{PlanBuilder, StepDependency},
    names::algorithms,
    rank_layout::RankTeam,
    reduce::{self, recv_and_reduce, side_of},
    shape::{FoldRole, PowerOfTwoFold, powers},
};

algorithms! {
    /// The algorithms of an allreduce, in place, on n elements.
    AllReduce of "all_reduce" {
        /// Pairs exchange and combine everything, at distances 1, 2, 4, …. If the size is no power of two, some ranks first
        /// give their operand to a neighbor, and get the result at the end. lg p · (α + nβ + nγ), and 2α + 2nβ + nγ more for
        /// other sizes; scratch for 2n. Keeps the order of ranks.
        RecursiveDoubling as "recursive_doubling",
        /// A reduce-scatter by halving of the vector and doubling of the distance, then an allgather back along the same way
        /// (Rabenseifner 2004). 2 lg p · α + 2nβ + nγ, and 2α + 2nβ + nγ more unless p is a power of two; scratch for n, 2n
        /// unless p is a power of two. Keeps the order of ranks.
        Rabenseifner as "rabenseifner",
        /// Parts go around a ring twice, combined and then complete (Patarasuk, Yuan 2009). 2(p − 1) · α + 2nβ + nγ; scratch
        /// for 2n/p; 5(p − 1) steps. Mixes the order of ranks.
        Ring as "ring",
        /// Partial results go up a binomial tree to rank 0, and the result comes down again. 2 lg p · (α + nβ) + lg p · nγ;
        /// scratch for 2n. Keeps the order of ranks.
        ReduceBcast as "reduce_bcast",
        /// Each rank gives its whole vector to each other rank, and combines all in the order of ranks. α + (p − 1)(nβ + nγ),
        /// scratch for (p − 1)n. For short vectors of few ranks, and of ranks that share processors. Keeps the order of ranks.
        Flat as "flat",
        /// Elements go to the first rank of each node, recursive doubling combines them among those ranks, and the result goes
        /// back. lg of the nodes · (α + nβ + nγ) between nodes. Keeps the order of ranks if the ranks of each node follow each
        /// other. Needs [`RankLayout::on`].
        LeadersDoubling as "leaders_doubling",
        /// Like `LeadersDoubling`, with Rabenseifner's algorithm among the nodes.
        LeadersRabenseifner as "leaders_rabenseifner",
    }
}

impl AllReduce {
    /// Returns the order of operands that the algorithm keeps; for the node-aware ones, if the ranks of each node are
    /// consecutive.
    #[must_use]
    pub const fn order(self) -> OperandOrder {
        match self {
            Self::Ring => OperandOrder::Any,
            Self::RecursiveDoubling
            | Self::Rabenseifner
            | Self::ReduceBcast
            | Self::Flat
            | Self::LeadersDoubling
            | Self::LeadersRabenseifner => OperandOrder::RankOrder,
        }
    }

    /// Makes the plan of a rank for `len` elements and an operation that needs `order`.
    ///
    /// # Errors
    /// [`UnfitPlan`]: the order is not kept, there is no map of the nodes, or nodes are scattered and the operation does not
    /// commute.
    pub fn plan(
        self,
        place: &RankLayout<'_>,
        len: usize,
        order: OperandOrder,
    ) -> Result<Plan, UnfitPlan> {
        UnfitPlan::require_order(self.name(), self.order(), order)?;
        let mut b = PlanBuilder::new(place);
        let (team, data) = (place.team(), Output.span(0, len));
        match self {
            Self::RecursiveDoubling => recursive_doubling(&mut b, &team, data),
            Self::Rabenseifner => rabenseifner(&mut b, &team, data),
            Self::Ring => ring(&mut b, &team, len),
            Self::ReduceBcast => {
                reduce::in_place(&mut b, &team, 0, data);
                b.fence();
                bcast::binomial(&mut b, &team, 0, data);
            }
            Self::Flat => flat(&mut b, &team, data),
            Self::LeadersDoubling | Self::LeadersRabenseifner => {
                self.leaders(&mut b, place, data, order)?;
            }
        }
        Ok(b.build())
    }

    fn leaders(
        self,
        b: &mut PlanBuilder,
        place: &RankLayout<'_>,
        data: BufferSpan,
        order: OperandOrder,
    ) -> Result<(), UnfitPlan> {
        let nodes = place.nodes(self.name())?;
        if order == OperandOrder::RankOrder && !nodes.in_rank_order() {
            return Err(UnfitPlan::Scattered(self.name()));
        }
        let node = nodes.team(place.rank());
        reduce::in_place(b, &node, 0, data);
        b.fence();
        if let Some(leaders) = RankTeam::of(place.rank(), nodes.leaders(0)) {
            match self {
                Self::LeadersRabenseifner => rabenseifner(b, &leaders, data),
                _ => recursive_doubling(b, &leaders, data),
            }
            b.fence();
        }
        bcast::binomial(b, &node, 0, data);
        Ok(())
    }
}

fn recursive_doubling(b: &mut PlanBuilder, team: &RankTeam<'_>, acc: BufferSpan) {
    let fold = PowerOfTwoFold::new(team.size, 0);
    let (index, partner) = match fold.role(team.me) {
        FoldRole::In { index, partner } => (index, partner),
        FoldRole::Out { partner } => return lent(b, team.rank_at(partner), acc),
    };
    let mut landing = b.scratch_slots(2.min(team.size - 1), acc.len);
    let mut last = partner.and_then(|peer| {
        let side = side_of(peer, team.me);
        recv_and_reduce(b, &mut landing, team.rank_at(peer), side, acc, &[])
    });
    for distance in powers(fold.power) {
        let peer = fold.rank(index ^ distance);
        let sent = b.send(team.rank_at(peer), acc, &[last]);
        let side = side_of(peer, team.me);
        last = recv_and_reduce(b, &mut landing, team.rank_at(peer), side, acc, &[sent]);
    }
    if let Some(partner) = partner {
        b.send(team.rank_at(partner), acc, &[last]);
    }
}

/// Combines from rank 0 on, so that all ranks have the same bits.
fn flat(b: &mut PlanBuilder, team: &RankTeam<'_>, own: BufferSpan) {
    let mut sent = Vec::new();
    let mut came = vec![(own, None); team.size];
    for distance in 1..team.size {
        let (to, from) = (team.ahead(distance), team.behind(distance));
        sent.push(b.send(to, own, &[]));
        let landing = b.scratch(own.len);
        let behind = (team.me + team.size - distance) % team.size;
        came[behind] = (landing, b.recv(from, landing, &[]));
    }
    let (acc, mut last) = came[0];
    for (operand, here) in &came[1..] {
        let mut after = vec![*here, last];
        if acc == own {
            after.append(&mut sent); // `acc` may be written only after it was sent
        }
        last = b.reduce(*operand, acc, OperandSide::Right, &after);
    }
    if acc != own {
        sent.push(last);
        b.copy(acc, own, &sent);
    }
}

/// Plans for a rank whose partner takes its place: it sends its operand and receives the result.
fn lent(b: &mut PlanBuilder, partner: usize, acc: BufferSpan) {
    let sent = b.send(partner, acc, &[]);
    b.recv(partner, acc, &[sent]);
}

fn rabenseifner(b: &mut PlanBuilder, team: &RankTeam<'_>, acc: BufferSpan) {
    let fold = PowerOfTwoFold::new(team.size, 0);
    let (index, partner) = match fold.role(team.me) {
        FoldRole::In { index, partner } => (index, partner),
        FoldRole::Out { partner } => return lent(b, team.rank_at(partner), acc),
    };
    let VectorHalvings { halves, last } = reduce_halves(b, team, &fold, index, partner, acc, None);
    let mut have = vec![last];
    for half in halves.iter().rev() {
        b.send(half.peer, half.kept, &have);
        have.push(b.recv(half.peer, half.given, &[half.sent]));
    }
    if let Some(partner) = partner {
        b.send(team.rank_at(partner), acc, &have);
    }
}

/// The halvings of the vector, the first one first, and the step after which the last part is complete.
#[derive(Debug)]
pub(super) struct VectorHalvings {
    pub(super) halves: Vec<VectorHalving>,
    pub(super) last: StepDependency,
}

/// One halving between two ranks.
#[derive(Debug)]
pub(super) struct VectorHalving {
    pub(super) peer: usize,
    /// The part that this rank continues with.
    pub(super) kept: BufferSpan,
    /// The part that the peer continues with.
    pub(super) given: BufferSpan,
    /// The step after which `given` may be written.
    pub(super) sent: StepDependency,
}

/// Combines one part of `acc` completely in each rank that remains after folding. Partners are at distances 1, 2, 4, …, so that
/// combined operands always belong to consecutive ranks.
pub(super) fn reduce_halves(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    fold: &PowerOfTwoFold,
    index: usize,
    partner: Option<usize>,
    acc: BufferSpan,
    ready: StepDependency,
) -> VectorHalvings {
    let longest = if partner.is_some() {
        acc.len
    } else {
        acc.len.div_ceil(2)
    };
    let mut landing = b.scratch_slots(2.min(team.size - 1), longest);
    let merged = partner.and_then(|peer| {
        let side = side_of(peer, team.me);
        recv_and_reduce(b, &mut landing, team.rank_at(peer), side, acc, &[ready])
    });
    let (mut last, mut kept, mut halves) = (merged.or(ready), acc, Vec::new());
    for distance in powers(fold.power) {
        let middle = kept.len.div_ceil(2);
        let parts = (kept.part(0, middle), kept.part(middle, kept.len - middle));
        let given;
        (kept, given) = if index & distance == 0 {
            parts
        } else {
            (parts.1, parts.0)
        };
        let peer = fold.rank(index ^ distance);
        let (to, side) = (team.rank_at(peer), side_of(peer, team.me));
        let sent = b.send(to, given, &[last]);
        last = recv_and_reduce(b, &mut landing, to, side, kept, &[last]).or(last);
        halves.push(VectorHalving {
            peer: to,
            kept,
            given,
            sent,
        });
    }
    VectorHalvings { halves, last }
}

fn ring(b: &mut PlanBuilder, team: &RankTeam<'_>, len: usize) {
    let (size, blocks) = (team.size, BlockPartition::split(len, team.size));
    let block = |back: usize| blocks.block_span(Output, (team.me + 2 * size - back) % size);
    let mut landing = b.scratch_slots(2.min(size - 1), blocks.longest(size));
    let (mut sent, mut last) = (Vec::new(), None);
    for round in 0..size - 1 {
        sent.push(b.send(team.ahead(1), block(round), &[last]));
        let from = team.behind(1);
        last = recv_and_reduce(
            b,
            &mut landing,
            from,
            OperandSide::Left,
            block(round + 1),
            &[],
        );
    }
    // Complete parts land in place of partial ones, once those were sent.
    for (round, sent) in sent.into_iter().enumerate() {
        b.send(team.ahead(1), block(round + size - 1), &[last]);
        last = b.recv(team.behind(1), block(round + size), &[sent]);
    }
}
