//! Collectives among neighbors, on grids and on graphs.

use ripstop_rt::{
    Cart, Comm, OpError, Result,
    buffer::{RecvBuf, SendBuf, Wire},
    internal::{CommInternals, offload::CollectivePlace, room},
};

use crate::{
    block_layout::BlockLayout,
    cache::{CachedProgram, ProgramCache},
    call::OrderedCall,
    neighborhood_key::NeighborhoodKey,
    op::{Both, ExchangeOp, NewVec, NewVecOp},
    persistent::{ExchangePlan, PlanProposal},
    plan::{EdgePairing, RankLayout},
    ragged::{self, RaggedOp},
};

/// Collectives in which every rank exchanges blocks with its neighbors. On a [`Cart`], these are the ranks one down and one up
/// in each dimension, in that order. On a [`Graph`](crate::Graph), they are the ranks that were named.
///
/// The rules are those of [`Collectives`](crate::Collectives). Ranks may call different forms of one collective, with counts
/// and without, because only neighbors must agree on the lengths of blocks. Beyond the edge of a grid that does not wrap around
/// there is no rank: the block for it is skipped, and the block from it stays as it was, zero in a new vector.
pub trait Neighborhood {
    /// Returns the communicator of the neighborhood.
    fn communicator(&self) -> &Comm;

    /// Returns the ranks that this rank receives from and sends to; block `i` is for, or from, neighbor `i`.
    fn edges(&self) -> Edges;

    /// Gives every neighbor this rank's block, and gets theirs. All blocks have the same length.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Neighborhood;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let ring = world.cart(&[3], &[true]).await?;
    /// let me = ring.rank();
    /// let around = ring.neighbor_all_gather([me]).await?;
    /// assert_eq!(around, [(me + 2) % 3, (me + 1) % 3]); // of the rank one down, and of the rank one up
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_gather<S: SendBuf>(&self, send: S) -> NewVecOp<S> {
        let cut = BlockLayout::one_to_all(send.elems().len());
        fresh(self, "neighbor_all_gather", &cut, send)
    }

    /// Like [`neighbor_all_gather`](Self::neighbor_all_gather), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Neighborhood;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let line = world.cart(&[2], &[false]).await?;
    /// let (mine, around) = line.neighbor_all_gather_into([7 + line.rank()], [0; 2]).await?;
    /// assert_eq!(mine, [7 + line.rank()]);
    /// assert_eq!(around, [[0, 8], [7, 0]][line.rank()]); // no block comes from beyond the ends
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_gather_into<S, R>(&self, send: S, recv: R) -> ExchangeOp<S, R>
    where
        S: SendBuf,
        R: RecvBuf<Elem = S::Elem>,
    {
        let cut = BlockLayout::one_to_all(send.elems().len());
        exchange(self, "neighbor_all_gather_into", &cut, send, recv)
    }

    /// Like [`neighbor_all_gather`](Self::neighbor_all_gather), with blocks of `recv_counts[i]` elements from neighbor `i`.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::{Collectives, Neighborhood};
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let pair = world.graph(&[other], &[other]).await?;
    /// let mine = vec![world.rank(); world.rank() + 1]; // one element on rank 0, two on rank 1
    /// let theirs = pair.neighbor_all_gather_v(mine, &[other + 1]).await?;
    /// assert_eq!(theirs, vec![other; other + 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_gather_v<S: SendBuf>(&self, send: S, recv_counts: &[usize]) -> NewVecOp<S> {
        let cut = BlockLayout::one_to_all(send.elems().len()).receiving(recv_counts);
        fresh(self, "neighbor_all_gather_v", &cut, send)
    }

    /// Like [`neighbor_all_gather_v`](Self::neighbor_all_gather_v), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::{Collectives, Neighborhood};
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let pair = world.graph(&[other], &[other]).await?;
    /// let mine = vec![world.rank(); world.rank() + 1];
    /// let room = vec![0; other + 1];
    /// let (_mine, theirs) = pair.neighbor_all_gather_v_into(mine, room, &[other + 1]).await?;
    /// assert_eq!(theirs, vec![other; other + 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
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
        let cut = BlockLayout::one_to_all(send.elems().len()).receiving(recv_counts);
        exchange(self, "neighbor_all_gather_v_into", &cut, send, recv)
    }

    /// Gives neighbor `i` block `i`, and gets one block of each neighbor. All blocks have the same length.
    ///
    /// On a rank that receives but sends to no rank, `send` is empty and does not tell the length of a block. This is an error
    /// there; such a rank calls another form.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Neighborhood;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let line = world.cart(&[2], &[false]).await?;
    /// let (down, up) = (10.0, 20.0); // what the rank one down gets, and the rank one up
    /// let blocks = line.neighbor_all_to_all([down, up]).await?;
    /// assert_eq!(blocks, [[0.0, 10.0], [20.0, 0.0]][line.rank()]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_to_all<S: SendBuf>(&self, send: S) -> NewVecOp<S> {
        let cut = BlockLayout::equal(send.elems().len());
        fresh(self, "neighbor_all_to_all", &cut, send)
    }

    /// Like [`neighbor_all_to_all`](Self::neighbor_all_to_all), into a buffer. On a rank that sends to no rank, the length of
    /// `recv` must be that of all blocks together, and so tells the length of a block.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Neighborhood;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let ring = world.cart(&[2], &[true]).await?;
    /// let room = vec![0.0; 2];
    /// let (_sent, blocks) = ring.neighbor_all_to_all_into([10.0, 20.0], room).await?;
    /// assert_eq!(blocks, [20.0, 10.0]); // what the rank one down sent up, and the rank one up sent down
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_to_all_into<S, R>(&self, send: S, mut recv: R) -> ExchangeOp<S, R>
    where
        S: SendBuf,
        R: RecvBuf<Elem = S::Elem>,
    {
        let room = Some(room(&mut recv));
        let cut = BlockLayout {
            recv_len: room,
            ..BlockLayout::equal(send.elems().len())
        };
        exchange(self, "neighbor_all_to_all_into", &cut, send, recv)
    }

    /// Like [`neighbor_all_to_all`](Self::neighbor_all_to_all), with `send_counts[i]` elements for neighbor `i`, and
    /// `recv_counts[i]` from it.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::{Collectives, Neighborhood};
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let pair = world.graph(&[other], &[other]).await?;
    /// let (mine, theirs) = (world.rank() + 1, other + 1); // rank 1 sends two elements and gets one
    /// let block = vec![world.rank(); mine];
    /// let arrived = pair.neighbor_all_to_all_v(block, &[mine], &[theirs]).await?;
    /// assert_eq!(arrived, vec![other; theirs]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_to_all_v<S: SendBuf>(
        &self,
        send: S,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> NewVecOp<S> {
        let cut = BlockLayout::counted(send_counts, recv_counts);
        fresh(self, "neighbor_all_to_all_v", &cut, send)
    }

    /// Like [`neighbor_all_to_all_v`](Self::neighbor_all_to_all_v), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::{Collectives, Neighborhood};
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let pair = world.graph(&[other], &[other]).await?;
    /// let (mine, theirs) = (world.rank() + 1, other + 1);
    /// let (block, room) = (vec![world.rank(); mine], vec![0; theirs]);
    /// let (_block, arrived) =
    ///     pair.neighbor_all_to_all_v_into(block, &[mine], room, &[theirs]).await?;
    /// assert_eq!(arrived, vec![other; theirs]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
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
        let cut = BlockLayout::counted(send_counts, recv_counts);
        exchange(self, "neighbor_all_to_all_v_into", &cut, send, recv)
    }

    /// Gives neighbor `i` the vector `send[i]`, of any length, and gets one of each neighbor. No rank needs to know the lengths
    /// of the others, which the ranks exchange first. Ranks that call this do not match ranks that call another form.
    ///
    /// Output: `Result<Vec<Vec<T>>, OpError<Vec<Vec<T>>>>`. The vector from beyond the edge of a grid is empty, and the one for
    /// there is not sent.
    ///
    /// ```
    /// # use ripstop_collectives::{Collectives, Neighborhood};
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let ring = world.cart(&[world.size()], &[true]).await?;
    /// let leavers = vec![vec![0.5, 1.5], vec![]]; // particles that go down, and up
    /// let arrived: Vec<Vec<f64>> = ring.neighbor_all_to_all_ragged(leavers).await?;
    /// # assert_eq!(arrived, [vec![], vec![0.5, 1.5]]);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// More or fewer vectors than neighbors; and the errors of the other collectives.
    #[track_caller]
    fn neighbor_all_to_all_ragged<T: Wire>(
        &self,
        send: Vec<Vec<T>>,
    ) -> RaggedOp<Vec<Vec<T>>, OpError<Vec<Vec<T>>>> {
        ragged::neighbor_all_to_all(self, send)
    }

    /// Plans a [`neighbor_all_gather`](Self::neighbor_all_gather) of blocks of `block` elements once. Making the plan is a
    /// collective of all ranks.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Neighborhood;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let ring = world.cart(&[3], &[true]).await?;
    /// let mut plan = ring.neighbor_all_gather_plan::<f64>(1).await?;
    /// for step in 0..3 {
    ///     plan.send_mut()[0] = f64::from(step);
    ///     assert_eq!(plan.run().await?, [f64::from(step); 2]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of the other collectives; the same is true for the plans below.
    #[track_caller]
    fn neighbor_all_gather_plan<T: Wire>(
        &self,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        planned(
            self,
            "neighbor_all_gather_plan",
            &BlockLayout::one_to_all(block),
        )
    }

    /// Plans a [`neighbor_all_gather_v`](Self::neighbor_all_gather_v) of a block of `send_len` elements, and of
    /// `recv_counts[i]` from neighbor `i`, once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::{Collectives, Neighborhood};
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let pair = world.graph(&[other], &[other]).await?;
    /// let mut plan = pair.neighbor_all_gather_v_plan(world.rank() + 1, &[other + 1]).await?;
    /// plan.send_mut().fill(world.rank());
    /// assert_eq!(plan.run().await?, vec![other; other + 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_gather_v_plan<T: Wire>(
        &self,
        send_len: usize,
        recv_counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let cut = BlockLayout::one_to_all(send_len).receiving(recv_counts);
        planned(self, "neighbor_all_gather_v_plan", &cut)
    }

    /// Plans a [`neighbor_all_to_all`](Self::neighbor_all_to_all) with blocks of `block` elements once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Neighborhood;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let ring = world.cart(&[2], &[true]).await?;
    /// let mut plan = ring.neighbor_all_to_all_plan::<f64>(1).await?;
    /// for step in 0..3 {
    ///     let step = f64::from(step);
    ///     plan.send_mut().copy_from_slice(&[step, 10.0 + step]); // down, up
    ///     assert_eq!(plan.run().await?, [10.0 + step, step]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
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
            &BlockLayout::counted(&sends, &recvs),
        )
    }

    /// Plans a [`neighbor_all_to_all_v`](Self::neighbor_all_to_all_v) once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::{Collectives, Neighborhood};
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let pair = world.graph(&[other], &[other]).await?;
    /// let (mine, theirs) = (world.rank() + 1, other + 1);
    /// let mut plan = pair.neighbor_all_to_all_v_plan(&[mine], &[theirs]).await?;
    /// plan.send_mut().fill(world.rank());
    /// assert_eq!(plan.run().await?, vec![other; theirs]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn neighbor_all_to_all_v_plan<T: Wire>(
        &self,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let cut = BlockLayout::counted(send_counts, recv_counts);
        planned(self, "neighbor_all_to_all_v_plan", &cut)
    }
}

/// The neighborhood of a call that has two parts.
pub(crate) struct CalledNeighborhood {
    comm: Comm,
    edges: Edges,
}

impl CalledNeighborhood {
    pub(crate) fn of(on: &(impl Neighborhood + ?Sized)) -> Self {
        Self {
            comm: on.communicator().clone(),
            edges: on.edges(),
        }
    }
}

impl Neighborhood for CalledNeighborhood {
    fn communicator(&self) -> &Comm {
        &self.comm
    }

    fn edges(&self) -> Edges {
        self.edges.clone()
    }
}

/// A rank's neighbors; `None` is beyond an edge of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "defines a neighborhood")]
pub struct Edges {
    /// Ranks that this rank receives from.
    pub sources: Vec<Option<usize>>,
    /// Ranks that this rank sends to.
    pub destinations: Vec<Option<usize>>,
    /// Rule by which blocks match if two ranks share several edges.
    pub pairing: EdgePairing,
}

#[track_caller]
fn fresh<S: SendBuf>(
    on: &(impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &BlockLayout<'_>,
    send: S,
) -> NewVecOp<S> {
    let mut call = call::<S::Elem>(on, name, cut);
    let recv = call.output_vec();
    call.begin(None, send, recv, NewVec)
}

#[track_caller]
fn exchange<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
    on: &(impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &BlockLayout<'_>,
    send: S,
    recv: R,
) -> ExchangeOp<S, R> {
    call::<S::Elem>(on, name, cut).begin(None, send, recv, Both)
}

#[track_caller]
fn planned<T: Wire, N: Neighborhood + ?Sized>(
    on: &N,
    name: &'static str,
    cut: &BlockLayout<'_>,
) -> impl Future<Output = Result<ExchangePlan<T>>> + Send + use<T, N> {
    let comm = on.communicator();
    PlanProposal::<T>::new(comm, name, ready::<T>(on, cut)).await_agreement(comm.clone(), None)
}

#[track_caller]
pub(crate) fn call<'a, T: Wire>(
    on: &'a (impl Neighborhood + ?Sized),
    name: &'static str,
    cut: &BlockLayout<'_>,
) -> OrderedCall<'a> {
    OrderedCall::of(on.communicator(), name, ready::<T>(on, cut))
}

/// Makes the second part of a call, in the place that it has reserved.
pub(crate) fn deferred_call<'a, T: Wire>(
    on: &'a CalledNeighborhood,
    name: &'static str,
    cut: &BlockLayout<'_>,
    place: CollectivePlace,
) -> OrderedCall<'a> {
    OrderedCall::deferred(&on.comm, name, ready::<T>(on, cut), place)
}

/// Returns the program of a call, from the cache or newly made.
fn ready<T: Wire>(
    on: &(impl Neighborhood + ?Sized),
    cut: &BlockLayout<'_>,
) -> Result<CachedProgram, String> {
    let comm = on.communicator();
    let (place, edges) = (RankLayout::new(comm.rank(), comm.size()), on.edges());
    let (kept, elem) = (&comm.attached::<ProgramCache>().around, T::SIG.0);
    let found = kept.find(|around| around.matches(&place, elem, cut, &edges));
    found.map_or_else(
        || {
            let made = cut.make::<T>(&place, &edges)?;
            comm.name_signature(made.signature, || format!("{} ({})", cut.verb(), T::SIG));
            // The numbers of the key belong to edges, each of which has a step; they need no extra weight.
            kept.keep(NeighborhoodKey::of(&place, elem, cut, edges), &made, 0);
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
            pairing: EdgePairing::Grid,
        }
    }
}
