//! Starts calls, by the buffers that they return.
//!
//! A call of one rank is a copy at most. It is done in place, and inlined in the caller; everything else is a function of its
//! own. That function makes its own [`CallSpec`]: the other one is never stored, because no function takes its address.

use std::ptr;

use ripstop_rt::{
    Comm, Error, OpError,
    buffer::{RecvBuf, SendBuf, Wire},
    internal::{
        CommInternals,
        offload::{CollectivePlace, LocalCopy, ProgramOp},
        overwrite, room,
    },
};

use crate::{
    Collectives,
    blocks::{AllToAllOp, BlockSource, ByBlocks},
    call::OrderedCall,
    call_spec::{CallSpec, CollectiveKind},
    op::{
        BarrierOp, Both, CollectiveOp, ExchangeOp, InPlace, InPlaceOp, NewVec, NewVecOp, Nothing,
        OptionalVec, OptionalVecOp, ReduceInPlaceOp, ReduceIntoOp, ReduceNewVecOp,
        ReduceOptionalVecOp, ReductionOp, ReturnBuffers,
    },
    plan::RankLayout,
    reduction::Reduction,
    tuning::AUTO,
};

#[inline(always)]
#[track_caller]
pub(crate) fn barrier(on: &(impl Collectives + ?Sized)) -> BarrierOp {
    let spec = CallSpec::of(CollectiveKind::Barrier, "barrier");
    match lone_copy::<u8>(on, &spec) {
        Some(copy) => complete(on, &spec, copy, ([], []), Nothing),
        None => barrier_of_several(on),
    }
}

#[inline(never)]
#[track_caller]
fn barrier_of_several(on: &(impl Collectives + ?Sized)) -> BarrierOp {
    let spec = CallSpec::of(CollectiveKind::Barrier, "barrier");
    call::<u8>(on, &spec).begin(None, [], [], Nothing)
}

#[inline(always)]
#[track_caller]
pub(crate) fn bcast<B: RecvBuf>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    buf: B,
) -> InPlaceOp<B> {
    let spec = bcast_spec(root, &buf);
    match lone_copy::<B::Elem>(on, &spec) {
        Some(copy) if buf.fault().is_none() => complete(on, &spec, copy, ([], buf), InPlace),
        _ => bcast_of_several(on, root, buf),
    }
}

#[inline(never)]
#[track_caller]
fn bcast_of_several<B: RecvBuf>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    buf: B,
) -> InPlaceOp<B> {
    let spec = bcast_spec(root, &buf);
    call::<B::Elem>(on, &spec).begin(None, [], buf, InPlace)
}

#[inline(always)]
fn bcast_spec<B: RecvBuf>(root: usize, buf: &B) -> CallSpec<'static> {
    let spec = CallSpec::of(CollectiveKind::Bcast, "bcast").root(root);
    spec.len(buf.elems().len())
}

#[track_caller]
pub(crate) fn exchange<S: SendBuf, R: RecvBuf<Elem = S::Elem>>(
    on: &(impl Collectives + ?Sized),
    spec: &CallSpec<'_>,
    send: S,
    recv: R,
) -> ExchangeOp<S, R> {
    if let Some(copy) = lone_copy::<S::Elem>(on, spec)
        && send.fault().is_none()
        && recv.fault().is_none()
    {
        return complete(on, spec, copy, (send, recv), Both);
    }
    call::<S::Elem>(on, spec).begin(None, send, recv, Both)
}

#[track_caller]
pub(crate) fn new_vec<S: SendBuf>(
    on: &(impl Collectives + ?Sized),
    spec: &CallSpec<'_>,
    send: S,
) -> NewVecOp<S> {
    if let Some((copy, recv)) = lone_vec(on, spec, &send) {
        return complete(on, spec, copy, (send, recv), NewVec);
    }
    let mut call = call::<S::Elem>(on, spec);
    let recv = call.output_vec();
    call.begin(None, send, recv, NewVec)
}

#[track_caller]
pub(crate) fn by_blocks<S: SendBuf>(
    on: &(impl Collectives + ?Sized),
    spec: &CallSpec<'_>,
    send: S,
) -> AllToAllOp<S> {
    if let Some((copy, recv)) = lone_vec(on, spec, &send) {
        let source = Some(BlockSource::Alone(copy.output()));
        return complete(on, spec, copy, (send, recv), ByBlocks { source });
    }
    let mut call = call::<S::Elem>(on, spec);
    let recv = call.output_vec();
    let source = call.blocks();
    call.allow_blocks()
        .begin(None, send, recv, ByBlocks { source })
}

#[track_caller]
pub(crate) fn optional_vec<S: SendBuf>(
    on: &(impl Collectives + ?Sized),
    spec: &CallSpec<'_>,
    send: S,
    root: usize,
) -> OptionalVecOp<S> {
    if let Some((copy, recv)) = lone_vec(on, spec, &send) {
        return complete(on, spec, copy, (send, recv), OptionalVec(true));
    }
    let mut call = call::<S::Elem>(on, spec);
    let recv = call.output_vec();
    let is_root = on.communicator().rank() == root;
    call.begin(None, send, recv, OptionalVec(is_root))
}

#[inline(always)]
#[track_caller]
pub(crate) fn reduce_in_place<B: RecvBuf, O: Reduction<B::Elem>>(
    on: &(impl Collectives + ?Sized),
    (kind, name): (CollectiveKind, &'static str),
    buf: B,
    op: O,
) -> ReduceInPlaceOp<B, O> {
    let spec = CallSpec::of(kind, name).len(buf.elems().len());
    match lone_copy::<B::Elem>(on, &spec) {
        // A result that is narrowed differs from what was widened.
        Some(copy) if buf.fault().is_none() && widened::<_, O>(&buf).is_none() => {
            ReductionOp::direct(complete(on, &spec, copy, ([], buf), InPlace))
        }
        _ => reduce_in_place_of_several(on, (kind, name), buf, op),
    }
}

#[inline(never)]
#[track_caller]
fn reduce_in_place_of_several<B: RecvBuf, O: Reduction<B::Elem>>(
    on: &(impl Collectives + ?Sized),
    (kind, name): (CollectiveKind, &'static str),
    buf: B,
    op: O,
) -> ReduceInPlaceOp<B, O> {
    let spec = CallSpec::of(kind, name).len(buf.elems().len());
    let spec = spec.reducing::<B::Elem, O>();
    let Some(wide) = widened::<_, O>(&buf) else {
        let call = call::<B::Elem>(on, &spec);
        return ReductionOp::direct(call.begin(Some(op.reducer()), [], buf, InPlace));
    };
    let mut call = call::<O::Acc>(on, &spec);
    let wide = wide.unwrap_or_else(|why| call.refused(why));
    let run = call.begin(Some(op.reducer()), Vec::new(), wide, Both);
    ReductionOp::wide(run, |outcome| match outcome {
        Ok(wide) => Ok(narrowed::<_, O>(&wide, buf)),
        Err(error) => Err(OpError { error, buf }),
    })
}

#[track_caller]
pub(crate) fn reduce_into<S, R, O>(
    on: &(impl Collectives + ?Sized),
    spec: CallSpec<'_>,
    send: S,
    mut recv: R,
    op: O,
) -> ReduceIntoOp<S, R, O>
where
    S: SendBuf,
    R: RecvBuf<Elem = S::Elem>,
    O: Reduction<S::Elem>,
{
    let mut spec = spec.reducing::<S::Elem, O>();
    let Some(wide) = widened::<_, O>(&send) else {
        if let Some(copy) = lone_copy::<S::Elem>(on, &spec)
            && send.fault().is_none()
            && recv.fault().is_none()
        {
            return ReductionOp::direct(complete(on, &spec, copy, (send, recv), Both));
        }
        let call = call::<S::Elem>(on, &spec);
        return ReductionOp::direct(call.begin(Some(op.reducer()), send, recv, Both));
    };
    let comm = on.communicator();
    let place = RankLayout::new(comm.rank(), comm.size());
    let (_, needed) = spec
        .buffer_lens(&place, size_of::<O::Acc>())
        .unwrap_or_default();
    let has = room(&mut recv);
    if has < needed {
        let sentence = format!("`recv` has room for {has} elements, and {needed} are needed");
        spec = spec.with_fault(sentence);
    }
    reduce_wide(on, &spec, wide, op, |outcome| match outcome {
        Ok(wide) => Ok((send, narrowed::<_, O>(&wide, recv))),
        Err(error) => Err(OpError {
            error,
            buf: (send, recv),
        }),
    })
}

#[track_caller]
pub(crate) fn reduce_new_vec<S: SendBuf, O: Reduction<S::Elem>>(
    on: &(impl Collectives + ?Sized),
    spec: CallSpec<'_>,
    send: S,
    op: O,
) -> ReduceNewVecOp<S, O> {
    reduce_home(on, spec, send, op, NewVec)
}

#[track_caller]
pub(crate) fn reduce_optional_vec<S: SendBuf, O: Reduction<S::Elem>>(
    on: &(impl Collectives + ?Sized),
    spec: CallSpec<'_>,
    send: S,
    op: O,
    here: bool,
) -> ReduceOptionalVecOp<S, O> {
    reduce_home(on, spec, send, op, OptionalVec(here))
}

/// Starts a reduction into a new vector, which is returned as `home` determines.
#[track_caller]
fn reduce_home<S, O, H>(
    on: &(impl Collectives + ?Sized),
    spec: CallSpec<'_>,
    send: S,
    op: O,
    home: H,
) -> ReductionOp<S, Vec<S::Elem>, H, O::Acc>
where
    S: SendBuf,
    O: Reduction<S::Elem>,
    H: ReturnBuffers<S, Vec<S::Elem>> + Send + 'static,
{
    let spec = spec.reducing::<S::Elem, O>();
    let Some(wide) = widened::<_, O>(&send) else {
        if let Some((copy, recv)) = lone_vec(on, &spec, &send) {
            return ReductionOp::direct(complete(on, &spec, copy, (send, recv), home));
        }
        let mut call = call::<S::Elem>(on, &spec);
        let recv = call.output_vec();
        return ReductionOp::direct(call.begin(Some(op.reducer()), send, recv, home));
    };
    reduce_wide(on, &spec, wide, op, |outcome| match outcome {
        Ok(wide) => Ok(home.done(send, O::narrow(&wide))),
        Err(error) => Err(home.failed(OpError {
            error,
            buf: (send, Vec::new()),
        })),
    })
}

/// Returns the widened elements, or `None` if they travel as they are, or not at all because the buffer has a fault.
fn widened<B: SendBuf, O: Reduction<B::Elem>>(buf: &B) -> Option<Result<Vec<O::Acc>, String>> {
    if buf.fault().is_some() {
        return None;
    }
    O::widen(buf.elems())
}

/// Starts a reduction of widened elements; `finish` converts the result.
#[track_caller]
fn reduce_wide<T, I, O, R, H>(
    on: &(impl Collectives + ?Sized),
    spec: &CallSpec<'_>,
    wide: Result<Vec<R::Acc>, String>,
    op: R,
    finish: impl FnOnce(Result<Vec<R::Acc>, Error>) -> Result<H::Done, H::Failure> + Send + 'static,
) -> ReductionOp<I, O, H, R::Acc>
where
    T: Wire,
    I: SendBuf,
    O: RecvBuf<Elem = T>,
    R: Reduction<T>,
    H: ReturnBuffers<I, O>,
{
    let mut call = call::<R::Acc>(on, spec);
    let wide = wide.unwrap_or_else(|why| call.refused(why));
    let recv: Vec<R::Acc> = call.output_vec();
    let run: CollectiveOp<_, _, _> = call.begin(Some(op.reducer()), wide, recv, Both);
    ReductionOp::wide(run, finish)
}

fn narrowed<B: RecvBuf, O: Reduction<B::Elem>>(wide: &[O::Acc], mut buf: B) -> B {
    overwrite(&mut buf, &O::narrow(wide));
    buf
}

/// Returns what the call does if this rank is alone, chooses no algorithm, and nothing is wrong with the arguments.
#[inline(always)]
fn lone_copy<T: Wire>(on: &(impl Collectives + ?Sized), spec: &CallSpec<'_>) -> Option<LocalCopy> {
    if on.communicator().size() == 1 && ptr::eq(on.tuning(), &AUTO) {
        spec.local_copy::<T>()
    } else {
        None
    }
}

/// Like [`lone_copy`], with a vector for the result. Returns `None` too if there is no memory for it.
#[inline]
fn lone_vec<S: SendBuf>(
    on: &(impl Collectives + ?Sized),
    spec: &CallSpec<'_>,
    send: &S,
) -> Option<(LocalCopy, Vec<S::Elem>)> {
    let copy = lone_copy::<S::Elem>(on, spec).filter(|_| send.fault().is_none())?;
    let mut room = Vec::new();
    let len = copy.output() / size_of::<S::Elem>();
    room.try_reserve_exact(len).ok()?;
    Some((copy, room))
}

/// Does a call of this rank alone.
#[inline(always)]
#[track_caller]
fn complete<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>>(
    on: &(impl Collectives + ?Sized),
    spec: &CallSpec<'_>,
    copy: LocalCopy,
    (input, mut output): (I, O),
    home: H,
) -> CollectiveOp<I, O, H> {
    let comm = on.communicator();
    match comm.try_alone(copy, &input, &mut output) {
        Ok(()) => CollectiveOp::new(ProgramOp::completed(input, output), home),
        Err(place) => begin_alone(comm, place, (spec.name, copy), (input, output), home),
    }
}

/// Begins a call of this rank alone that cannot be done in place. Makes the whole future, so that the caller of
/// [`complete`] does not move what it makes itself into the place of what this function makes.
#[cold]
#[inline(never)]
fn begin_alone<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>>(
    comm: &Comm,
    place: CollectivePlace,
    work: (&'static str, LocalCopy),
    (input, output): (I, O),
    home: H,
) -> CollectiveOp<I, O, H> {
    CollectiveOp::new(comm.begin_alone(place, work, input, output), home)
}

#[inline(always)]
#[track_caller]
fn call<'a, T: Wire>(on: &'a (impl Collectives + ?Sized), spec: &CallSpec<'_>) -> OrderedCall<'a> {
    OrderedCall::new::<T>(on.communicator(), on.tuning(), spec)
}
