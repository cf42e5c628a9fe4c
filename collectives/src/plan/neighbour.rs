//! Neighbourhood collectives: every rank exchanges blocks with the neighbours that it names.

use super::{
    Place, Plan,
    builder::Builder,
    step::{
        Buffer::{Input, Output},
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
/// receives land in the output. No step waits for another, and all receives must be exposed at once:
/// [`LOOKAHEAD_MIN`](super::LOOKAHEAD_MIN) is not enough for any graph.
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
    let mut own: Vec<Span> = Vec::new();
    for edge in to {
        let block = Input.span(edge.start, edge.len);
        match edge.rank {
            Some(rank) if rank == place.rank() => own.push(block),
            Some(rank) => {
                place.assert_rank(rank);
                b.send(rank, block, &[]);
            }
            None => {}
        }
    }
    let mut own = own.into_iter();
    for edge in in_order(from, pairing) {
        let block = Output.span(edge.start, edge.len);
        match edge.rank {
            Some(rank) if rank == place.rank() => {
                let block_out = own.next().filter(|given| given.len == block.len);
                b.copy(
                    block_out.expect("an edge to oneself has two like ends"),
                    block,
                    &[],
                );
            }
            Some(rank) => {
                place.assert_rank(rank);
                b.recv(rank, block, &[]);
            }
            None => {}
        }
    }
    assert!(own.next().is_none(), "an edge to oneself has two ends");
    b.build()
}

/// The receives in the order in which the others send.
fn in_order(from: &[Neighbour], pairing: Pairing) -> Vec<Neighbour> {
    match pairing {
        Pairing::Graph => from.to_vec(),
        Pairing::Grid => {
            let pairs = from.chunks(2);
            let swapped =
                pairs.map(|pair| <[Neighbour; 2]>::try_from(pair).expect("pairs of neighbours"));
            swapped.flat_map(|[down, up]| [up, down]).collect()
        }
    }
}
