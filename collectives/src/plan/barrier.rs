//! Barrier: no rank completes before every rank has begun. It has no buffers.

use super::{
    Plan, RankLayout, UnfitPlan,
    builder::{PlanBuilder, StepDependency},
    names::algorithms,
    rank_layout::RankTeam,
    shape::{RangeTreeLinks, TreeLinks, powers},
};

algorithms! {
    /// The algorithms of a barrier.
    Barrier of "barrier" {
        /// In round i every rank signals the one 2ⁱ ahead (Hensgen, Finkel, Manber 1988). lg p · α; 2 lg p steps.
        Dissemination as "dissemination",
        /// Signals go up a binomial tree and down again. 2 lg p · α, but only 2(p − 1) messages in the whole group.
        Binomial as "binomial",
        /// Signals go up a tree of at most `arity` children per rank, and down again (Mellor-Crummey, Scott 1991). 2 log_k p
        /// levels; at each of them a parent has k messages.
        Kary {
            /// The most children of a rank.
            arity = 4
        } as "kary",
        /// Every rank signals every other rank: α, but p(p − 1) messages in the whole group. For few ranks, and for ranks that
        /// share processors, because each round of the other algorithms waits until all ranks have run.
        Flat as "flat",
        /// Signals go to the first rank of each node, by dissemination among those ranks, and back (two levels: Karonis and
        /// others 2000). lg of the nodes · α between nodes. Needs [`RankLayout::on`].
        Leaders as "leaders",
    }
}

impl Barrier {
    /// Makes the plan of a rank.
    ///
    /// # Errors
    /// [`UnfitPlan`]: there is no map of the nodes.
    pub fn plan(self, place: &RankLayout<'_>) -> Result<Plan, UnfitPlan> {
        UnfitPlan::require_positive(self.name(), self.parameter())?;
        let mut b = PlanBuilder::new(place);
        let team = place.team();
        match self {
            Self::Dissemination => dissemination(&mut b, &team),
            Self::Binomial => up_and_down(&mut b, &team, &binomial(&team), |_| {}),
            Self::Kary { arity } => {
                let tree = TreeLinks::kary(team.me, team.size, 0, arity);
                up_and_down(&mut b, &team, &tree, |_| {});
            }
            Self::Flat => flat(&mut b, &team),
            Self::Leaders => leaders(&mut b, place)?,
        }
        Ok(b.build())
    }
}

fn dissemination(b: &mut PlanBuilder, team: &RankTeam<'_>) {
    let mut heard = Vec::new();
    for distance in powers(team.size) {
        b.signal(team.ahead(distance), &heard);
        heard.push(b.recv_signal(team.behind(distance)));
    }
}

fn flat(b: &mut PlanBuilder, team: &RankTeam<'_>) {
    for distance in 1..team.size {
        b.signal(team.ahead(distance), &[]);
        b.recv_signal(team.behind(distance));
    }
}

fn binomial(team: &RankTeam<'_>) -> TreeLinks {
    RangeTreeLinks::new(team.me, team.size, 0).tree()
}

/// Plans signals up the tree, then `between` at the root, then signals down the tree.
fn up_and_down(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    tree: &TreeLinks,
    between: impl FnOnce(&mut PlanBuilder),
) {
    let up: Vec<StepDependency> = tree
        .children
        .iter()
        .rev()
        .map(|child| b.recv_signal(team.rank_at(*child)))
        .collect();
    let released = match tree.parent {
        Some(parent) => {
            b.signal(team.rank_at(parent), &up);
            b.recv_signal(team.rank_at(parent))
        }
        None => {
            b.fence();
            between(b);
            b.fence();
            None
        }
    };
    for child in &tree.children {
        b.signal(team.rank_at(*child), &[released]);
    }
}

fn leaders(b: &mut PlanBuilder, place: &RankLayout<'_>) -> Result<(), UnfitPlan> {
    let nodes = place.nodes(Barrier::Leaders.name())?;
    let node = nodes.team(place.rank());
    let tree = binomial(&node);
    let leaders = RankTeam::of(place.rank(), nodes.leaders(0));
    up_and_down(b, &node, &tree, |b| {
        if let Some(leaders) = leaders {
            dissemination(b, &leaders);
        }
    });
    Ok(())
}
