//! The futures of collectives.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ripstop_rt::{
    Error, OpError,
    buffer::{RecvBuf, SendBuf, Wire},
    internal::offload::ProgramOp,
};

use crate::Reduction;

/// A collective in flight. It started when it was made, and proceeds whether or not it is polled.
///
/// It owns its buffers and gives them back, also with an error; `H` determines which of them. Dropping it detaches the
/// collective, which still completes, so that the other ranks complete too. The buffers are dropped afterwards.
#[must_use = "await it, or call `detach`"]
pub struct CollectiveOp<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>> {
    pub(crate) run: ProgramOp<I, O>,
    /// `None` after completion.
    pub(crate) home: Option<H>,
}

/// A reduction in flight: a [`CollectiveOp`], or one on elements that are wider than the caller's.
#[must_use = "await it, or call `detach`"]
pub struct ReductionOp<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>, A: Wire> {
    state: ReductionRun<I, O, H, A>,
}

enum ReductionRun<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>, A: Wire> {
    Direct(CollectiveOp<I, O, H>),
    /// Boxed, because it is rare and would make the others longer.
    Wide(Box<WideReduction<A, CollectiveOutcome<I, O, H>>>),
}

struct WideReduction<A: Wire, R> {
    op: CollectiveOp<Vec<A>, Vec<A>, Both>,
    /// `None` after completion.
    finish: Option<NarrowResult<A, R>>,
}

/// Converts a wide result to the caller's elements, in the buffer that was kept for it.
type NarrowResult<A, R> = Box<dyn FnOnce(Result<Vec<A>, Error>) -> R + Send>;

type CollectiveOutcome<I, O, H> =
    Result<<H as ReturnBuffers<I, O>>::Done, <H as ReturnBuffers<I, O>>::Failure>;

/// Conversion of a collective's two buffers into its result.
pub trait ReturnBuffers<I, O>: Unpin {
    /// The result of a success.
    type Done;
    /// The result of a failure.
    type Failure;

    /// Returns the result of a success.
    fn done(self, input: I, output: O) -> Self::Done;

    /// Returns the result of a failure.
    fn failed(self, failure: OpError<(I, O)>) -> Self::Failure;
}

/// Returns no buffer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Nothing;

/// Returns the one buffer that the collective works in.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct InPlace;

/// Returns both buffers, the sent one and the received one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Both;

/// Returns a new vector with the result, or the send buffer after a failure.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NewVec;

/// Like [`NewVec`], with `Some` on the ranks that have a result.
#[derive(Clone, Copy, Debug)]
pub struct OptionalVec(pub(crate) bool);

/// No buffer.
pub type NoBuf = [u8; 0];
/// The future of a barrier.
pub type BarrierOp = CollectiveOp<NoBuf, NoBuf, Nothing>;
/// The future of a collective that works in one buffer.
pub type InPlaceOp<B> = CollectiveOp<NoBuf, B, InPlace>;
/// The future of a collective from one buffer into another.
pub type ExchangeOp<S, R> = CollectiveOp<S, R, Both>;
/// The future of a collective whose result is a new vector.
pub type NewVecOp<S> = CollectiveOp<S, Vec<<S as SendBuf>::Elem>, NewVec>;
/// The future of a collective whose result is a new vector on some ranks.
pub type OptionalVecOp<S> = CollectiveOp<S, Vec<<S as SendBuf>::Elem>, OptionalVec>;
/// The elements that travel in a reduction of a buffer.
type AccOf<B, R> = <R as Reduction<<B as SendBuf>::Elem>>::Acc;
/// The future of a reduction that works in one buffer.
pub type ReduceInPlaceOp<B, R> = ReductionOp<NoBuf, B, InPlace, AccOf<B, R>>;
/// The future of a reduction from one buffer into another.
pub type ReduceIntoOp<S, B, R> = ReductionOp<S, B, Both, AccOf<S, R>>;
/// The future of a reduction whose result is a new vector.
pub type ReduceNewVecOp<S, R> = ReductionOp<S, Vec<<S as SendBuf>::Elem>, NewVec, AccOf<S, R>>;
/// The future of a reduction whose result is a new vector on some ranks.
pub type ReduceOptionalVecOp<S, R> =
    ReductionOp<S, Vec<<S as SendBuf>::Elem>, OptionalVec, AccOf<S, R>>;

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>> CollectiveOp<I, O, H> {
    pub(crate) const fn new(run: ProgramOp<I, O>, home: H) -> Self {
        Self {
            run,
            home: Some(home),
        }
    }

    /// Detaches the collective, as dropping this future does.
    pub fn detach(self) {}

    /// Returns true if awaiting the future would not wait.
    pub fn is_done(&self) -> bool {
        self.run.is_done()
    }
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>> Future for CollectiveOp<I, O, H> {
    type Output = Result<H::Done, H::Failure>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((input, output)) = ready!(self.run.poll_filled(cx)) else {
            return self.poll_flight(cx);
        };
        let home = self.home.take().expect("a program completes once");
        Poll::Ready(Ok(home.done(input, output)))
    }
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>> CollectiveOp<I, O, H> {
    /// Polls a collective that did not complete at its call.
    #[inline(never)]
    fn poll_flight(&mut self, cx: &mut Context<'_>) -> Poll<Result<H::Done, H::Failure>> {
        let outcome = ready!(self.run.poll_flight(cx));
        let home = self.home.take().expect("a program completes once");
        Poll::Ready(match outcome {
            Ok((input, output)) => Ok(home.done(input, output)),
            Err(failure) => Err(home.failed(failure)),
        })
    }
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>, A: Wire> ReductionOp<I, O, H, A> {
    pub(crate) const fn direct(op: CollectiveOp<I, O, H>) -> Self {
        let state = ReductionRun::Direct(op);
        Self { state }
    }

    pub(crate) fn wide(
        op: CollectiveOp<Vec<A>, Vec<A>, Both>,
        finish: impl FnOnce(Result<Vec<A>, Error>) -> Result<H::Done, H::Failure> + Send + 'static,
    ) -> Self {
        let finish: NarrowResult<_, _> = Box::new(finish);
        let wide = WideReduction {
            op,
            finish: Some(finish),
        };
        let state = ReductionRun::Wide(Box::new(wide));
        Self { state }
    }

    /// Detaches the collective, as dropping this future does.
    pub fn detach(self) {}

    /// Returns true if awaiting the future would not wait.
    pub fn is_done(&self) -> bool {
        match &self.state {
            ReductionRun::Direct(op) => op.is_done(),
            ReductionRun::Wide(wide) => wide.op.is_done(),
        }
    }
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>, A: Wire> Future for ReductionOp<I, O, H, A> {
    type Output = Result<H::Done, H::Failure>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            ReductionRun::Direct(op) => Pin::new(op).poll(cx),
            ReductionRun::Wide(wide) => {
                let outcome = ready!(Pin::new(&mut wide.op).poll(cx));
                let finish = wide.finish.take().expect("a program completes once");
                let result = outcome.map(|(_, output)| output);
                Poll::Ready(finish(result.map_err(Error::from)))
            }
        }
    }
}

impl<I, O> ReturnBuffers<I, O> for Nothing {
    type Done = ();
    type Failure = Error;

    fn done(self, _: I, _: O) {}

    fn failed(self, failure: OpError<(I, O)>) -> Error {
        failure.error
    }
}

impl<I, O> ReturnBuffers<I, O> for InPlace {
    type Done = O;
    type Failure = OpError<O>;

    fn done(self, _: I, output: O) -> O {
        output
    }

    fn failed(self, failure: OpError<(I, O)>) -> OpError<O> {
        let (error, (_, buf)) = failure.into_parts();
        OpError { error, buf }
    }
}

impl<I, O> ReturnBuffers<I, O> for Both {
    type Done = (I, O);
    type Failure = OpError<(I, O)>;

    fn done(self, input: I, output: O) -> (I, O) {
        (input, output)
    }

    fn failed(self, failure: OpError<(I, O)>) -> OpError<(I, O)> {
        failure
    }
}

impl<I, O> ReturnBuffers<I, O> for NewVec {
    type Done = O;
    type Failure = OpError<I>;

    fn done(self, _: I, output: O) -> O {
        output
    }

    fn failed(self, failure: OpError<(I, O)>) -> OpError<I> {
        let (error, (buf, _)) = failure.into_parts();
        OpError { error, buf }
    }
}

impl<I, O> ReturnBuffers<I, O> for OptionalVec {
    type Done = Option<O>;
    type Failure = OpError<I>;

    fn done(self, _: I, output: O) -> Option<O> {
        self.0.then_some(output)
    }

    fn failed(self, failure: OpError<(I, O)>) -> OpError<I> {
        NewVec.failed(failure)
    }
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>> fmt::Debug for CollectiveOp<I, O, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>, A: Wire> fmt::Debug
    for ReductionOp<I, O, H, A>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            ReductionRun::Direct(op) => op.fmt(f),
            ReductionRun::Wide(wide) => wide.op.fmt(f),
        }
    }
}
