//! Communicators whose ranks name their neighbours.

use std::{fmt, ops::Deref};

use ripstop_rt::{Comm, Result};

use crate::{
    Collectives, Edges, Neighborhood, Tuning,
    ask::{Ask, Verb},
    call::Call,
    op::{BarrierOp, Nothing},
    plan::Pairing,
};

/// A communicator whose ranks have named their neighbours. Made by [`Graph::new`].
///
/// It is a [`Comm`] of its own, with all of its methods.
#[derive(Clone)]
pub struct Graph {
    comm: Comm,
    sources: Vec<usize>,
    destinations: Vec<usize>,
}

impl Graph {
    /// The graph in which this rank receives from `sources` and sends to `destinations`; a rank may be named several times, and
    /// its blocks then meet in the order of the two lists. Collective; takes an exchange of one number between all ranks.
    ///
    /// # Errors
    /// A rank that there is not, or an edge that its other end does not name.
    pub async fn new(comm: &Comm, sources: &[usize], destinations: &[usize]) -> Result<Self> {
        let comm = comm.dup().await?;
        let size = comm.size();
        let mut counts = vec![0_u32; size];
        let named = sources.iter().chain(destinations);
        let stranger = named.copied().find(|rank| *rank >= size);
        for to in destinations.iter().filter(|rank| **rank < size) {
            counts[*to] += 1;
        }
        let theirs = comm.all_to_all(counts).await?;
        let mut wrong = stranger
            .map(|rank| format!("a neighbour is rank {rank}, and there are ranks 0..{size}"));
        for (rank, theirs) in (0..).zip(&theirs) {
            let ours = sources.iter().filter(|source| **source == rank).count();
            if ours != *theirs as usize && wrong.is_none() {
                wrong = Some(format!(
                    "`sources` names rank {rank} {ours} times, and its `destinations` name rank {} {theirs} times",
                    comm.rank()
                ));
            }
        }
        agree(&comm, wrong).await?;
        Ok(Self {
            comm,
            sources: sources.to_vec(),
            destinations: destinations.to_vec(),
        })
    }
}

/// All ranks meet, and hear if something is wrong with one.
fn agree(comm: &Comm, wrong: Option<String>) -> BarrierOp {
    let ask = Ask::of(Verb::Barrier, "graph");
    let mut call = Call::new::<u8>(comm, &Tuning::AUTO, &ask);
    if let Some(sentence) = wrong {
        call.refuse(sentence);
    }
    call.begin(None, ([], []), Nothing)
}

impl Neighborhood for Graph {
    fn communicator(&self) -> &Comm {
        &self.comm
    }

    fn edges(&self) -> Edges {
        let all = |ranks: &[usize]| ranks.iter().copied().map(Some).collect();
        Edges {
            sources: all(&self.sources),
            destinations: all(&self.destinations),
            pairing: Pairing::Graph,
        }
    }
}

impl Deref for Graph {
    type Target = Comm;

    fn deref(&self) -> &Comm {
        &self.comm
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("comm", &self.comm)
            .field("sources", &self.sources)
            .field("destinations", &self.destinations)
            .finish()
    }
}
