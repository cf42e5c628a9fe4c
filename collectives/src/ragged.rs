//! Collectives of vectors of any lengths; the ranks exchange the lengths first.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ripstop_rt::{
    Comm, OpError,
    buffer::Wire,
    internal::offload::{BackgroundFuture, CollectiveSignature},
};

use crate::{
    Collectives, Neighborhood, Tuning,
    block_layout::BlockLayout,
    call::{DeferredCall, OrderedCall},
    call_spec::{CallSpec, CollectiveKind},
    neighborhood::{self, CalledNeighborhood},
    op::{InPlace, InPlaceOp, NewVec, OptionalVec},
};

/// A collective in flight that has two parts: the lengths, and then the elements.
///
/// It started when it was made, and keeps its place in the order of collectives. The second part begins when the first has
/// completed: this rank, or its progress agent while it computes, begins it as soon as it notices. This is so with
/// `RIPSTOP_COLLECTIVES=host` too, where it hides more time than other collectives do. The task that awaits it splits the
/// result into the vectors of the ranks. Dropping it detaches the collective; a runtime that is closed waits for it.
#[must_use = "await it, or drop it to let it continue in the background"]
pub struct RaggedOp<D, F>
where
    D: Send + 'static,
    F: Send + 'static,
{
    course: BackgroundFuture<Result<RaggedFinish<D>, F>>,
}

/// The work that is left for the task that awaits the collective. The turn that completes it may be made by the agent, and must
/// stay short.
pub(crate) type RaggedFinish<D> = Box<dyn FnOnce() -> D + Send>;
type RankVectors<T> = Vec<Vec<T>>;
/// All vectors, concatenated, on ranks that have a result, and their lengths.
type RaggedParts<T> = (Option<Vec<T>>, Vec<usize>);

/// Sends a vector to each rank, and returns the vectors received.
#[track_caller]
pub(crate) fn all_to_all<T: Wire>(
    on: &(impl Collectives + ?Sized),
    send: RankVectors<T>,
) -> RaggedOp<RankVectors<T>, OpError<RankVectors<T>>> {
    let (comm, tuning) = of(on);
    let (has, size) = (send.len(), comm.size());
    let mut spec = CallSpec::of(CollectiveKind::AllToAll, "all_to_all_ragged").len(1);
    if has != size {
        let sentence = format!("`send` has {has} vectors, and there are {size} ranks");
        spec = spec.with_fault(sentence);
    }
    let lens = lens_of(&send);
    let first = fresh(&comm, &tuning, &spec, lens.clone());
    let second = DeferredCall::new(&comm);
    let rest = async move {
        let theirs = match first.await {
            Ok(theirs) => theirs,
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let (sends, recvs) = (counts(&lens), counts(&theirs));
        let spec = CallSpec::of(CollectiveKind::AllToAll, "all_to_all_ragged");
        let spec = spec.counts(&sends).recv_counts(&recvs);
        let done = {
            let mut call =
                OrderedCall::in_reserved_place::<T>(&second.comm, &tuning, &spec, second.place);
            let room = call.output_vec();
            let given = call.concat_input(&send);
            call.begin(None, given, room, NewVec)
        };
        finish_rows(done.await, send, recvs)
    };
    RaggedOp::new(rest)
}

/// Sends a vector to each neighbor, and returns the vectors received.
#[track_caller]
pub(crate) fn neighbor_all_to_all<T: Wire>(
    on: &(impl Neighborhood + ?Sized),
    send: RankVectors<T>,
) -> RaggedOp<RankVectors<T>, OpError<RankVectors<T>>> {
    let around = CalledNeighborhood::of(on);
    let edges = on.edges();
    let (has, needed) = (send.len(), edges.destinations.len());
    let ones = [vec![1; needed], vec![1; edges.sources.len()]];
    let lens = lens_of(&send);
    let first = {
        let cut = BlockLayout::counted(&ones[0], &ones[1]);
        let mut call = neighborhood::call::<u64>(&around, NEIGHBORS, &cut);
        call.agree_on(CollectiveSignature::of(NEIGHBORS));
        if has != needed {
            call.refuse(format!(
                "`send` has {has} vectors, and there are {needed} neighbors"
            ));
        }
        let room = call.output_vec();
        call.begin(None, lens.clone(), room, NewVec)
    };
    let second = DeferredCall::new(around.communicator());
    let rest = async move {
        let theirs = match first.await {
            Ok(theirs) => theirs,
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let (sends, recvs) = (counts(&lens), counts(&theirs));
        let done = {
            let cut = BlockLayout::counted(&sends, &recvs);
            let mut call = neighborhood::deferred_call::<T>(&around, NEIGHBORS, &cut, second.place);
            let room = call.output_vec();
            let given = call.concat_input(&send);
            call.begin(None, given, room, NewVec)
        };
        finish_rows(done.await, send, recvs)
    };
    RaggedOp::new(rest)
}

/// Returns the vector of `root`.
#[track_caller]
pub(crate) fn bcast<T: Wire>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    vector: Vec<T>,
) -> RaggedOp<Vec<T>, OpError<Vec<T>>> {
    let (comm, tuning) = of(on);
    let is_root = comm.rank() == root;
    let spec = CallSpec::of(CollectiveKind::Bcast, BCAST).root(root).len(1);
    let len = vec![vector.len() as u64];
    let first: InPlaceOp<_> = lengths(&comm, &tuning, &spec).begin(None, [], len, InPlace);
    let second = DeferredCall::new(&comm);
    let rest = async move {
        let len = match first.await {
            Ok(len) => counts(&len),
            Err(OpError { error, .. }) => return Err(OpError { error, buf: vector }),
        };
        let spec = CallSpec::of(CollectiveKind::Bcast, BCAST).root(root);
        let done: InPlaceOp<_> = {
            let spec = spec.len(len[0]);
            let mut call =
                OrderedCall::in_reserved_place::<T>(&second.comm, &tuning, &spec, second.place);
            let room = if is_root { vector } else { call.output_vec() };
            call.begin(None, [], room, InPlace)
        };
        let vector = done.await?;
        Ok(boxed_finish(move || vector))
    };
    RaggedOp::new(rest)
}

/// Returns this rank's vector of those that `root` has.
#[track_caller]
pub(crate) fn scatter<T: Wire>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    send: RankVectors<T>,
) -> RaggedOp<Vec<T>, OpError<RankVectors<T>>> {
    let (comm, tuning) = of(on);
    let (has, size) = (send.len(), comm.size());
    let is_root = comm.rank() == root;
    let mut spec = CallSpec::of(CollectiveKind::Bcast, "scatter_ragged")
        .root(root)
        .len(size);
    if is_root && has != size {
        let sentence = format!("`send` has {has} vectors, and there are {size} ranks");
        spec = spec.with_fault(sentence);
    }
    let mut lens = if is_root { lens_of(&send) } else { Vec::new() };
    lens.resize(size, 0);
    let first: InPlaceOp<_> = lengths(&comm, &tuning, &spec).begin(None, [], lens, InPlace);
    let second = DeferredCall::new(&comm);
    let rest = async move {
        let lens = match first.await {
            Ok(lens) => counts(&lens),
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let spec = CallSpec::of(CollectiveKind::Scatter, "scatter_ragged").root(root);
        let done = {
            let spec = spec.counts(&lens);
            let mut call =
                OrderedCall::in_reserved_place::<T>(&second.comm, &tuning, &spec, second.place);
            let room = call.output_vec();
            let given = if is_root {
                call.concat_input(&send)
            } else {
                Vec::new()
            };
            call.begin(None, given, room, NewVec)
        };
        match done.await {
            Ok(row) => Ok(boxed_finish(move || row)),
            Err(OpError { error, .. }) => Err(OpError { error, buf: send }),
        }
    };
    RaggedOp::new(rest)
}

/// Gathers the vectors of all ranks at `root`.
#[track_caller]
pub(crate) fn gather<T: Wire>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    send: Vec<T>,
) -> RaggedOp<Option<RankVectors<T>>, OpError<Vec<T>>> {
    let (comm, tuning) = of(on);
    let all = gathered(comm, tuning, Some(root), send);
    let rest = async move {
        let (all, lens) = all.await?;
        Ok(boxed_finish(move || all.map(|all| rows(&all, &lens))))
    };
    RaggedOp::new(rest)
}

/// Gathers the vectors of all ranks on every rank.
#[track_caller]
pub(crate) fn all_gather<T: Wire>(
    on: &(impl Collectives + ?Sized),
    send: Vec<T>,
) -> RaggedOp<RankVectors<T>, OpError<Vec<T>>> {
    let (comm, tuning) = of(on);
    let all = gathered(comm, tuning, None, send);
    let rest = async move {
        let (all, lens) = all.await?;
        Ok(boxed_finish(move || rows(&all.unwrap_or_default(), &lens)))
    };
    RaggedOp::new(rest)
}

#[track_caller]
fn gathered<T: Wire>(
    comm: Comm,
    tuning: Tuning,
    root: Option<usize>,
    send: Vec<T>,
) -> impl Future<Output = Result<RaggedParts<T>, OpError<Vec<T>>>> + Send + use<T> {
    let lens = CallSpec::of(
        CollectiveKind::AllGather,
        NAMES[usize::from(root.is_some())],
    )
    .len(1);
    let lens = root.filter(|root| *root >= comm.size()).map_or_else(
        || lens.clone(),
        |root| {
            let size = comm.size();
            let sentence = format!("`root` is rank {root}, and there are ranks 0..{size}");
            lens.clone().with_fault(sentence)
        },
    );
    let first = fresh(&comm, &tuning, &lens, vec![send.len() as u64]);
    let second = DeferredCall::new(&comm);
    async move {
        let theirs = match first.await {
            Ok(theirs) => counts(&theirs),
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let spec = match root {
            Some(root) => CallSpec::of(CollectiveKind::Gather, NAMES[1]).root(root),
            None => CallSpec::of(CollectiveKind::AllGather, NAMES[0]),
        };
        let here = root.is_none_or(|root| root == second.comm.rank());
        let done = second.begin(&tuning, &spec.counts(&theirs), send, OptionalVec(here));
        Ok((done.await?, theirs))
    }
}

/// Returns the communicator and the tuning of a call.
pub(crate) fn of(on: &(impl Collectives + ?Sized)) -> (Comm, Tuning) {
    (on.communicator().clone(), *on.tuning())
}

const BCAST: &str = "bcast_ragged";
const NEIGHBORS: &str = "neighbor_all_to_all_ragged";
const NAMES: [&str; 2] = ["all_gather_ragged", "gather_ragged"];

#[track_caller]
fn fresh(
    comm: &Comm,
    tuning: &Tuning,
    spec: &CallSpec<'_>,
    send: Vec<u64>,
) -> crate::op::NewVecOp<Vec<u64>> {
    let mut call = lengths(comm, tuning, spec);
    let room = call.output_vec();
    call.begin(None, send, room, NewVec)
}

/// Makes the call of the first part. Its signature contains the whole collective's name: a rank that calls the collective of
/// the first part alone would otherwise match, and complete.
#[track_caller]
pub(crate) fn lengths<'a>(comm: &'a Comm, tuning: &Tuning, spec: &CallSpec<'_>) -> OrderedCall<'a> {
    let mut call = OrderedCall::new::<u64>(comm, tuning, spec);
    call.agree_on(CollectiveSignature::of(spec.name));
    call
}

fn lens_of<T>(rows: &[Vec<T>]) -> Vec<u64> {
    rows.iter().map(|row| row.len() as u64).collect()
}

/// Converts lengths to counts. A length that this rank could not hold in memory becomes the greatest count, and the call is
/// refused.
pub(crate) fn counts(lens: &[u64]) -> Vec<usize> {
    let count = |len: &u64| usize::try_from(*len).unwrap_or(usize::MAX);
    lens.iter().map(count).collect()
}

/// Wraps the work for the task that awaits the collective.
pub(crate) fn boxed_finish<D>(rest: impl FnOnce() -> D + Send + 'static) -> RaggedFinish<D> {
    Box::new(rest)
}

/// Returns the work that splits what has arrived; after a failure, the vectors that were to be sent.
fn finish_rows<T: Wire>(
    done: Result<Vec<T>, OpError<Vec<T>>>,
    send: RankVectors<T>,
    recvs: Vec<usize>,
) -> Result<RaggedFinish<RankVectors<T>>, OpError<RankVectors<T>>> {
    match done {
        Ok(all) => Ok(boxed_finish(move || rows(&all, &recvs))),
        Err(OpError { error, .. }) => Err(OpError { error, buf: send }),
    }
}

fn rows<T: Wire>(mut all: &[T], counts: &[usize]) -> RankVectors<T> {
    let row = |count: &usize| {
        let (row, rest) = all.split_at(*count);
        all = rest;
        row.to_vec()
    };
    counts.iter().map(row).collect()
}

impl<D: Send + 'static, F: Send + 'static> RaggedOp<D, F> {
    /// Starts the rest of the collective, which proceeds by itself from now on. The places that it has reserved keep the
    /// runtime open.
    pub(crate) fn new(
        rest: impl Future<Output = Result<RaggedFinish<D>, F>> + Send + 'static,
    ) -> Self {
        Self {
            course: BackgroundFuture::new(rest),
        }
    }

    /// Detaches the collective, as dropping this future does.
    pub fn detach(self) {}

    /// Returns true if the collective has completed, so that awaiting it would not wait.
    pub fn is_done(&self) -> bool {
        self.course.is_done()
    }
}

impl<D: Send + 'static, F: Send + 'static> Future for RaggedOp<D, F> {
    type Output = Result<D, F>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.course).poll(cx));
        Poll::Ready(outcome.map(|finish| finish()))
    }
}

impl<D: Send + 'static, F: Send + 'static> fmt::Debug for RaggedOp<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaggedOp").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::{Context, Poll, Waker},
    };

    use super::{RaggedOp, boxed_finish};

    #[test]
    fn the_awaiting_task_runs_the_finish_step_and_not_the_completing_thread() {
        let finished = Arc::new(AtomicU32::new(0));
        let finishes = || {
            let finished = Arc::clone(&finished);
            let add = move || finished.fetch_add(1, Ordering::SeqCst);
            RaggedOp::<u32, ()>::new(async { Ok(boxed_finish(add)) })
        };
        drop(finishes());
        let op = finishes();
        assert!(op.is_done() && finished.load(Ordering::SeqCst) == 0);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(pin!(op).poll(&mut cx), Poll::Ready(Ok(0)));
        assert_eq!(finished.load(Ordering::SeqCst), 1);
    }
}
