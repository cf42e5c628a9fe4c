//! The collectives that a communicator has.

use ripstop_rt::{
    Comm, OpError, Result,
    buffer::{RecvBuf, SendBuf, Wire},
};

use crate::{
    Graph, Tuned, Tuning,
    ask::{Ask, Verb},
    blocks::AllToAllOp,
    op::{
        BarrierOp, ExchangeOp, FreshAtOp, FreshOp, InPlaceOp, ReduceFreshAtOp, ReduceFreshOp,
        ReduceInPlaceOp, ReduceIntoOp,
    },
    persistent::{BarrierPlan, ExchangePlan, InPlacePlan, planned, planned_with},
    ragged::{self, RaggedOp},
    reduction::Reduction,
    start,
    tuning::AUTO,
};

/// Collectives: every rank of the communicator calls the same ones, in the same order.
///
/// Each starts when it is called, and proceeds while the application computes; what is returned is a future that owns the
/// buffers and gives them back. Several may be in flight, and they may be awaited in any order, or dropped: then they go on by
/// themselves. Order counts for each communicator alone; threads that share one see to it themselves.
///
/// What all ranks must agree on is the operation, the root, the element type, the counts, a reduction's operator, and the
/// algorithm if one is [named](Self::tuned). Where two ranks do not, the collective ends with [`Mismatch`] on every rank, which
/// names two of them; where an argument is wrong on one rank it ends with [`InvalidArgument`] there and [`Aborted`] elsewhere;
/// when a member fails, with [`PeerFailed`]. After any of these, later collectives on this communicator end with [`Revoked`]:
/// messages go on, and other communicators too. A rank that is through with its part may see the failure in its next collective
/// only, which ends with [`Mismatch`] or [`PeerFailed`] then if that is why.
///
/// Counts and lengths are in elements; blocks lie in the order of ranks, without gaps. A `_v` takes a count for each rank, an
/// `_into` takes the buffer to receive into, which may be longer than needed; a vector ends as long as what came.
///
/// [`Mismatch`]: ripstop_rt::ErrorKind::Mismatch
/// [`InvalidArgument`]: ripstop_rt::ErrorKind::InvalidArgument
/// [`Aborted`]: ripstop_rt::ErrorKind::Aborted
/// [`PeerFailed`]: ripstop_rt::ErrorKind::PeerFailed
/// [`Revoked`]: ripstop_rt::ErrorKind::Revoked
pub trait Collectives {
    /// The communicator that they run on.
    fn communicator(&self) -> &Comm;

    /// The algorithms that they must use.
    fn tuning(&self) -> &Tuning;

    /// The same communicator, with algorithms that all ranks name alike.
    ///
    /// An algorithm that does not fit what a call asks for is an error of the call. See `ripstop info --collectives` for about
    /// what is chosen where nobody says anything, operators commute and blocks have one length: its lines leave out who gains
    /// less than 5 %. `RIPSTOP_ALLREDUCE` and the like say it from outside.
    fn tuned(&self, tuning: Tuning) -> Tuned {
        Tuned::new(self.communicator(), tuning)
    }

    /// Completes when every rank has called it.
    #[track_caller]
    fn barrier(&self) -> BarrierOp {
        start::barrier(self, &Ask::of(Verb::Barrier, "barrier"))
    }

    /// Gives everybody `root`'s elements. All buffers have the same length.
    #[track_caller]
    fn bcast<B: RecvBuf>(&self, root: usize, buf: B) -> InPlaceOp<B> {
        let ask = Ask::of(Verb::Bcast, "bcast").root(root);
        start::in_place(self, &ask.len(buf.elems().len()), buf)
    }

    /// Brings a block of every rank to `root`, which gets `Some` of them all. All blocks have the same length.
    #[track_caller]
    fn gather<S: SendBuf>(&self, root: usize, send: S) -> FreshAtOp<S> {
        let ask = Ask::of(Verb::Gather, "gather")
            .root(root)
            .len(send.elems().len());
        start::fresh_at(self, &ask, send, root)
    }

    /// As [`gather`](Self::gather), into a buffer of `root`'s; nothing is received into the others'.
    #[track_caller]
    fn gather_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::Gather, "gather_into")
            .root(root)
            .len(send.elems().len());
        start::exchange(self, &ask, (send, recv))
    }

    /// As [`gather`](Self::gather), with blocks of the lengths `counts`, which all ranks know.
    #[track_caller]
    fn gather_v<S: SendBuf>(&self, root: usize, send: S, counts: &[usize]) -> FreshAtOp<S> {
        let ask = Ask::of(Verb::Gather, "gather_v").root(root).counts(counts);
        start::fresh_at(self, &ask, send, root)
    }

    /// As [`gather_v`](Self::gather_v), into a buffer of `root`'s; nothing is received into the others'.
    #[track_caller]
    fn gather_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::Gather, "gather_v_into")
            .root(root)
            .counts(counts);
        start::exchange(self, &ask, (send, recv))
    }

    /// Gives every rank its block of `block` of `root`'s elements. What the others hand over is not read: an empty vector does.
    #[track_caller]
    fn scatter<S: SendBuf>(&self, root: usize, send: S, block: usize) -> FreshOp<S> {
        let ask = Ask::of(Verb::Scatter, "scatter").root(root).len(block);
        start::fresh(self, &ask, send)
    }

    /// As [`scatter`](Self::scatter), into a buffer.
    #[track_caller]
    fn scatter_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        block: usize,
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::Scatter, "scatter_into").root(root).len(block);
        start::exchange(self, &ask, (send, recv))
    }

    /// As [`scatter`](Self::scatter), with blocks of the lengths `counts`, which all ranks know.
    #[track_caller]
    fn scatter_v<S: SendBuf>(&self, root: usize, send: S, counts: &[usize]) -> FreshOp<S> {
        let ask = Ask::of(Verb::Scatter, "scatter_v")
            .root(root)
            .counts(counts);
        start::fresh(self, &ask, send)
    }

    /// As [`scatter_v`](Self::scatter_v), into a buffer.
    #[track_caller]
    fn scatter_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::Scatter, "scatter_v_into")
            .root(root)
            .counts(counts);
        start::exchange(self, &ask, (send, recv))
    }

    /// Gives everybody a block of every rank. All blocks have the same length.
    #[track_caller]
    fn all_gather<S: SendBuf>(&self, send: S) -> FreshOp<S> {
        let ask = Ask::of(Verb::AllGather, "all_gather").len(send.elems().len());
        start::fresh(self, &ask, send)
    }

    /// As [`all_gather`](Self::all_gather), into a buffer.
    #[track_caller]
    fn all_gather_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        recv: R,
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::AllGather, "all_gather_into").len(send.elems().len());
        start::exchange(self, &ask, (send, recv))
    }

    /// As [`all_gather`](Self::all_gather), with blocks of the lengths `counts`, which all ranks know.
    #[track_caller]
    fn all_gather_v<S: SendBuf>(&self, send: S, counts: &[usize]) -> FreshOp<S> {
        let ask = Ask::of(Verb::AllGather, "all_gather_v").counts(counts);
        start::fresh(self, &ask, send)
    }

    /// As [`all_gather_v`](Self::all_gather_v), into a buffer.
    #[track_caller]
    fn all_gather_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        recv: R,
        counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::AllGather, "all_gather_v_into").counts(counts);
        start::exchange(self, &ask, (send, recv))
    }

    /// Block `j` of rank `i` becomes block `i` of rank `j`. All blocks have the same length.
    #[track_caller]
    fn all_to_all<S: SendBuf>(&self, send: S) -> AllToAllOp<S> {
        let ask = Ask::of(Verb::AllToAll, "all_to_all")
            .share(send.elems().len(), self.communicator().size());
        start::by_blocks(self, &ask, send)
    }

    /// As [`all_to_all`](Self::all_to_all), into a buffer.
    #[track_caller]
    fn all_to_all_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        recv: R,
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::AllToAll, "all_to_all_into")
            .share(send.elems().len(), self.communicator().size());
        start::exchange(self, &ask, (send, recv))
    }

    /// As [`all_to_all`](Self::all_to_all), with blocks of `send_counts[j]` elements for rank `j`, and `recv_counts[i]` from rank
    /// `i`. Each pair of ranks exchanges a message, also an empty one: for few neighbours there are neighbourhoods.
    #[track_caller]
    fn all_to_all_v<S: SendBuf>(
        &self,
        send: S,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> AllToAllOp<S> {
        let ask = Ask::of(Verb::AllToAll, "all_to_all_v").counts(send_counts);
        start::by_blocks(self, &ask.incoming(recv_counts), send)
    }

    /// As [`all_to_all_v`](Self::all_to_all_v), into a buffer.
    #[track_caller]
    fn all_to_all_v_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
        &self,
        send: S,
        send_counts: &[usize],
        recv: R,
        recv_counts: &[usize],
    ) -> ExchangeOp<S, R> {
        let ask = Ask::of(Verb::AllToAll, "all_to_all_v_into").counts(send_counts);
        start::exchange(self, &ask.incoming(recv_counts), (send, recv))
    }

    /// Combines the elements of all ranks, element by element, in place and everywhere. All ranks get the same bits.
    #[track_caller]
    fn all_reduce<B: RecvBuf, O: Reduction<B::Elem>>(
        &self,
        buf: B,
        op: O,
    ) -> ReduceInPlaceOp<B, O> {
        let ask = Ask::of(Verb::AllReduce, "all_reduce").len(buf.elems().len());
        start::reduce_in_place(self, ask, buf, op)
    }

    /// Combines the elements of all ranks, element by element, for `root`, which gets `Some`.
    #[track_caller]
    fn reduce<S: SendBuf, O: Reduction<S::Elem>>(
        &self,
        root: usize,
        send: S,
        op: O,
    ) -> ReduceFreshAtOp<S, O> {
        let ask = Ask::of(Verb::Reduce, "reduce")
            .root(root)
            .len(send.elems().len());
        let is_root = self.communicator().rank() == root;
        start::reduce_fresh_at(self, ask, send, op, is_root)
    }

    /// As [`reduce`](Self::reduce), into a buffer of `root`'s; nothing is received into the others'.
    #[track_caller]
    fn reduce_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        root: usize,
        send: S,
        recv: R,
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let ask = Ask::of(Verb::Reduce, "reduce_into")
            .root(root)
            .len(send.elems().len());
        start::reduce_into(self, ask, (send, recv), op)
    }

    /// Combines the elements of all ranks, element by element; rank `i` gets block `i` of the result, `counts[i]` elements.
    #[track_caller]
    fn reduce_scatter<S: SendBuf, O: Reduction<S::Elem>>(
        &self,
        send: S,
        counts: &[usize],
        op: O,
    ) -> ReduceFreshOp<S, O> {
        let ask = Ask::of(Verb::ReduceScatter, "reduce_scatter").counts(counts);
        start::reduce_fresh(self, ask, send, op)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), into a buffer.
    #[track_caller]
    fn reduce_scatter_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        send: S,
        recv: R,
        counts: &[usize],
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let ask = Ask::of(Verb::ReduceScatter, "reduce_scatter_into").counts(counts);
        start::reduce_into(self, ask, (send, recv), op)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with blocks of the same length.
    #[track_caller]
    fn reduce_scatter_block<S: SendBuf, O: Reduction<S::Elem>>(
        &self,
        send: S,
        op: O,
    ) -> ReduceFreshOp<S, O> {
        let ask = Ask::of(Verb::ReduceScatter, "reduce_scatter_block")
            .share(send.elems().len(), self.communicator().size());
        start::reduce_fresh(self, ask, send, op)
    }

    /// As [`reduce_scatter_block`](Self::reduce_scatter_block), into a buffer.
    #[track_caller]
    fn reduce_scatter_block_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        send: S,
        recv: R,
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let ask = Ask::of(Verb::ReduceScatter, "reduce_scatter_block_into")
            .share(send.elems().len(), self.communicator().size());
        start::reduce_into(self, ask, (send, recv), op)
    }

    /// Combines the elements of ranks 0 to this one, element by element and in place.
    #[track_caller]
    fn scan<B: RecvBuf, O: Reduction<B::Elem>>(&self, buf: B, op: O) -> ReduceInPlaceOp<B, O> {
        let ask = Ask::of(Verb::Scan, "scan").len(buf.elems().len());
        start::reduce_in_place(self, ask, buf, op)
    }

    /// Combines the elements of the ranks before this one, element by element. None is before rank 0, which gets `None`.
    #[track_caller]
    fn exscan<S: SendBuf, O: Reduction<S::Elem>>(&self, send: S, op: O) -> ReduceFreshAtOp<S, O> {
        let ask = Ask::of(Verb::Exscan, "exscan").len(send.elems().len());
        let has_result = self.communicator().rank() > 0;
        start::reduce_fresh_at(self, ask, send, op, has_result)
    }

    /// As [`exscan`](Self::exscan), into a buffer. What rank 0 finds there is of no use.
    #[track_caller]
    fn exscan_into<S: SendBuf, R: RecvBuf<Elem = S::Elem>, O: Reduction<S::Elem>>(
        &self,
        send: S,
        recv: R,
        op: O,
    ) -> ReduceIntoOp<S, R, O> {
        let ask = Ask::of(Verb::Exscan, "exscan_into").len(send.elems().len());
        start::reduce_into(self, ask, (send, recv), op)
    }

    /// The vector for each rank, for vectors of any lengths: the ranks tell each other the lengths first.
    #[track_caller]
    fn all_to_all_ragged<T: Wire>(
        &self,
        send: Vec<Vec<T>>,
    ) -> RaggedOp<Vec<Vec<T>>, OpError<Vec<Vec<T>>>> {
        ragged::all_to_all(self, send)
    }

    /// The vectors of all ranks, of any lengths, for everybody: the ranks tell each other the lengths first.
    #[track_caller]
    fn all_gather_ragged<T: Wire>(&self, send: Vec<T>) -> RaggedOp<Vec<Vec<T>>, OpError<Vec<T>>> {
        ragged::all_gather(self, send)
    }

    /// The vectors of all ranks, of any lengths, for `root`, which gets `Some`: the ranks tell each other the lengths first.
    #[track_caller]
    fn gather_ragged<T: Wire>(
        &self,
        root: usize,
        send: Vec<T>,
    ) -> RaggedOp<Option<Vec<Vec<T>>>, OpError<Vec<T>>> {
        ragged::gather(self, root, send)
    }

    /// Gives every rank its vector of `root`'s, of any lengths: the ranks are told the lengths first. `root` has one for each
    /// rank; what the others hand over is not read: no vectors do.
    #[track_caller]
    fn scatter_ragged<T: Wire>(
        &self,
        root: usize,
        send: Vec<Vec<T>>,
    ) -> RaggedOp<Vec<T>, OpError<Vec<Vec<T>>>> {
        ragged::scatter(self, root, send)
    }

    /// The same ranks as a [`Graph`], in which this one receives from `sources` and sends to `destinations`.
    ///
    /// # Errors
    /// See [`Graph::new`].
    #[track_caller]
    fn graph(
        &self,
        sources: &[usize],
        destinations: &[usize],
    ) -> impl Future<Output = Result<Graph>> + Send {
        Graph::new(self.communicator(), sources, destinations)
    }

    /// A barrier that is planned once. Making it is a collective of its own.
    ///
    /// # Errors
    /// As of the other collectives; so for the plans below.
    #[track_caller]
    fn barrier_plan(&self) -> impl Future<Output = Result<BarrierPlan>> + Send {
        planned(self, &Ask::of(Verb::Barrier, "barrier_plan"))
    }

    /// A [`bcast`](Self::bcast) of `len` elements that is planned once.
    #[track_caller]
    fn bcast_plan<T: Wire>(
        &self,
        root: usize,
        len: usize,
    ) -> impl Future<Output = Result<InPlacePlan<T>>> + Send {
        planned(
            self,
            &Ask::of(Verb::Bcast, "bcast_plan").root(root).len(len),
        )
    }

    /// A [`gather`](Self::gather) of blocks of `block` elements that is planned once. All but `root` receive nothing.
    #[track_caller]
    fn gather_plan<T: Wire>(
        &self,
        root: usize,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::Gather, "gather_plan");
        planned(self, &ask.root(root).len(block))
    }

    /// A [`gather_v`](Self::gather_v) that is planned once. All but `root` receive nothing.
    #[track_caller]
    fn gather_v_plan<T: Wire>(
        &self,
        root: usize,
        counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::Gather, "gather_v_plan");
        planned(self, &ask.root(root).counts(counts))
    }

    /// A [`scatter`](Self::scatter) of blocks of `block` elements that is planned once. All but `root` send nothing.
    #[track_caller]
    fn scatter_plan<T: Wire>(
        &self,
        root: usize,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::Scatter, "scatter_plan");
        planned(self, &ask.root(root).len(block))
    }

    /// A [`scatter_v`](Self::scatter_v) that is planned once. All but `root` send nothing.
    #[track_caller]
    fn scatter_v_plan<T: Wire>(
        &self,
        root: usize,
        counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::Scatter, "scatter_v_plan");
        planned(self, &ask.root(root).counts(counts))
    }

    /// An [`all_gather`](Self::all_gather) of blocks of `block` elements that is planned once.
    #[track_caller]
    fn all_gather_plan<T: Wire>(
        &self,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        planned(
            self,
            &Ask::of(Verb::AllGather, "all_gather_plan").len(block),
        )
    }

    /// An [`all_gather_v`](Self::all_gather_v) that is planned once.
    #[track_caller]
    fn all_gather_v_plan<T: Wire>(
        &self,
        counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::AllGather, "all_gather_v_plan");
        planned(self, &ask.counts(counts))
    }

    /// An [`all_to_all`](Self::all_to_all) with blocks of `block` elements that is planned once.
    ///
    /// ```ignore
    /// let mut plan = world.all_to_all_plan::<f64>(block).await?;
    /// plan.send_mut().copy_from_slice(&field);
    /// let transposed = plan.run().await?;
    /// ```
    #[track_caller]
    fn all_to_all_plan<T: Wire>(
        &self,
        block: usize,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        planned(self, &Ask::of(Verb::AllToAll, "all_to_all_plan").len(block))
    }

    /// An [`all_to_all_v`](Self::all_to_all_v) that is planned once.
    #[track_caller]
    fn all_to_all_v_plan<T: Wire>(
        &self,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::AllToAll, "all_to_all_v_plan").counts(send_counts);
        planned(self, &ask.incoming(recv_counts))
    }

    /// An [`all_reduce`](Self::all_reduce) of `len` elements that is planned once.
    #[track_caller]
    fn all_reduce_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<InPlacePlan<T>>> + Send {
        let ask = Ask::of(Verb::AllReduce, "all_reduce_plan").len(len);
        planned_with(self, ask, op)
    }

    /// A [`reduce`](Self::reduce) of `len` elements that is planned once. All but `root` receive nothing.
    #[track_caller]
    fn reduce_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        root: usize,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::Reduce, "reduce_plan").root(root).len(len);
        planned_with(self, ask, op)
    }

    /// A [`reduce_scatter`](Self::reduce_scatter) that is planned once.
    #[track_caller]
    fn reduce_scatter_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        counts: &[usize],
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::ReduceScatter, "reduce_scatter_plan");
        planned_with(self, ask.counts(counts), op)
    }

    /// A [`reduce_scatter_block`](Self::reduce_scatter_block) with blocks of `block` elements that is planned once.
    #[track_caller]
    fn reduce_scatter_block_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        block: usize,
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        let ask = Ask::of(Verb::ReduceScatter, "reduce_scatter_block_plan");
        planned_with(self, ask.len(block), op)
    }

    /// A [`scan`](Self::scan) of `len` elements that is planned once.
    #[track_caller]
    fn scan_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<InPlacePlan<T>>> + Send {
        planned_with(self, Ask::of(Verb::Scan, "scan_plan").len(len), op)
    }

    /// An [`exscan`](Self::exscan) of `len` elements that is planned once. What rank 0 receives is of no use.
    #[track_caller]
    fn exscan_plan<T: Wire, O: Reduction<T> + Clone>(
        &self,
        len: usize,
        op: O,
    ) -> impl Future<Output = Result<ExchangePlan<T>>> + Send {
        planned_with(self, Ask::of(Verb::Exscan, "exscan_plan").len(len), op)
    }
}

impl Collectives for Comm {
    fn communicator(&self) -> &Comm {
        self
    }

    fn tuning(&self) -> &Tuning {
        &AUTO
    }
}
