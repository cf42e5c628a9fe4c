//! All-to-all: block j of rank i's input becomes block i of rank j's output.

use super::{
    BlockPartition, Plan,
    ProgramBuffer::{Input, Output, Scratch},
    RankLayout, UnfitPlan,
    builder::{PlanBuilder, StepDependency},
    names::algorithms,
    rank_layout::{NodeLayout, RankTeam},
    shape::powers,
};

algorithms! {
    /// The algorithms of an all-to-all with blocks of m elements.
    AllToAll of "all_to_all" {
        /// In step k, sends to the rank k ahead and receives from the rank k behind, with `window` sends at a time. Any
        /// lengths. (p − 1) · (α + mβ); 2p − 1 steps, no scratch.
        Pairwise {
            /// Sends in flight.
            window = 32
        } as "pairwise",
        /// The same with partners rank ⊕ k, which send to each other. For powers of two; any lengths.
        Xor {
            /// Sends in flight.
            window = 32
        } as "xor",
        /// In round i, the blocks with bit i set in their remaining distance travel 2ⁱ on together (Bruck and others 1997). lg
        /// p · (α + mβp/2), for blocks of one length; 3 lg p + 4 steps, scratch for 2p blocks.
        Bruck as "bruck",
        /// The first rank of each node collects the blocks of its node and exchanges them with the first ranks of the other
        /// nodes, one message for each pair of nodes. (nodes − 1) · α between nodes. For blocks of one length, and nodes whose
        /// ranks are consecutive. Needs [`RankLayout::on`].
        Leaders as "leaders",
    }
}

impl AllToAll {
    /// Makes the plan of a rank that sends the blocks `sends` of its input and receives the blocks `recvs` of its output.
    ///
    /// # Errors
    /// [`UnfitPlan`]: blocks differ in length, the size is no power of two, or the map of the nodes is missing or scattered.
    ///
    /// # Panics
    /// Panics if fewer blocks than ranks were given, or the block to the own rank has two lengths.
    pub fn plan(
        self,
        place: &RankLayout<'_>,
        sends: &BlockPartition,
        recvs: &BlockPartition,
    ) -> Result<Plan, UnfitPlan> {
        UnfitPlan::require_positive(self.name(), self.parameter())?;
        let mut b = PlanBuilder::new(place).with_empty_blocks(sends);
        let (team, size) = (place.team(), place.size());
        let even = || {
            let len = sends.even().filter(|len| recvs.even() == Some(*len));
            len.ok_or_else(|| UnfitPlan::Ragged(self.name()))
        };
        match self {
            Self::Pairwise { window } => {
                let ahead = (1..size).map(|k| ((team.me + k) % size, (team.me + size - k) % size));
                scattered(&mut b, &team, sends, recvs, window, ahead);
            }
            Self::Xor { .. } if !size.is_power_of_two() => {
                return Err(UnfitPlan::PowerOfTwo(self.name()));
            }
            Self::Xor { window } => {
                let pairs = (1..size).map(|k| (team.me ^ k, team.me ^ k));
                scattered(&mut b, &team, sends, recvs, window, pairs);
            }
            Self::Bruck => bruck(&mut b, &team, even()?),
            Self::Leaders => leaders(&mut b, place, even()?)?,
        }
        Ok(b.build())
    }
}

/// Sends one message to each rank and receives one from each, in the order of `pairs` (to, from).
fn scattered(
    b: &mut PlanBuilder,
    team: &RankTeam<'_>,
    sends: &BlockPartition,
    recvs: &BlockPartition,
    window: usize,
    pairs: impl Iterator<Item = (usize, usize)>,
) {
    let (give, take) = (
        sends.block_span(Input, team.me),
        recvs.block_span(Output, team.me),
    );
    assert_eq!(
        give.len, take.len,
        "one length of the block to the own rank"
    );
    b.copy(give, take, &[]);
    let mut sent: Vec<StepDependency> = Vec::new();
    for (to, from) in pairs {
        let before = sent.len().checked_sub(window).and_then(|index| sent[index]);
        let step = b.send(team.rank_at(to), sends.block_span(Input, to), &[before]);
        sent.extend(step.map(Some));
        b.recv(team.rank_at(from), recvs.block_span(Output, from), &[]);
    }
}

fn bruck(b: &mut PlanBuilder, team: &RankTeam<'_>, len: usize) {
    let (size, me) = (team.size, team.me);
    // Block d of `room` has to travel d ranks in total, wherever it is.
    let room = b.scratch(size * len);
    let rest = size - me;
    let mut ready = vec![
        b.copy(
            Input.span(me * len, rest * len),
            room.part(0, rest * len),
            &[],
        ),
        b.copy(
            Input.span(0, me * len),
            room.part(rest * len, me * len),
            &[],
        ),
    ];
    let mut landing = b.scratch_slots(2, size / 2 * len);
    for distance in powers(size) {
        // Count the numbers below `size` that have this bit set.
        let count =
            size / (2 * distance) * distance + (size % (2 * distance)).saturating_sub(distance);
        let run = distance * len;
        let moving = Scratch
            .span(room.start + run, count * len)
            .in_runs(run, signed(2 * run));
        let (landed, free) = landing.next_slot(count * len);
        let sent = b.send(team.ahead(distance), moving, &ready);
        let got = b.recv(team.behind(distance), landed, &[free]);
        // Received blocks take the place of sent ones, after those were sent.
        let merged = b.copy(landed, moving, &[got, sent]);
        landing.release_slot(merged);
        ready = vec![merged];
    }
    // Block d came from the rank d behind.
    let back = |start: usize, count: usize| {
        Output
            .span(start * len, count * len)
            .in_runs(len, -signed(len))
    };
    b.copy(room.part(0, (me + 1) * len), back(me, me + 1), &ready);
    b.copy(
        room.part((me + 1) * len, (rest - 1) * len),
        back(size - 1, rest - 1),
        &ready,
    );
}

fn leaders(b: &mut PlanBuilder, place: &RankLayout<'_>, len: usize) -> Result<(), UnfitPlan> {
    let name = AllToAll::Leaders.name();
    let nodes = place.nodes(name)?;
    if !nodes.in_rank_order() {
        return Err(UnfitPlan::Scattered(name));
    }
    let node = nodes.team(place.rank());
    let row = place.size() * len;
    if node.me > 0 {
        b.send(node.rank_at(0), Input.span(0, row), &[]);
        b.recv(node.rank_at(0), Output.span(0, row), &[]);
    } else {
        lead(b, &node, nodes, len);
    }
    Ok(())
}

/// The leader collects a row of blocks from each rank of its node, to all ranks. Then it hands each rank of its node one row of
/// blocks, from all ranks.
fn lead(b: &mut PlanBuilder, node: &RankTeam<'_>, nodes: &NodeLayout, len: usize) {
    let (here, size) = (nodes.node_of(node.rank_at(0)), nodes.size());
    let (local, row) = (node.size, size * len);
    let outgoing = b.scratch(local * row);
    let incoming = b.scratch(local * row);
    b.copy(Input.span(0, row), outgoing.part(0, row), &[]);
    for member in 1..local {
        b.recv(node.rank_at(member), outgoing.part(member * row, row), &[]);
    }
    b.fence();
    for distance in 0..nodes.count() {
        let to = nodes.members((here + distance) % nodes.count());
        let from = nodes.members((here + nodes.count() - distance) % nodes.count());
        let run = to.len() * len;
        let give = Scratch
            .span(outgoing.start + to[0] * len, local * run)
            .in_runs(run, signed(row));
        let take = incoming.part(from[0] * local * len, from.len() * local * len);
        if distance == 0 {
            b.copy(give, take, &[]);
        } else {
            b.send(to[0], give, &[]);
            b.recv(from[0], take, &[]);
        }
    }
    b.fence();
    let column = |member: usize| {
        let start = incoming.start + member * len;
        Scratch.span(start, row).in_runs(len, signed(local * len))
    };
    for member in 1..local {
        b.send(node.rank_at(member), column(member), &[]);
    }
    b.copy(column(0), Output.span(0, row), &[]);
}

fn signed(len: usize) -> isize {
    isize::try_from(len).expect("a buffer is shorter than half the address space")
}
