//! Broadcast: every rank's output becomes `root`'s, in place.

use super::{
    BlockPartition, BufferSpan, Plan,
    ProgramBuffer::Output,
    RankLayout, UnfitPlan,
    allgather::ring,
    builder::PlanBuilder,
    names::algorithms,
    rank_layout::RankTeam,
    shape::{RangeTreeLinks, TreeLinks},
};

algorithms! {
    /// The algorithms of a broadcast.
    Bcast of "bcast" {
        /// The data goes along a binomial tree. lg p · (α + nβ); at most lg p + 1 steps.
        Binomial as "binomial",
        /// The data goes along a tree of at most `arity` children per rank: log_k p levels of at most k messages.
        Kary {
            /// The most children of a rank.
            arity = 4
        } as "kary",
        /// The data goes from rank to rank, in `segments` that follow each other. (p − 2 + s) · (α + nβ/s); 2s steps.
        Chain {
            /// Number of parts into which the buffer is cut, up to 65 536.
            segments = 16
        } as "chain",
        /// Scatters a part to each rank, then gathers all parts on every rank by a ring (Barnett, van de Geijn and others
        /// 1994). (lg p + p − 1) · α + 2nβ; at most 2p + lg p steps.
        ScatterRing as "scatter_ring",
        /// The data goes to one rank of each node, then inside the nodes, along binomial trees. lg of the nodes · (α + nβ)
        /// between nodes. Needs [`RankLayout::on`].
        Leaders as "leaders",
    }
}

impl Bcast {
    /// Makes the plan of a rank for `len` elements. All receives land in the output; no scratch is needed.
    ///
    /// # Errors
    /// [`UnfitPlan`]: there is no map of the nodes, or there are too many segments.
    ///
    /// # Panics
    /// Panics if the group has no rank `root`.
    pub fn plan(self, place: &RankLayout<'_>, root: usize, len: usize) -> Result<Plan, UnfitPlan> {
        place.assert_rank(root);
        UnfitPlan::require_positive(self.name(), self.parameter())?;
        let mut b = PlanBuilder::new(place);
        let (team, data) = (place.team(), Output.span(0, len));
        match self {
            Self::Binomial => binomial(&mut b, &team, root, data),
            Self::Kary { arity } => {
                let tree = TreeLinks::kary(team.me, team.size, root, arity);
                down(&mut b, &team, &tree, data, 1);
            }
            Self::Chain { segments } if segments > SEGMENTS_MAX => {
                return Err(UnfitPlan::Many(self.name(), SEGMENTS_MAX));
            }
            Self::Chain { segments } => {
                let chain = TreeLinks::kary(team.me, team.size, root, 1);
                down(&mut b, &team, &chain, data, segments);
            }
            Self::ScatterRing => scatter_ring(&mut b, &team, root, len),
            Self::Leaders => leaders(&mut b, place, root, data)?,
        }
        Ok(b.build())
    }
}

/// The most segments; a plan has two steps for each.
pub(crate) const SEGMENTS_MAX: usize = 1 << 16;

pub(super) fn binomial(b: &mut PlanBuilder, team: &RankTeam<'_>, root: usize, data: BufferSpan) {
    let tree = RangeTreeLinks::new(team.me, team.size, root).tree();
    down(b, team, &tree, data, 1);
}

/// Plans messages from parents to children, segment by segment. There are never more segments than elements.
fn down(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    tree: &TreeLinks,
    data: BufferSpan,
    segments: usize,
) {
    let segments = segments.min(data.len);
    let blocks = BlockPartition::split(data.len, segments.max(1));
    for segment in 0..segments {
        let part = blocks.within(data, 0, segment..segment + 1);
        let got = tree
            .parent
            .and_then(|parent| b.recv(team.rank_at(parent), part, &[]));
        for child in &tree.children {
            b.send(team.rank_at(*child), part, &[got]);
        }
    }
}

fn scatter_ring(b: &mut PlanBuilder, team: &RankTeam<'_>, root: usize, len: usize) {
    let blocks = BlockPartition::split(len, team.size);
    let place = RangeTreeLinks::new(team.me, team.size, root);
    let mine = blocks.range_span(Output, place.range);
    let got = place
        .parent
        .and_then(|parent| b.recv(team.rank_at(parent), mine, &[]));
    for child in place.children {
        b.send(
            team.rank_at(child.rank),
            blocks.range_span(Output, child.range),
            &[got],
        );
    }
    // The ring brings blocks again that inner ranks already have. They must not land while those blocks are sent to children.
    b.fence();
    ring(b, team, &blocks, blocks.block_span(Output, team.me));
}

fn leaders(
    b: &mut PlanBuilder,
    place: &RankLayout<'_>,
    root: usize,
    data: BufferSpan,
) -> Result<(), UnfitPlan> {
    let nodes = place.nodes(Bcast::Leaders.name())?;
    let leaders = nodes.leaders(root);
    let leader = leaders[nodes.node_of(place.rank())];
    if let Some(team) = RankTeam::of(place.rank(), leaders) {
        binomial(b, &team, nodes.node_of(root), data);
        b.fence();
    }
    let node = nodes.team(place.rank());
    binomial(b, &node, node.index(leader), data);
    Ok(())
}
