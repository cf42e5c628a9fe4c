//! Collectives among neighbours: on grids, and on graphs.

use std::{fmt, ops::Deref};

use ripstop_rt::{
    Cart, Comm, Result,
    buffer::{RecvBuf, SendBuf, Wire},
    offload::Signature,
};

use crate::{
    Collectives, Tuning,
    ask::{Ask, Verb},
    cache::Ready,
    call::Call,
    lower::lower,
    op::{BarrierOp, Both, ExchangeOp, Fresh, FreshOp, Nothing},
    plan::{Neighbour, Pairing, Place, neighbours},
};

/// Collectives in which every rank exchanges blocks with its neighbours: on a [`Cart`], the ranks one down and one up each
/// dimension, in that order; on a [`Graph`], those that were named.
///
/// The rules are those of [`Collectives`]. Beyond the edge of a grid that does not wrap around is nobody: the block for it is
/// skipped, and the one from it stays as it was, zero in a new vector.
pub trait Neighborhood {
    /// The communicator of the neighbourhood.
    fn communicator(&self) -> &Comm;

    /// Whom this rank receives from, and whom it sends to; block `i` is for, or from, neighbour `i`.
    fn edges(&self) -> Edges;

    /// Gives every neighbour this rank's block, and gets theirs. All blocks have the same length.
    #[track_caller]
    fn neighbor_all_gather<S: SendBuf>(&self, send: S) -> FreshOp<S> {
        let cut = Cut::one_to_all(send.elems().len());
        fresh(self, "neighbor_all_gather", &cut, send)
    }

    /// As [`neighbor_all_gather`](Self::neighbor_all_gather), into a buffer.
    #[track_caller]
    fn neighbor_all_gather_into<S, R>(&self, send: S, recv: R) -> ExchangeOp<S, R>
    where
        S: SendBuf,
        R: RecvBuf<Elem = S::Elem>,
    {
        let cut = Cut::one_to_all(send.elems().len());
        exchange(self, "neighbor_all_gather_into", &cut, (send, recv))
    }

    /// As [`neighbor_all_gather`](Self::neighbor_all_gather), with blocks of `recv_counts[i]` elements from neighbour `i`.
    #[track_caller]
    fn neighbor_all_gather_v<S: SendBuf>(&self, send: S, recv_counts: &[usize]) -> FreshOp<S> {
        let send_len = send.elems().len();
        let recvs = Some(recv_counts);
        let cut = Cut {
            recvs,
            ..Cut::one_to_all(send_len)
        };
        fresh(self, "neighbor_all_gather_v", &cut, send)
    }

    /// Gives neighbour `i` block `i`, and gets one of each. All blocks have the same length.
    #[track_caller]
    fn neighbor_all_to_all<S: SendBuf>(&self, send: S) -> FreshOp<S> {
        let cut = Cut::equal(send.elems().len());
        fresh(self, "neighbor_all_to_all", &cut, send)
    }

    /// As [`neighbor_all_to_all`](Self::neighbor_all_to_all), into a buffer.
    #[track_caller]
    fn neighbor_all_to_all_into<S, R>(&self, send: S, recv: R) -> ExchangeOp<S, R>
    where
        S: SendBuf,
        R: RecvBuf<Elem = S::Elem>,
    {
        let cut = Cut::equal(send.elems().len());
        exchange(self, "neighbor_all_to_all_into", &cut, (send, recv))
    }

    /// As [`neighbor_all_to_all`](Self::neighbor_all_to_all), with `send_counts[i]` elements for neighbour `i`, and
    /// `recv_counts[i]` from it.
    #[track_caller]
    fn neighbor_all_to_all_v<S: SendBuf>(
        &self,
        send: S,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> FreshOp<S> {
        let cut = Cut::counted(send_counts, recv_counts);
        fresh(self, "neighbor_all_to_all_v", &cut, send)
    }

    /// As [`neighbor_all_to_all_v`](Self::neighbor_all_to_all_v), into a buffer.
    #[track_caller]
    fn neighbor_all_to_all_v_into<S, R>(
        &self,
        send: S,
        send_counts: &[usize],
        recv: R,
        recv_counts: &[usize],
    ) -> ExchangeOp<S, R>
    where
        S: SendBuf,
        R: RecvBuf<Elem = S::Elem>,
    {
        let cut = Cut::counted(send_counts, recv_counts);
        exchange(self, "neighbor_all_to_all_v_into", &cut, (send, recv))
    }
}

/// A rank's neighbours; `None` is beyond an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what a neighbourhood is")]
pub struct Edges {
    /// Whom it receives from.
    pub sources: Vec<Option<usize>>,
    /// Whom it sends to.
    pub destinations: Vec<Option<usize>>,
    /// Which block is which when two ranks share several edges.
    pub pairing: Pairing,
}

/// How the two buffers are cut. Lengths are in elements.
#[derive(Clone, Copy)]
struct Cut<'a> {
    /// Elements that are handed over.
    given: usize,
    /// The same block goes to all.
    one: bool,
    sends: Option<&'a [usize]>,
    recvs: Option<&'a [usize]>,
}

impl<'a> Cut<'a> {
    const fn one_to_all(given: usize) -> Self {
        Self {
            given,
            one: true,
            sends: None,
            recvs: None,
        }
    }

    const fn equal(given: usize) -> Self {
        Self {
            one: false,
            ..Self::one_to_all(given)
        }
    }

    const fn counted(sends: &'a [usize], recvs: &'a [usize]) -> Self {
        Self {
            given: 0,
            one: false,
            sends: Some(sends),
            recvs: Some(recvs),
        }
    }

    /// The program of a rank, and what it must agree on with its neighbours.
    fn make<T: Wire>(&self, place: &Place<'_>, name: &str, edges: &Edges) -> Result<Ready, String> {
        let outgoing = edges.destinations.len();
        let block = if self.one {
            self.given
        } else if self.given.is_multiple_of(outgoing.max(1)) {
            self.given.checked_div(outgoing).unwrap_or(0)
        } else {
            let given = self.given;
            return Err(format!(
                "`send` has {given} elements, no multiple of the {outgoing} neighbours: other blocks take counts"
            ));
        };
        let (to, input) = self.ends::<T>("send_counts", &edges.destinations, self.sends, block)?;
        let (from, output) = self.ends::<T>("recv_counts", &edges.sources, self.recvs, block)?;
        let input = if self.one { self.given } else { input };
        let plan = neighbours(place, &to, &from, edges.pairing);
        let program =
            lower::<T>(&plan, (input, output), false).map_err(|misfit| misfit.to_string())?;
        // Counted blocks are compared by their messages.
        let counted = self.recvs.is_some();
        let agreed = if counted { 0 } else { block as u64 };
        Ok(Ready {
            program: program.into(),
            signature: Signature::of(name).with_type::<T>().with(agreed),
        })
    }

    /// One side's blocks, and their length in all.
    fn ends<T>(
        &self,
        name: &str,
        ranks: &[Option<usize>],
        counts: Option<&[usize]>,
        block: usize,
    ) -> Result<(Vec<Neighbour>, usize), String> {
        if let Some(counts) = counts.filter(|counts| counts.len() != ranks.len()) {
            let (has, needed) = (counts.len(), ranks.len());
            return Err(format!(
                "`{name}` has {has} entries, and there are {needed} neighbours"
            ));
        }
        let repeats = self.one && name == "send_counts";
        let (mut start, mut ends) = (0_usize, Vec::with_capacity(ranks.len()));
        for (at, rank) in ranks.iter().enumerate() {
            let len = counts.map_or(block, |counts| counts[at]);
            ends.push(Neighbour {
                rank: *rank,
                start,
                len,
            });
            if !repeats {
                let end = start.checked_add(len);
                let fits = |end: &usize| end.checked_mul(size_of::<T>()).is_some();
                start = end
                    .filter(fits)
                    .ok_or_else(|| format!("`{name}` add up to more than memory can have"))?;
            }
        }
        Ok((ends, start))
    }
}

#[track_caller]
fn fresh<S: SendBuf>(
    on: &(impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &Cut<'_>,
    send: S,
) -> FreshOp<S> {
    let call = call::<S::Elem>(on, name, cut);
    let recv = call.room();
    call.begin(None, (send, recv), Fresh)
}

#[track_caller]
fn exchange<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
    on: &(impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &Cut<'_>,
    buffers: (S, R),
) -> ExchangeOp<S, R> {
    call::<S::Elem>(on, name, cut).begin(None, buffers, Both)
}

#[track_caller]
fn call<'a, T: Wire>(
    on: &'a (impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &Cut<'_>,
) -> Call<'a> {
    let comm = on.communicator();
    let place = Place::new(comm.rank(), comm.size());
    Call::of(comm, name, cut.make::<T>(&place, name, &on.edges()))
}

impl Neighborhood for Cart {
    fn communicator(&self) -> &Comm {
        self
    }

    fn edges(&self) -> Edges {
        let dims = 0..self.dims().len();
        let pairs = dims.map(|dim| self.shift(dim, 1));
        let ranks: Vec<_> = pairs.flat_map(|(down, up)| [down, up]).collect();
        Edges {
            sources: ranks.clone(),
            destinations: ranks,
            pairing: Pairing::Grid,
        }
    }
}

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
