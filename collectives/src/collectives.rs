//! The collectives of a communicator.

use ripstop_rt::{
    Comm, OpError, Result,
    buffer::{RecvBuf, SendBuf, Wire},
};

use crate::{
    Graph, Tuned, Tuning,
    blocks::AllToAllOp,
    call_spec::{
        CallSpec,
        CollectiveKind::{
            AllGather, AllReduce, AllToAll, Barrier, Bcast, Exscan, Gather, Reduce, ReduceScatter,
            Scan, Scatter,
        },
    },
    op::{
        BarrierOp, ExchangeOp, InPlaceOp, NewVecOp, OptionalVecOp, ReduceInPlaceOp, ReduceIntoOp,
        ReduceNewVecOp, ReduceOptionalVecOp,
    },
    persistent::{BarrierPlan, ExchangePlan, InPlacePlan, propose_plan, propose_plan_with},
    ragged::{self, RaggedOp},
    reduction::Reduction,
    rooted, start,
};

/// Collectives: every rank of the communicator calls the same ones, in the same order.
///
/// Each call starts when it is made and proceeds while the application computes. It returns a future that owns the buffers and
/// gives them back. Several may be in flight, and they may be awaited in any order; a dropped future detaches its collective,
/// which still completes. Each communicator has an order of its own, which threads that share it must keep.
///
/// All ranks must agree on the operation, the root, the element type, the counts, a reduction's operator, and the algorithm if
/// one is [named](Self::tuned). If two ranks disagree, the collective fails with [`Mismatch`] on every rank, and the error
/// names two of them. If an argument is wrong on one rank, it fails with [`InvalidArgument`] there and with [`Aborted`]
/// elsewhere. If a member fails, it fails with [`PeerFailed`]. After any of these, later collectives on this communicator fail
/// with [`Revoked`]; messages go on, and so do other communicators. A rank that has completed its part may see the failure only
/// in its next collective, which then fails with [`Mismatch`] or [`PeerFailed`] if that is the reason.
///
/// Counts and lengths are in elements. Blocks lie in the order of ranks, without gaps. A `_v` takes a count for each rank. An
/// `_into` takes the buffer to receive into, which may be longer than needed; a vector is cut to what came.
///
/// [`Mismatch`]: ripstop_rt::ErrorKind::Mismatch
/// [`InvalidArgument`]: ripstop_rt::ErrorKind::InvalidArgument
/// [`Aborted`]: ripstop_rt::ErrorKind::Aborted
/// [`PeerFailed`]: ripstop_rt::ErrorKind::PeerFailed
/// [`Revoked`]: ripstop_rt::ErrorKind::Revoked
pub trait Collectives {
    /// Returns the communicator on which the collectives run.
    fn communicator(&self) -> &Comm;

    /// Returns the algorithms that the collectives must use.
    fn tuning(&self) -> &Tuning;

    /// Returns the same communicator with named algorithms. All ranks must name the same ones.
    ///
    /// An algorithm that does not fit the arguments of a call is an error of the call. `ripstop info --collectives` shows about
    /// what is chosen if no algorithm is named, operators commute and blocks have one length; it leaves out algorithms that
    /// gain less than 5 %. `RIPSTOP_ALLREDUCE` and similar variables name algorithms from outside.
    fn tuned(&self, tuning: Tuning) -> Tuned {
        Tuned::new(self.communicator(), tuning)
    }

    /// Completes when every rank has called it.
    ///
    /// Output: `Result<()>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let arriving = world.barrier();
    /// // Work that no other rank waits for.
    /// arriving.await?;
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[inline]
    #[track_caller]
    fn barrier(&self) -> BarrierOp {
        start::barrier(self)
    }

    /// Gives every rank `root`'s elements. All buffers have the same length.
    ///
    /// Output: `Result<B, OpError<B>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let settings = if world.rank() == 0 { [0.5, 2.0] } else { [0.0; 2] };
    /// let settings = world.bcast(0, settings).await?;
    /// assert_eq!(settings, [0.5, 2.0]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[inline]
    #[track_caller]
    fn bcast<B: RecvBuf>(&self, root: usize, buf: B) -> InPlaceOp<B> {
        start::bcast(self, root, buf)
    }

    /// Brings a block of every rank to `root`, which gets `Some` of them all. All blocks have the same length.
    ///
    /// Output: `Result<Option<Vec<T>>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let all = world.gather(1, [world.rank(), 7]).await?;
    /// let expected = (world.rank() == 1).then(|| vec![0, 7, 1, 7, 2, 7]);
    /// assert_eq!(all, expected);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather<S: SendBuf>(&self, root: usize, send: S) -> OptionalVecOp<S> {
        let spec = CallSpec::of(Gather, "gather")
            .root(root)
            .len(send.elems().len());
        start::optional_vec(self, &spec, send, root)
    }

    /// Like [`gather`](Self::gather), into a buffer of `root`'s; nothing is received into the other ranks' buffers.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let room = if world.rank() == 0 { vec![0; 3] } else { Vec::new() };
    /// let (_own, all) = world.gather_into(0, [world.rank()], room).await?;
    /// if world.rank() == 0 {
    ///     assert_eq!(all, [0, 1, 2]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(Gather, "gather_into")
            .root(root)
            .len(send.elems().len());
        start::exchange(self, &spec, send, recv)
    }

    /// Like [`gather`](Self::gather), with blocks of the lengths `counts`, which all ranks know.
    ///
    /// Output: `Result<Option<Vec<T>>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let counts = [1, 2, 3]; // Rank 2 has the most.
    /// let own = vec![world.rank(); counts[world.rank()]];
    /// if let Some(all) = world.gather_v(0, own, &counts).await? {
    ///     assert_eq!(all, [0, 1, 1, 2, 2, 2]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather_v<S: SendBuf>(&self, root: usize, send: S, counts: &[usize]) -> OptionalVecOp<S> {
        let spec = CallSpec::of(Gather, "gather_v").root(root).counts(counts);
        start::optional_vec(self, &spec, send, root)
    }

    /// Like [`gather_v`](Self::gather_v), into a buffer of `root`'s; nothing is received into the other ranks' buffers.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let counts = [2, 1];
    /// let own = vec![world.rank(); counts[world.rank()]];
    /// let (_own, all) = world.gather_v_into(0, own, [9; 3], &counts).await?;
    /// if world.rank() == 0 {
    ///     assert_eq!(all, [0, 0, 1]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(Gather, "gather_v_into")
            .root(root)
            .counts(counts);
        start::exchange(self, &spec, send, recv)
    }

    /// Gives every rank its block of `block` of `root`'s elements. `send` of the other ranks is not read and may be empty.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let rows = if world.rank() == 0 { vec![1, 2, 3, 4, 5, 6] } else { Vec::new() };
    /// let row = world.scatter(0, rows, 2).await?;
    /// assert_eq!(row, [2 * world.rank() + 1, 2 * world.rank() + 2]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter<S: SendBuf>(&self, root: usize, send: S, block: usize) -> NewVecOp<S> {
        let spec = CallSpec::of(Scatter, "scatter").root(root).len(block);
        start::new_vec(self, &spec, send)
    }

    /// Like [`scatter`](Self::scatter), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let rows = if world.rank() == 0 { vec![1.0, 2.0] } else { Vec::new() };
    /// let (_rows, [own]) = world.scatter_into(0, rows, [0.0], 1).await?;
    /// assert_eq!(own, 1.0 + world.rank() as f64);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        block: usize,
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(Scatter, "scatter_into").root(root).len(block);
        start::exchange(self, &spec, send, recv)
    }

    /// Like [`scatter`](Self::scatter), with blocks of the lengths `counts`, which all ranks know.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let rows = if world.rank() == 0 { vec![1, 2, 2, 3, 3, 3] } else { Vec::new() };
    /// let row = world.scatter_v(0, rows, &[1, 2, 3]).await?;
    /// assert_eq!(row, vec![world.rank() + 1; world.rank() + 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter_v<S: SendBuf>(&self, root: usize, send: S, counts: &[usize]) -> NewVecOp<S> {
        let spec = CallSpec::of(Scatter, "scatter_v").root(root).counts(counts);
        start::new_vec(self, &spec, send)
    }

    /// Like [`scatter_v`](Self::scatter_v), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let rows = if world.rank() == 0 { vec![1, 2, 2] } else { Vec::new() };
    /// let room = vec![0; 1 + world.rank()];
    /// let (_rows, row) = world.scatter_v_into(0, rows, room, &[1, 2]).await?;
    /// assert_eq!(row, vec![world.rank() + 1; world.rank() + 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(Scatter, "scatter_v_into")
            .root(root)
            .counts(counts);
        start::exchange(self, &spec, send, recv)
    }

    /// Gives every rank a block of every rank. All blocks have the same length.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let all = world.all_gather([10 * world.rank()]).await?;
    /// assert_eq!(all, [0, 10, 20]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_gather<S: SendBuf>(&self, send: S) -> NewVecOp<S> {
        let spec = CallSpec::of(AllGather, "all_gather").len(send.elems().len());
        start::new_vec(self, &spec, send)
    }

    /// Like [`all_gather`](Self::all_gather), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let (_own, all) = world.all_gather_into([world.rank()], [0; 2]).await?;
    /// assert_eq!(all, [0, 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_gather_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        recv: R,
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(AllGather, "all_gather_into").len(send.elems().len());
        start::exchange(self, &spec, send, recv)
    }

    /// Like [`all_gather`](Self::all_gather), with blocks of the lengths `counts`, which all ranks know.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let own = vec![world.rank(); world.rank()];
    /// let all = world.all_gather_v(own, &[0, 1, 2]).await?;
    /// assert_eq!(all, [1, 2, 2]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_gather_v<S: SendBuf>(&self, send: S, counts: &[usize]) -> NewVecOp<S> {
        let spec = CallSpec::of(AllGather, "all_gather_v").counts(counts);
        start::new_vec(self, &spec, send)
    }

    /// Like [`all_gather_v`](Self::all_gather_v), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let own = vec![world.rank(); 1 + world.rank()];
    /// let (_own, all) = world.all_gather_v_into(own, [9; 3], &[1, 2]).await?;
    /// assert_eq!(all, [0, 1, 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_gather_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        recv: R,
        counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(AllGather, "all_gather_v_into").counts(counts);
        start::exchange(self, &spec, send, recv)
    }

    /// Sends block `j` of rank `i` to rank `j`, as its block `i`. All blocks have the same length.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let me = world.rank();
    /// let received = world.all_to_all(vec![10 * me, 10 * me + 1, 10 * me + 2]).await?;
    /// assert_eq!(received, [me, 10 + me, 20 + me]); // a transposed matrix
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_to_all<S: SendBuf>(&self, send: S) -> AllToAllOp<S> {
        let spec = CallSpec::of(AllToAll, "all_to_all")
            .share(send.elems().len(), self.communicator().size());
        start::by_blocks(self, &spec, send)
    }

    /// Like [`all_to_all`](Self::all_to_all), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let me = world.rank();
    /// let (_sent, received) = world.all_to_all_into([10 * me, 10 * me + 1], [0; 2]).await?;
    /// assert_eq!(received, [me, 10 + me]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_to_all_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        recv: R,
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(AllToAll, "all_to_all_into")
            .share(send.elems().len(), self.communicator().size());
        start::exchange(self, &spec, send, recv)
    }

    /// Like [`all_to_all`](Self::all_to_all), with blocks of `send_counts[j]` elements for rank `j`, and `recv_counts[i]` from
    /// rank `i`. Each pair of ranks exchanges a message, even an empty one. With few neighbors, see [`Graph`].
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let me = world.rank();
    /// // Each rank sends 1 element to rank 0 and 2 to rank 1.
    /// let received = world.all_to_all_v([me; 3], &[1, 2], &[1 + me; 2]).await?;
    /// assert_eq!(received, [vec![0; 1 + me], vec![1; 1 + me]].concat());
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_to_all_v<S: SendBuf>(
        &self,
        send: S,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> AllToAllOp<S> {
        let spec = CallSpec::of(AllToAll, "all_to_all_v").counts(send_counts);
        start::by_blocks(self, &spec.recv_counts(recv_counts), send)
    }

    /// Like [`all_to_all_v`](Self::all_to_all_v), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let me = world.rank();
    /// let room = vec![9; 2 + 2 * me];
    /// let (_sent, received) = world.all_to_all_v_into([me; 3], &[1, 2], room, &[1 + me; 2]).await?;
    /// assert_eq!(received, [vec![0; 1 + me], vec![1; 1 + me]].concat());
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_to_all_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        send_counts: &[usize],
        recv: R,
        recv_counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let spec = CallSpec::of(AllToAll, "all_to_all_v_into").counts(send_counts);
        start::exchange(self, &spec.recv_counts(recv_counts), send, recv)
    }

    /// Combines the elements of all ranks, element by element, in place and on every rank. All ranks get the same bits.
    ///
    /// Output: `Result<B, OpError<B>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let total = world.all_reduce(world.rank(), Sum).await?; // a number in, a number out
    /// assert_eq!(total, 3);
    ///
    /// let sums = world.all_reduce([world.rank(), 1], Sum).await?;
    /// assert_eq!(sums, [3, 3]);
    ///
    /// let largest = world.all_reduce([world.rank()], |a: usize, b: usize| a.max(b)).await?;
    /// assert_eq!(largest, [2]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_reduce<B: RecvBuf, O: Reduction<B::Elem>>(
        &self,
        buf: B,
        op: O,
    ) -> ReduceInPlaceOp<B, O> {
        start::reduce_in_place(self, (AllReduce, "all_reduce"), buf, op)
    }

    /// Combines the elements of all ranks, element by element, for `root`, which gets `Some`.
    ///
    /// Output: `Result<Option<Vec<T>>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// if let Some(sums) = world.reduce(0, [world.rank(), 1], Sum).await? {
    ///     assert_eq!(sums, [3, 3]); // on rank 0; a vector also where a single number is reduced
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce<S: SendBuf, O: Reduction<S::Elem>>(
        &self,
        root: usize,
        send: S,
        op: O,
    ) -> ReduceOptionalVecOp<S, O> {
        let spec = CallSpec::of(Reduce, "reduce")
            .root(root)
            .len(send.elems().len());
        let is_root = self.communicator().rank() == root;
        start::reduce_optional_vec(self, spec, send, op, is_root)
    }

    /// Like [`reduce`](Self::reduce), into a buffer of `root`'s; nothing is received into the other ranks' buffers.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let (_own, sums) = world.reduce_into(0, [1.5, 2.0], [0.0; 2], Sum).await?;
    /// if world.rank() == 0 {
    ///     assert_eq!(sums, [3.0, 4.0]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let spec = CallSpec::of(Reduce, "reduce_into")
            .root(root)
            .len(send.elems().len());
        start::reduce_into(self, spec, send, recv, op)
    }

    /// Combines the elements of all ranks, element by element; rank `i` gets block `i` of the result, `counts[i]` elements.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let block = world.reduce_scatter([1, 2, 3], &[1, 2], Sum).await?;
    /// let expected = if world.rank() == 0 { vec![2] } else { vec![4, 6] };
    /// assert_eq!(block, expected);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_scatter<S: SendBuf, O: Reduction<S::Elem>>(
        &self,
        send: S,
        counts: &[usize],
        op: O,
    ) -> ReduceNewVecOp<S, O> {
        let spec = CallSpec::of(ReduceScatter, "reduce_scatter").counts(counts);
        start::reduce_new_vec(self, spec, send, op)
    }

    /// Like [`reduce_scatter`](Self::reduce_scatter), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let room = vec![0; 1 + world.rank()];
    /// let (_own, block) = world.reduce_scatter_into([1, 2, 3], room, &[1, 2], Sum).await?;
    /// assert_eq!(block[0], if world.rank() == 0 { 2 } else { 4 });
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_scatter_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        send: S,
        recv: R,
        counts: &[usize],
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let spec = CallSpec::of(ReduceScatter, "reduce_scatter_into").counts(counts);
        start::reduce_into(self, spec, send, recv, op)
    }

    /// Like [`reduce_scatter`](Self::reduce_scatter), with blocks of the same length.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let block = world.reduce_scatter_block([1, 2, 3, 4], Sum).await?;
    /// let expected = if world.rank() == 0 { [2, 4] } else { [6, 8] };
    /// assert_eq!(block, expected);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_scatter_block<S: SendBuf, O: Reduction<S::Elem>>(
        &self,
        send: S,
        op: O,
    ) -> ReduceNewVecOp<S, O> {
        let spec = CallSpec::of(ReduceScatter, "reduce_scatter_block")
            .share(send.elems().len(), self.communicator().size());
        start::reduce_new_vec(self, spec, send, op)
    }

    /// Like [`reduce_scatter_block`](Self::reduce_scatter_block), into a buffer.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let (_own, block) = world.reduce_scatter_block_into([1, 2], [0], Sum).await?;
    /// assert_eq!(block, [2 + 2 * world.rank()]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_scatter_block_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        send: S,
        recv: R,
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let spec = CallSpec::of(ReduceScatter, "reduce_scatter_block_into")
            .share(send.elems().len(), self.communicator().size());
        start::reduce_into(self, spec, send, recv, op)
    }

    /// Combines the elements of ranks 0 to this one, element by element and in place.
    ///
    /// Output: `Result<B, OpError<B>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let sums = world.scan([1, world.rank()], Sum).await?;
    /// let expected = [[1, 0], [2, 1], [3, 3]];
    /// assert_eq!(sums, expected[world.rank()]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scan<B: RecvBuf, O: Reduction<B::Elem>>(&self, buf: B, op: O) -> ReduceInPlaceOp<B, O> {
        start::reduce_in_place(self, (Scan, "scan"), buf, op)
    }

    /// Combines the elements of the ranks before this one, element by element. Rank 0, which has none before it, gets `None`.
    ///
    /// Output: `Result<Option<Vec<T>>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// // Where this rank's part begins in an array that all ranks share.
    /// let len = 10 + world.rank();
    /// let begin = world.exscan([len], Sum).await?.map_or(0, |sums| sums[0]);
    /// assert_eq!(begin, [0, 10, 21][world.rank()]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn exscan<S: SendBuf, O: Reduction<S::Elem>>(
        &self,
        send: S,
        op: O,
    ) -> ReduceOptionalVecOp<S, O> {
        let spec = CallSpec::of(Exscan, "exscan").len(send.elems().len());
        let has_result = self.communicator().rank() > 0;
        start::reduce_optional_vec(self, spec, send, op, has_result)
    }

    /// Like [`exscan`](Self::exscan), into a buffer. The buffer of rank 0 is undefined afterwards.
    ///
    /// Output: `Result<(S, R), OpError<(S, R)>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let (_own, before) = world.exscan_into([5], [0], Sum).await?;
    /// if world.rank() == 1 {
    ///     assert_eq!(before, [5]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn exscan_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        send: S,
        recv: R,
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let spec = CallSpec::of(Exscan, "exscan_into").len(send.elems().len());
        start::reduce_into(self, spec, send, recv, op)
    }

    /// Gives every rank the vector of `root`, whose length the other ranks need not know. They learn it first. `vector` of the
    /// other ranks is not read and may be empty.
    ///
    /// Output: `Result<Vec<T>, OpError<Vec<T>>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let text = if world.rank() == 0 { b"steps = 100".to_vec() } else { Vec::new() };
    /// let text = world.bcast_ragged(0, text).await?; // as a file that rank 0 has read
    /// assert_eq!(text, b"steps = 100");
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn bcast_ragged<T: Wire>(
        &self,
        root: usize,
        vector: Vec<T>,
    ) -> RaggedOp<Vec<T>, OpError<Vec<T>>> {
        ragged::bcast(self, root, vector)
    }

    /// Sends a vector of any length to each rank, and returns the vectors received. The ranks exchange the lengths first.
    ///
    /// Output: `Result<Vec<Vec<T>>, OpError<Vec<Vec<T>>>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let me = world.rank();
    /// let received = world.all_to_all_ragged(vec![vec![me; 1], vec![me; 2]]).await?;
    /// assert_eq!(received, [vec![0; 1 + me], vec![1; 1 + me]]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_to_all_ragged<T: Wire>(
        &self,
        send: Vec<Vec<T>>,
    ) -> RaggedOp<Vec<Vec<T>>, OpError<Vec<Vec<T>>>> {
        ragged::all_to_all(self, send)
    }

    /// Gives every rank the vectors of all ranks, of any lengths. The ranks exchange the lengths first.
    ///
    /// Output: `Result<Vec<Vec<T>>, OpError<Vec<T>>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let all = world.all_gather_ragged(vec!['x' as u32; world.rank()]).await?;
    /// let lens: Vec<usize> = all.iter().map(Vec::len).collect();
    /// assert_eq!(lens, [0, 1, 2]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_gather_ragged<T: Wire>(&self, send: Vec<T>) -> RaggedOp<Vec<Vec<T>>, OpError<Vec<T>>> {
        ragged::all_gather(self, send)
    }

    /// Gives `root` the vectors of all ranks, of any lengths; only `root` gets `Some`. The ranks exchange the lengths first.
    ///
    /// Output: `Result<Option<Vec<Vec<T>>>, OpError<Vec<T>>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// if let Some(all) = world.gather_ragged(0, vec![0.5; world.rank()]).await? {
    ///     assert_eq!(all, [vec![], vec![0.5], vec![0.5; 2]]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather_ragged<T: Wire>(
        &self,
        root: usize,
        send: Vec<T>,
    ) -> RaggedOp<Option<Vec<Vec<T>>>, OpError<Vec<T>>> {
        ragged::gather(self, root, send)
    }

    /// Gives every rank its vector of `root`'s, of any length. The ranks learn the lengths first. `root` passes one vector for
    /// each rank; `send` of the other ranks is not read and may be empty.
    ///
    /// Output: `Result<Vec<T>, OpError<Vec<Vec<T>>>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let parts = if world.rank() == 0 { vec![vec![1], vec![2, 3]] } else { Vec::new() };
    /// let own = world.scatter_ragged(0, parts).await?;
    /// assert_eq!(own.len(), 1 + world.rank());
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter_ragged<T: Wire>(
        &self,
        root: usize,
        send: Vec<Vec<T>>,
    ) -> RaggedOp<Vec<T>, OpError<Vec<Vec<T>>>> {
        ragged::scatter(self, root, send)
    }

    /// Like [`gather_v`](Self::gather_v), with `counts` that only `root` knows. It broadcasts them first. `counts` of the other
    /// ranks are not read and may be empty.
    ///
    /// Output: `Result<Option<Vec<T>>, OpError<S>>`.
    ///
    /// A rank whose `send` has another length than `root` expects fails with `InvalidArgument`, and all other ranks with
    /// `Aborted` and the number of that rank, in this or in their next collective.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let own = vec![world.rank(); world.rank() + 1];
    /// let counts: &[usize] = if world.rank() == 0 { &[1, 2, 3] } else { &[] };
    /// if let Some(all) = world.gather_v_rooted(0, own, counts).await? {
    ///     assert_eq!(all, [0, 1, 1, 2, 2, 2]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather_v_rooted<S: SendBuf>(
        &self,
        root: usize,
        send: S,
        counts: &[usize],
    ) -> RaggedOp<Option<Vec<S::Elem>>, OpError<S>> {
        rooted::gather(self, root, send, counts)
    }

    /// Like [`scatter_v`](Self::scatter_v), with `counts` that only `root` knows. It broadcasts them first. `send` and `counts`
    /// of the other ranks are not read and may be empty.
    ///
    /// Output: `Result<Vec<T>, OpError<S>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let is_root = world.rank() == 0;
    /// let rows = if is_root { vec![1, 2, 2, 3, 3, 3] } else { Vec::new() };
    /// let counts: &[usize] = if is_root { &[1, 2, 3] } else { &[] };
    /// let row = world.scatter_v_rooted(0, rows, counts).await?;
    /// assert_eq!(row, vec![world.rank() + 1; world.rank() + 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter_v_rooted<S: SendBuf>(
        &self,
        root: usize,
        send: S,
        counts: &[usize],
    ) -> RaggedOp<Vec<S::Elem>, OpError<S>> {
        rooted::scatter(self, root, send, counts)
    }

    /// Returns the same ranks as a [`Graph`], in which this rank receives from `sources` and sends to `destinations`.
    ///
    /// Output: `Result<Graph>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// // A ring: each rank receives from the rank below and sends to the rank above.
    /// let (below, above) = ((world.rank() + 2) % 3, (world.rank() + 1) % 3);
    /// let ring = world.graph(&[below], &[above]).await?;
    /// let received = ripstop_collectives::Neighborhood::neighbor_all_gather(&ring, [world.rank()]);
    /// assert_eq!(received.await?, [below]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Graph::new`].
    #[track_caller]
    fn graph(
        &self,
        sources: &[usize],
        destinations: &[usize],
    ) -> impl Future<Output = Result<Graph>> + Send {
        Graph::new(self.communicator(), sources, destinations)
    }

    /// Plans a barrier once. Making the plan is a collective of its own.
    ///
    /// Output: `Result<BarrierPlan>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.barrier_plan().await?;
    /// for _step in 0..10 {
    ///     plan.run().await?;
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of the other collectives; the same is true for the plans below.
    #[track_caller]
    fn barrier_plan(&self) -> impl Future<Output = Result<BarrierPlan>> + Send {
        propose_plan(self, &CallSpec::of(Barrier, "barrier_plan"))
    }

    /// Plans a [`bcast`](Self::bcast) of `len` elements once.
    ///
    /// Output: `Result<InPlacePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.bcast_plan::<f64>(0, 1).await?;
    /// for step in 1..=3 {
    ///     if world.rank() == 0 {
    ///         plan.data_mut()[0] = f64::from(step);
    ///     }
    ///     assert_eq!(plan.run().await?, [f64::from(step)]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn bcast_plan<T: Wire>(
        &self,
        root: usize,
        len: usize,
    ) -> impl Future<Output = Result<InPlacePlan<T>>> + Send {
        propose_plan(self, &CallSpec::of(Bcast, "bcast_plan").root(root).len(len))
    }

    /// Plans a [`gather`](Self::gather) of blocks of `block` elements once. All ranks but `root` receive nothing.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.gather_plan::<usize>(0, 1).await?;
    /// plan.send_mut()[0] = world.rank();
    /// let all = plan.run().await?;
    /// assert_eq!(all, if world.rank() == 0 { &[0, 1][..] } else { &[] });
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather_plan<T: Wire>(
        &self,
        root: usize,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(Gather, "gather_plan");
        propose_plan(self, &spec.root(root).len(block))
    }

    /// Plans a [`gather_v`](Self::gather_v) once. All ranks but `root` receive nothing.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.gather_v_plan::<usize>(0, &[1, 2]).await?; // rank 1 sends two elements
    /// plan.send_mut().fill(world.rank());
    /// let all = plan.run().await?;
    /// assert_eq!(all, if world.rank() == 0 { &[0, 1, 1][..] } else { &[] });
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn gather_v_plan<T: Wire>(
        &self,
        root: usize,
        counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(Gather, "gather_v_plan");
        propose_plan(self, &spec.root(root).counts(counts))
    }

    /// Plans a [`scatter`](Self::scatter) of blocks of `block` elements once. All ranks but `root` send nothing.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.scatter_plan::<i32>(0, 1).await?;
    /// if world.rank() == 0 {
    ///     plan.send_mut().copy_from_slice(&[3, 4]);
    /// }
    /// assert_eq!(plan.run().await?, [3 + world.rank() as i32]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter_plan<T: Wire>(
        &self,
        root: usize,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(Scatter, "scatter_plan");
        propose_plan(self, &spec.root(root).len(block))
    }

    /// Plans a [`scatter_v`](Self::scatter_v) once. All ranks but `root` send nothing.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.scatter_v_plan::<i32>(0, &[1, 2]).await?; // rank 1 gets two elements
    /// if world.rank() == 0 {
    ///     plan.send_mut().copy_from_slice(&[3, 4, 5]);
    /// }
    /// let mine = plan.run().await?;
    /// assert_eq!(mine, if world.rank() == 0 { &[3][..] } else { &[4, 5] });
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scatter_v_plan<T: Wire>(
        &self,
        root: usize,
        counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(Scatter, "scatter_v_plan");
        propose_plan(self, &spec.root(root).counts(counts))
    }

    /// Plans an [`all_gather`](Self::all_gather) of blocks of `block` elements once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.all_gather_plan::<usize>(1).await?;
    /// plan.send_mut()[0] = world.rank();
    /// assert_eq!(plan.run().await?, [0, 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_gather_plan<T: Wire>(
        &self,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        propose_plan(self, &CallSpec::of(AllGather, "all_gather_plan").len(block))
    }

    /// Plans an [`all_gather_v`](Self::all_gather_v) once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.all_gather_v_plan::<usize>(&[1, 2]).await?;
    /// plan.send_mut().fill(10 + world.rank());
    /// assert_eq!(plan.run().await?, [10, 11, 11]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_gather_v_plan<T: Wire>(
        &self,
        counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(AllGather, "all_gather_v_plan");
        propose_plan(self, &spec.counts(counts))
    }

    /// Plans an [`all_to_all`](Self::all_to_all) with blocks of `block` elements once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.all_to_all_plan::<usize>(1).await?;
    /// for step in [0, 10, 20] {
    ///     let me = step + world.rank();
    ///     plan.send_mut().copy_from_slice(&[me, me]);
    ///     assert_eq!(plan.run().await?, [step, step + 1]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_to_all_plan<T: Wire>(
        &self,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        propose_plan(self, &CallSpec::of(AllToAll, "all_to_all_plan").len(block))
    }

    /// Plans an [`all_to_all_v`](Self::all_to_all_v) once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let me = world.rank();
    /// let counts = [me + 1, me + 1]; // rank 1 sends two elements to each rank, and rank 0 one
    /// let mut plan = world.all_to_all_v_plan::<usize>(&counts, &[1, 2]).await?;
    /// plan.send_mut().fill(me);
    /// assert_eq!(plan.run().await?, [0, 1, 1]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_to_all_v_plan<T: Wire>(
        &self,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(AllToAll, "all_to_all_v_plan").counts(send_counts);
        propose_plan(self, &spec.recv_counts(recv_counts))
    }

    /// Plans an [`all_reduce`](Self::all_reduce) of `len` elements once.
    ///
    /// Output: `Result<InPlacePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut residual = world.all_reduce_plan::<f64, _>(1, Sum).await?;
    /// for step in 1..=3 {
    ///     residual.data_mut()[0] = f64::from(step);
    ///     assert_eq!(residual.run().await?, [2.0 * f64::from(step)]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn all_reduce_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<InPlacePlan<T>>> + Send {
        let spec = CallSpec::of(AllReduce, "all_reduce_plan").len(len);
        propose_plan_with(self, spec, op)
    }

    /// Plans a [`reduce`](Self::reduce) of `len` elements once. All ranks but `root` receive nothing.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.reduce_plan::<u64, _>(0, 1, Sum).await?;
    /// plan.send_mut()[0] = 4;
    /// let sum = plan.run().await?;
    /// assert_eq!(sum, if world.rank() == 0 { &[8][..] } else { &[] });
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        root: usize,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(Reduce, "reduce_plan").root(root).len(len);
        propose_plan_with(self, spec, op)
    }

    /// Plans a [`reduce_scatter`](Self::reduce_scatter) once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.reduce_scatter_plan::<u64, _>(&[1, 2], Sum).await?; // rank 1 gets two sums
    /// plan.send_mut().copy_from_slice(&[1, 2, 3]);
    /// let sums = plan.run().await?;
    /// assert_eq!(sums, if world.rank() == 0 { &[2][..] } else { &[4, 6] });
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_scatter_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        counts: &[usize],
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(ReduceScatter, "reduce_scatter_plan");
        propose_plan_with(self, spec.counts(counts), op)
    }

    /// Plans a [`reduce_scatter_block`](Self::reduce_scatter_block) with blocks of `block` elements once.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut plan = world.reduce_scatter_block_plan::<u64, _>(1, Sum).await?;
    /// plan.send_mut().copy_from_slice(&[1, 2]);
    /// assert_eq!(plan.run().await?, [[2], [4]][world.rank()]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn reduce_scatter_block_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        block: usize,
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let spec = CallSpec::of(ReduceScatter, "reduce_scatter_block_plan");
        propose_plan_with(self, spec.len(block), op)
    }

    /// Plans a [`scan`](Self::scan) of `len` elements once.
    ///
    /// Output: `Result<InPlacePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let mut plan = world.scan_plan::<usize, _>(1, Sum).await?;
    /// plan.data_mut()[0] = 5;
    /// assert_eq!(plan.run().await?, [5 * (world.rank() + 1)]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn scan_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<InPlacePlan<T>>> + Send {
        propose_plan_with(self, CallSpec::of(Scan, "scan_plan").len(len), op)
    }

    /// Plans an [`exscan`](Self::exscan) of `len` elements once. The output of rank 0 is undefined.
    ///
    /// Output: `Result<ExchangePlan<T>>`.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Sum};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let mut plan = world.exscan_plan::<usize, _>(1, Sum).await?;
    /// plan.send_mut()[0] = 5;
    /// let before = plan.run().await?;
    /// if world.rank() > 0 {
    ///     assert_eq!(before, [5 * world.rank()]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    fn exscan_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        propose_plan_with(self, CallSpec::of(Exscan, "exscan_plan").len(len), op)
    }
}
