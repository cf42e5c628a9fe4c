//! Neighbourhood collectives: every rank exchanges blocks with the neighbours that it names.

use super::{
    Place, Plan,
    builder::Builder,
    step::{
        Buffer::{Input, Output, Scratch},
        Span,
    },
};

/// One edge of a neighbourhood, as one end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The other end; `None` beyond the edge of a grid that is not periodic: its block is there, and nothing happens to it.
    pub rank: Option<usize>,
    /// Where its block begins, in elements. The blocks sent may overlap (an allgather sends one to all), those received may
    /// not.
    pub start: usize,
    /// The length of its block, in elements.
    pub len: usize,
}

/// Which block is which when two ranks share several edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pairing {
    /// In the order of the lists, as in MPI's graphs: the first block sent to a rank is the first received there.
    Graph,
    /// Neighbours come in pairs, down and up one dimension, as in MPI's cartesian grids: what goes down arrives from above,
    /// even when both are one rank.
    Grid,
}

/// The plan of a rank that sends blocks of its input to `to` and receives blocks of its output from `from`: messages go
/// straight between the ends. α + mβ for each neighbour, m being its block; as many steps as edges, no scratch, and all
/// receives land in the output. No step waits for another.
///
/// # Panics
/// When a neighbour is no rank of the group; for a [`Grid`](Pairing::Grid), when `from` has an odd number of entries; when the
/// own rank is named more often in one list than in the other, or with another length.
#[must_use]
pub fn neighbours(
    place: &Place<'_>,
    to: &[Neighbour],
    from: &[Neighbour],
    pairing: Pairing,
) -> Plan {
    let mut b = Builder::new(place).telling_all();
    let me = place.rank();
    for (give, take) in kept(me, to, from, pairing) {
        let (give, take) = (to[give], from[take]);
        assert_eq!(give.len, take.len, "an edge to oneself has two like ends");
        let given = Input.span(give.start, give.len);
        b.copy(given, Output.span(take.start, take.len), &[]);
    }
    let mut ends = Vec::with_capacity(to.len() + from.len());
    let others = |edge: &Neighbour| edge.rank.filter(|rank| *rank != me);
    for edge in to {
        let block = Input.span(edge.start, edge.len);
        ends.extend(others(edge).map(|to| End::new(place, (me, to), block)));
    }
    for at in in_order(from, pairing) {
        let block = Output.span(from[at].start, from[at].len);
        ends.extend(others(&from[at]).map(|from| End::new(place, (from, me), block)));
    }
    // All ranks go through their edges in one order of all edges of the graph, whatever that is and in whatever order they name
    // them. So the first of all that is not over is the first that is not over at both of its ends, and any lookahead will do.
    ends.sort_by_key(|end| end.turn);
    for End { peer, block, .. } in ends {
        match block.buffer {
            Input => b.send(peer, block, &[]),
            Output | Scratch => b.recv(peer, block, &[]),
        };
    }
    b.build()
}

/// The blocks that a rank sends to itself, by their places in `to`, and the places in `from` where they arrive.
///
/// # Panics
/// When one list names the rank more often than the other; for a [`Grid`](Pairing::Grid), when `from` has an odd number of
/// entries.
pub(crate) fn kept(
    me: usize,
    to: &[Neighbour],
    from: &[Neighbour],
    pairing: Pairing,
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

/// An end of a message.
struct End {
    /// Of the edge in the order of all: how far it goes, and from where. Edges between the same two ranks are in the order of
    /// the lists.
    turn: (usize, usize),
    peer: usize,
    /// Of the input where it is sent, and of the output where it is received.
    block: Span,
}

impl End {
    fn new(place: &Place<'_>, (from, to): (usize, usize), block: Span) -> Self {
        let peer = if from == place.rank() { to } else { from };
        place.assert_rank(peer);
        let distance = (to + place.size() - from) % place.size();
        Self {
            turn: (distance, from),
            peer,
            block,
        }
    }
}

/// The receives, by their places, in the order in which the others send.
fn in_order(from: &[Neighbour], pairing: Pairing) -> impl Iterator<Item = usize> {
    let flip = match pairing {
        Pairing::Graph => 0,
        Pairing::Grid => {
            assert!(from.len().is_multiple_of(2), "pairs of neighbours");
            1
        }
    };
    (0..from.len()).map(move |at| at ^ flip)
}
