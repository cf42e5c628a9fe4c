//! Reduce-scatter: the inputs of all ranks, combined element by element; each rank's output is its block of the result. Blocks
//! may have any lengths.

use super::{
    Blocks, Order, Place, Plan, Unfit,
    builder::{After, Builder},
    names::algorithms,
    rank_layout::Team,
    reduce::{self, absorb, side_of},
    scatter,
    shape::{Fold, Halving, Role, powers},
    step::{
        Buffer::{Input, Output},
        Side,
    },
};

algorithms! {
    /// The algorithms of a reduce-scatter; n is the length of the input.
    ReduceScatter of "reduce_scatter" {
        /// Pairs exchange halves of what they still combine, at distances p/2, p/4, …, 1. If the size is no power of two, some
        /// ranks first give their operand to a neighbor, and get their block at the end. lg p · α + n(β + γ), and 2α + n(β + γ)
        /// more for other sizes; scratch for up to 3n. Mixes the order of ranks.
        RecursiveHalving as "recursive_halving",
        /// In step k a block to the rank k ahead and one from the rank k behind, `window` at a time. (p − 1) · α + n(β + γ);
        /// scratch for `window` blocks. Mixes the order of ranks.
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
    pub const fn order(self) -> Order {
        match self {
            Self::RecursiveHalving | Self::Pairwise { .. } | Self::Ring => Order::Any,
            Self::ReduceAndScatter => Order::RankOrder,
        }
    }

    /// Makes the plan of a rank for an operation that needs `order`.
    ///
    /// # Errors
    /// [`Unfit`]: the order is not kept.
    ///
    /// # Panics
    /// Panics if fewer blocks than ranks were given.
    pub fn plan(self, place: &Place<'_>, blocks: &Blocks, order: Order) -> Result<Plan, Unfit> {
        Unfit::unless_ordered(self.name(), self.order(), order)?;
        Unfit::unless_counted(self.name(), self.parameter())?;
        let mut b = Builder::new(place).telling(blocks);
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

fn recursive_halving(b: &mut Builder, team: &Team<'_>, blocks: &Blocks) {
    let fold = Fold::new(team.size, 0);
    let (all, mine) = (0..team.size, blocks.len(team.me));
    let own = blocks.some(Input, all.clone());
    let (index, partner) = match fold.role(team.me) {
        Role::In { index, partner } => (index, partner),
        Role::Out { partner } => {
            b.send(team.at(partner), own, &[]);
            b.recv(team.at(partner), Output.span(0, mine), &[]);
            return;
        }
    };
    let acc = b.scratch(own.len);
    let mut landing = b.landing(2.min(team.size - 1), own.len);
    let mut last = b.copy(own, acc, &[]);
    if let Some(peer) = partner {
        let (from, side) = (team.at(peer), side_of(peer, team.me));
        last = absorb(b, &mut landing, from, side, acc, &[last]).or(last);
    }
    for distance in powers(fold.power).rev() {
        let first = index & !(distance - 1);
        let given = first ^ distance;
        let given = blocks.within(acc, 0, fold.ranks(given..given + distance));
        let kept = blocks.within(acc, 0, fold.ranks(first..first + distance));
        let peer = fold.rank(index ^ distance);
        b.send(team.at(peer), given, &[last]);
        let (from, side) = (team.at(peer), side_of(peer, team.me));
        last = absorb(b, &mut landing, from, side, kept, &[last]).or(last);
    }
    let block = |rank: usize| blocks.within(acc, 0, rank..rank + 1);
    if let Some(partner) = partner {
        b.send(team.at(partner), block(partner), &[last]);
    }
    b.copy(block(team.me), Output.span(0, mine), &[last]);
}

fn pairwise(b: &mut Builder, team: &Team<'_>, blocks: &Blocks, window: usize) {
    let (size, me) = (team.size, team.me);
    let result = Output.span(0, blocks.len(me));
    let window = window.min(size - 1);
    let mut landing = b.landing(window, result.len);
    let mut last = b.copy(blocks.one(Input, me), result, &[]);
    let mut sent: Vec<After> = Vec::new();
    for distance in 1..size {
        let to = (me + distance) % size;
        let before = sent.len().checked_sub(window).and_then(|index| sent[index]);
        let step = b.send(team.at(to), blocks.one(Input, to), &[before]);
        sent.extend(step.map(Some));
        let from = team.behind(distance);
        last = absorb(b, &mut landing, from, Side::Left, result, &[last]);
    }
}

fn ring(b: &mut Builder, team: &Team<'_>, blocks: &Blocks) {
    let (size, me) = (team.size, team.me);
    let result = Output.span(0, blocks.len(me));
    if size == 1 {
        b.copy(Input.span(0, result.len), result, &[]);
        return;
    }
    let block = |back: usize| blocks.one(Input, (me + size - back) % size);
    let mut landing = b.landing(2.min(size - 2), blocks.longest(size));
    let (mut part, mut last) = (block(1), None);
    for round in 2..=size {
        let sent = b.send(team.ahead(1), part, &[last]);
        if round > 2 {
            landing.used(sent);
        }
        let own = block(round);
        let (landed, free) = if round == size {
            (result, None)
        } else {
            landing.next(own.len)
        };
        let got = b.recv(team.behind(1), landed, &[free]);
        last = b.reduce(own, landed, Side::Right, &[got]);
        part = landed;
    }
}

fn reduce_and_scatter(b: &mut Builder, team: &Team<'_>, blocks: &Blocks) {
    let own = blocks.some(Input, 0..team.size);
    let place = Halving::new(team.me, team.size, 0);
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
    reduce::up(b, team, &place, acc, copied);
    b.fence();
    scatter::binomial(b, team, 0, blocks, acc);
}
