//! Neighborhood collectives: every rank exchanges blocks with the neighbors that it names.

use super::{
    BufferSpan, Plan,
    ProgramBuffer::{Input, Output, Scratch},
    RankLayout,
    builder::PlanBuilder,
};

/// One edge of a neighborhood, as one end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborEdge {
    /// The other end; `None` beyond the edge of a grid that is not periodic. The block of such an edge exists but is left
    /// alone.
    pub rank: Option<usize>,
    /// Position of the edge's block, in elements. Blocks to send may overlap (an allgather sends one block to all neighbors);
    /// blocks to receive may not.
    pub start: usize,
    /// The length of its block, in elements.
    pub len: usize,
}

/// Rule by which blocks match if two ranks share several edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EdgePairing {
    /// By the order of the lists, as in MPI's graphs: the first block sent to a rank is the first received there.
    Graph,
    /// By dimension, as in MPI's cartesian grids: neighbors come in pairs, down and up, and a block sent down arrives from
    /// above, even if both neighbors are one rank.
    Grid,
}

/// Makes the plan of a rank that sends blocks of its input to `to` and receives blocks of its output from `from`. Messages go
/// straight between the ends. α + mβ for each neighbor, m being its block; as many steps as edges, no scratch, and all receives
/// land in the output. No step waits for another.
///
/// # Panics
/// Panics if a neighbor is no rank of the group; for a [`Grid`](EdgePairing::Grid), if `from` has an odd number of entries; and
/// if the own rank is named more often in one list than in the other, or with another length.
#[must_use]
pub fn neighbors(
    place: &RankLayout<'_>,
    to: &[NeighborEdge],
    from: &[NeighborEdge],
    pairing: EdgePairing,
) -> Plan {
    let mut b = PlanBuilder::new(place).with_empty_messages();
    let me = place.rank();
    for (give, take) in self_blocks(me, to, from, pairing) {
        let (give, take) = (to[give], from[take]);
        assert_eq!(give.len, take.len, "an edge to oneself has two like ends");
        let given = Input.span(give.start, give.len);
        b.copy(given, Output.span(take.start, take.len), &[]);
    }
    let mut ends = Vec::with_capacity(to.len() + from.len());
    let others = |edge: &NeighborEdge| edge.rank.filter(|rank| *rank != me);
    for edge in to {
        let block = Input.span(edge.start, edge.len);
        ends.extend(others(edge).map(|to| EdgeEnd::new(place, me, to, block)));
    }
    for at in in_order(from, pairing) {
        let block = Output.span(from[at].start, from[at].len);
        ends.extend(others(&from[at]).map(|from| EdgeEnd::new(place, from, me, block)));
    }
    // All ranks handle their edges in the same order of all edges of the graph, however the lists name them. So the first edge
    // of all that has not completed is the first such edge at both of its ends, and any lookahead is enough.
    ends.sort_by_key(|end| end.order);
    for EdgeEnd { peer, block, .. } in ends {
        match block.buffer {
            Input => b.send(peer, block, &[]),
            Output | Scratch => b.recv(peer, block, &[]),
        };
    }
    b.build()
}

/// Returns the blocks that a rank sends to itself: positions in `to`, and the positions in `from` where they arrive.
///
/// # Panics
/// Panics if one list names the rank more often than the other; for a [`Grid`](EdgePairing::Grid), if `from` has an odd number of
/// entries.
pub(crate) fn self_blocks(
    me: usize,
    to: &[NeighborEdge],
    from: &[NeighborEdge],
    pairing: EdgePairing,
) -> Vec<(usize, usize)> {
    let gives: Vec<_> = (0..to.len())
        .filter(|at| to[*at].rank == Some(me))
        .collect();
    let takes: Vec<_> = in_order(from, pairing)
        .filter(|at| from[*at].rank == Some(me))
        .collect();
    assert_eq!(gives.len(), takes.len(), "an edge to oneself has two ends");
    gives.into_iter().zip(takes).collect()
}

/// One end of a message.
struct EdgeEnd {
    /// Position of the edge in the order of all edges: how far it goes, and from where. Edges between the same two ranks are in
    /// the order of the lists.
    order: (usize, usize),
    peer: usize,
    /// The block in the input at the sender, and in the output at the receiver.
    block: BufferSpan,
}

impl EdgeEnd {
    fn new(place: &RankLayout<'_>, from: usize, to: usize, block: BufferSpan) -> Self {
        let peer = if from == place.rank() { to } else { from };
        place.assert_rank(peer);
        let distance = (to + place.size() - from) % place.size();
        Self {
            order: (distance, from),
            peer,
            block,
        }
    }
}

/// Returns the receives, as positions in `from`, in the order in which the other ranks send.
fn in_order(from: &[NeighborEdge], pairing: EdgePairing) -> impl Iterator<Item = usize> {
    let flip = match pairing {
        EdgePairing::Graph => 0,
        EdgePairing::Grid => {
            assert!(from.len().is_multiple_of(2), "pairs of neighbors");
            1
        }
    };
    (0..from.len()).map(move |at| at ^ flip)
}
