//! Collectives among neighbours: on grids, and on graphs.

use ripstop_rt::{
    Cart, Comm, Result,
    buffer::{self, RecvBuf, SendBuf, Wire},
    offload::Signature,
};

use crate::{
    around::Around,
    ask::BYTES_MAX,
    cache::{Cache, Ready},
    call::Call,
    lower::lower,
    op::{Both, ExchangeOp, Fresh, FreshOp},
    persistent::{Draft, ExchangePlan},
    plan::{Neighbour, Pairing, Place, kept, neighbours},
};

/// Collectives in which every rank exchanges blocks with its neighbours: on a [`Cart`], the ranks one down and one up each
/// dimension, in that order; on a [`Graph`](crate::Graph), those that were named.
///
/// The rules are those of [`Collectives`](crate::Collectives). Ranks may call different forms of one collective, with counts and
/// without: only who are neighbours have to agree on the lengths of blocks. Beyond the edge of a grid that does not wrap around
/// is nobody: the block for it is skipped, and the one from it stays as it was, zero in a new vector.
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
        let cut = Cut::one_to_all(send.elems().len()).receiving(recv_counts);
        fresh(self, "neighbor_all_gather_v", &cut, send)
    }

    /// As [`neighbor_all_gather_v`](Self::neighbor_all_gather_v), into a buffer.
    #[track_caller]
    fn neighbor_all_gather_v_into<S, R>(
        &self,
        send: S,
        recv: R,
        recv_counts: &[usize],
    ) -> ExchangeOp<S, R>
    where
        S: SendBuf,
        R: RecvBuf<Elem = S::Elem>,
    {
        let cut = Cut::one_to_all(send.elems().len()).receiving(recv_counts);
        exchange(self, "neighbor_all_gather_v_into", &cut, (send, recv))
    }

    /// Gives neighbour `i` block `i`, and gets one of each. All blocks have the same length.
    ///
    /// A rank that receives and sends to nobody does not say with `send` how long they are: on such a rank this is an error, and
    /// another form is the one to call.
    #[track_caller]
    fn neighbor_all_to_all<S: SendBuf>(&self, send: S) -> FreshOp<S> {
        let cut = Cut::equal(send.elems().len());
        fresh(self, "neighbor_all_to_all", &cut, send)
    }

    /// As [`neighbor_all_to_all`](Self::neighbor_all_to_all), into a buffer. On a rank that sends to nobody, `recv` has room for
    /// just the blocks that come, and so says how long they are.
    #[track_caller]
    fn neighbor_all_to_all_into<S, R>(&self, send: S, mut recv: R) -> ExchangeOp<S, R>
    where
        S: SendBuf,
        R: RecvBuf<Elem = S::Elem>,
    {
        let room = Some(buffer::room(&mut recv));
        let cut = Cut {
            room,
            ..Cut::equal(send.elems().len())
        };
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

    /// A [`neighbor_all_gather`](Self::neighbor_all_gather) of blocks of `block` elements that is planned once. Making it is a
    /// collective of all ranks.
    ///
    /// # Errors
    /// As of the other collectives; so for the plans below.
    #[track_caller]
    fn neighbor_all_gather_plan<T: Wire>(
        &self,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        planned(self, "neighbor_all_gather_plan", &Cut::one_to_all(block))
    }

    /// A [`neighbor_all_gather_v`](Self::neighbor_all_gather_v) of a block of `send_len` elements, and of `recv_counts[i]` from
    /// neighbour `i`, that is planned once.
    #[track_caller]
    fn neighbor_all_gather_v_plan<T: Wire>(
        &self,
        send_len: usize,
        recv_counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let cut = Cut::one_to_all(send_len).receiving(recv_counts);
        planned(self, "neighbor_all_gather_v_plan", &cut)
    }

    /// A [`neighbor_all_to_all`](Self::neighbor_all_to_all) with blocks of `block` elements that is planned once.
    #[track_caller]
    fn neighbor_all_to_all_plan<T: Wire>(
        &self,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let edges = self.edges();
        let counts = |of: &[_]| vec![block; of.len()];
        let (sends, recvs) = (counts(&edges.destinations), counts(&edges.sources));
        planned(
            self,
            "neighbor_all_to_all_plan",
            &Cut::counted(&sends, &recvs),
        )
    }

    /// A [`neighbor_all_to_all_v`](Self::neighbor_all_to_all_v) that is planned once.
    #[track_caller]
    fn neighbor_all_to_all_v_plan<T: Wire>(
        &self,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let cut = Cut::counted(send_counts, recv_counts);
        planned(self, "neighbor_all_to_all_v_plan", &cut)
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
pub(crate) struct Cut<'a> {
    /// Elements that are handed over.
    pub(crate) given: usize,
    /// Elements that the caller has room for, where that may say how long blocks are.
    pub(crate) room: Option<usize>,
    /// The same block goes to all.
    pub(crate) one: bool,
    pub(crate) sends: Option<&'a [usize]>,
    pub(crate) recvs: Option<&'a [usize]>,
}

impl<'a> Cut<'a> {
    pub(crate) const fn one_to_all(given: usize) -> Self {
        Self {
            given,
            room: None,
            one: true,
            sends: None,
            recvs: None,
        }
    }

    const fn receiving(self, counts: &'a [usize]) -> Self {
        let recvs = Some(counts);
        Self { recvs, ..self }
    }

    const fn equal(given: usize) -> Self {
        Self {
            one: false,
            ..Self::one_to_all(given)
        }
    }

    pub(crate) const fn counted(sends: &'a [usize], recvs: &'a [usize]) -> Self {
        Self {
            given: 0,
            room: None,
            one: false,
            sends: Some(sends),
            recvs: Some(recvs),
        }
    }

    /// The program of a rank, and what it must agree on with its neighbours.
    fn make<T: Wire>(&self, place: &Place<'_>, edges: &Edges) -> Result<Ready, String> {
        let block = self.block(edges)?;
        let (to, input) = self.ends::<T>("send_counts", &edges.destinations, self.sends, block)?;
        let (from, output) = self.ends::<T>("recv_counts", &edges.sources, self.recvs, block)?;
        let input = if self.one { self.given } else { input };
        if !has_room::<T>(input) {
            return Err(format!(
                "a block of {input} elements is more than memory can have"
            ));
        }
        for (give, take) in kept(place.rank(), &to, &from, edges.pairing) {
            let (given, taken) = (to[give].len, from[take].len);
            if given != taken {
                let what = match self.sends {
                    Some(_) => format!("`send_counts[{give}]` is {given}"),
                    None => format!("`send` has {given} elements"),
                };
                return Err(format!(
                    "{what} and `recv_counts[{take}]` is {taken}: what stays has one length"
                ));
            }
        }
        let plan = neighbours(place, &to, &from, edges.pairing);
        let program =
            lower::<T>(&plan, (input, output), false).map_err(|misfit| misfit.to_string())?;
        Ok(Ready {
            program: program.into(),
            // Neighbours compare the lengths of blocks by their messages.
            signature: Signature::of(self.verb()).with_type::<T>(),
        })
    }

    const fn verb(&self) -> &'static str {
        if self.one {
            "neighbor_all_gather"
        } else {
            "neighbor_all_to_all"
        }
    }

    /// The length of a block that has no count.
    fn block(&self, edges: &Edges) -> Result<usize, String> {
        let (outgoing, incoming) = (edges.destinations.len(), edges.sources.len());
        if self.one {
            return Ok(self.given);
        }
        let (name, all, neighbours) = match self.room {
            _ if outgoing > 0 || self.given > 0 => ("send", self.given, outgoing),
            _ if incoming == 0 || self.recvs.is_some() => return Ok(0),
            Some(room) => ("recv", room, incoming),
            None => {
                let sentence = "`send` is for nobody and does not say how long blocks are: call a form with `recv` or counts";
                return Err(sentence.to_owned());
            }
        };
        if !all.is_multiple_of(neighbours) {
            return Err(format!(
                "`{name}` has {all} elements, no multiple of the {neighbours} neighbours: other blocks take counts"
            ));
        }
        Ok(all / neighbours)
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
                start = end
                    .filter(|end| has_room::<T>(*end))
                    .ok_or_else(|| format!("`{name}` add up to more than memory can have"))?;
            }
        }
        Ok((ends, start))
    }
}

/// Whether memory may have so many elements.
fn has_room<T>(len: usize) -> bool {
    let bytes = len.checked_mul(size_of::<T>());
    bytes.is_some_and(|bytes| bytes <= BYTES_MAX)
}

#[track_caller]
fn fresh<S: SendBuf>(
    on: &(impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &Cut<'_>,
    send: S,
) -> FreshOp<S> {
    let mut call = call::<S::Elem>(on, name, cut);
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
fn planned<T: Wire, N: Neighborhood + ?Sized>(
    on: &N,
    name: &'static str,
    cut: &Cut<'_>,
) -> impl Future<Output = Result<ExchangePlan<T>>> + Send + use<T, N> {
    let comm = on.communicator();
    Draft::<T>::new(comm, name, ready::<T>(on, cut)).agreed(comm.clone(), None)
}

#[track_caller]
fn call<'a, T: Wire>(
    on: &'a (impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &Cut<'_>,
) -> Call<'a> {
    Call::of(on.communicator(), name, ready::<T>(on, cut))
}

/// The program of a call, kept or new.
fn ready<T: Wire>(on: &(impl Neighborhood + ?Sized), cut: &Cut<'_>) -> Result<Ready, String> {
    let comm = on.communicator();
    let (place, edges) = (Place::new(comm.rank(), comm.size()), on.edges());
    let (kept, elem) = (&comm.attached::<Cache>().around, T::SIG.0);
    let found = kept.find(|around| around.is(&place, elem, cut, &edges));
    found.map_or_else(
        || {
            let made = cut.make::<T>(&place, &edges)?;
            comm.name_signature(made.signature, || format!("{} ({})", cut.verb(), T::SIG));
            // Its numbers are those of edges, of which each has a step.
            kept.keep(Around::of(&place, elem, cut, edges), &made, 0);
            Ok(made)
        },
        Ok,
    )
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
