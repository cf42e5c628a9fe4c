//! Communicators whose ranks name their neighbors.

use std::{fmt, ops::Deref, panic::Location, sync::Arc};

use ripstop_rt::{
    Comm, Result,
    internal::{CommInternals, offload::CollectiveSignature},
};

use crate::{
    Edges, Neighborhood,
    call::OrderedCall,
    call_spec::{CallSpec, CollectiveKind},
    op::{BarrierOp, NewVec, NewVecOp, Nothing},
    plan::EdgePairing,
    ragged::{RaggedOp, boxed_finish},
    tuning::AUTO,
};

/// A communicator whose ranks have named their neighbors. Made by [`Graph::new`].
///
/// It is a [`Comm`] of its own, with all its methods.
#[derive(Clone)]
pub struct Graph {
    comm: Comm,
    sources: Vec<usize>,
    destinations: Vec<usize>,
}

impl Graph {
    /// Makes the graph in which this rank receives from `sources` and sends to `destinations`. A rank may be named several
    /// times; its blocks then match in the order of the two lists. This is a collective that exchanges one number between all
    /// ranks. It starts when called, and proceeds by itself while the runtime is open.
    ///
    /// # Errors
    /// A rank that does not exist, or an edge that its other end does not name.
    #[track_caller]
    pub fn new(
        comm: &Comm,
        sources: &[usize],
        destinations: &[usize],
    ) -> impl Future<Output = Result<Self>> + Send + use<> {
        let dup = comm.dup_as("graph", CollectiveSignature::of("graph"));
        let (sources, destinations) = (sources.to_vec(), destinations.to_vec());
        // Other ranks may await several graphs in another order.
        let at = Location::caller();
        RaggedOp::new(async move {
            let comm = dup.await?;
            let theirs = exchange(&comm, counts(&comm, &destinations), at).await?;
            agree(&comm, wrong(&comm, &sources, &destinations, &theirs), at).await?;
            Ok(boxed_finish(|| Self {
                comm,
                sources,
                destinations,
            }))
        })
    }
}

impl Graph {
    /// Like [`Comm::named`].
    #[must_use]
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        let comm = self.comm.named(name);
        Self { comm, ..self }
    }
}

/// Counts how often each rank is named.
fn counts(comm: &Comm, destinations: &[usize]) -> Vec<u32> {
    let mut counts = vec![0; comm.size()];
    for &to in destinations {
        if let Some(count) = counts.get_mut(to) {
            *count += 1;
        }
    }
    counts
}

/// Returns the fault of this rank's edges, if any; `theirs` is how often each rank sends to this one.
fn wrong(comm: &Comm, sources: &[usize], destinations: &[usize], theirs: &[u32]) -> Option<String> {
    let (me, size) = (comm.rank(), comm.size());
    let mut named = sources.iter().chain(destinations);
    if let Some(rank) = named.find(|rank| **rank >= size) {
        return Some(format!(
            "a neighbor is rank {rank}, and there are ranks 0..{size}"
        ));
    }
    (0..).zip(theirs).find_map(|(rank, &theirs)| {
        let ours = sources.iter().filter(|source| **source == rank).count();
        (ours != theirs as usize).then(|| {
            format!(
                "`sources` names rank {rank} {ours} times, but its `destinations` name rank {me} {theirs} times: the two \
                 must agree"
            )
        })
    })
}

/// Exchanges one number between each pair of ranks.
fn exchange(comm: &Comm, counts: Vec<u32>, at: &'static Location<'static>) -> NewVecOp<Vec<u32>> {
    let spec = CallSpec::of(CollectiveKind::AllToAll, "graph").share(counts.len(), comm.size());
    let mut call = OrderedCall::new::<u32>(comm, &AUTO, &spec).called_at(at);
    let room = call.output_vec();
    call.begin(None, counts, room, NewVec)
}

/// Lets all ranks meet, and fails on all of them if one has a fault.
fn agree(comm: &Comm, wrong: Option<String>, at: &'static Location<'static>) -> BarrierOp {
    let spec = CallSpec::of(CollectiveKind::Barrier, "graph");
    let mut call = OrderedCall::new::<u8>(comm, &AUTO, &spec).called_at(at);
    if let Some(sentence) = wrong {
        call.refuse(sentence);
    }
    call.begin(None, [], [], Nothing)
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
            pairing: EdgePairing::Graph,
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
