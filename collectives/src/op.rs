//! The futures of collectives.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ripstop_rt::{
    Error, OpError,
    buffer::{RecvBuf, SendBuf, Wire},
    offload::ProgramOp,
};

use crate::Reduction;

/// A collective under way. It was started when it was made, and proceeds whether or not it is polled.
///
/// It owns its buffers, and gives them back, also with an error; which of them is up to `H`. Dropping it detaches it: the
/// collective goes on, so that the other ranks complete, and the buffers are dropped afterwards.
#[must_use = "await it, or call `detach`"]
pub struct CollectiveOp<I: SendBuf, O: RecvBuf, H: Home<I, O>> {
    pub(crate) run: ProgramOp<I, O>,
    /// `None` when it has completed.
    pub(crate) home: Option<H>,
}

/// A reduction under way: a [`CollectiveOp`], or one on elements that are wider than the caller's.
#[must_use = "await it, or call `detach`"]
pub struct ReductionOp<I: SendBuf, O: RecvBuf, H: Home<I, O>, A: Wire> {
    way: Way<I, O, H, A>,
}

enum Way<I: SendBuf, O: RecvBuf, H: Home<I, O>, A: Wire> {
    Direct(CollectiveOp<I, O, H>),
    Wide(
        CollectiveOp<Vec<A>, Vec<A>, Both>,
        Option<Finish<A, Outcome<I, O, H>>>,
    ),
}

/// Brings a wide result home, into the buffer that has waited for it.
type Finish<A, R> = Box<dyn FnOnce(Result<Vec<A>, Error>) -> R + Send>;

type Outcome<I, O, H> = Result<<H as Home<I, O>>::Done, <H as Home<I, O>>::Failure>;

/// What a collective makes of its two buffers in the end.
pub trait Home<I, O>: Unpin {
    /// What a success gives.
    type Done;
    /// What a failure gives.
    type Failure;

    /// It went well.
    fn done(self, input: I, output: O) -> Self::Done;

    /// It did not.
    fn failed(self, failure: OpError<(I, O)>) -> Self::Failure;
}

/// No buffer comes home.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Nothing;

/// The one buffer that the collective works in.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct InPlace;

/// Both buffers: the one that was sent from, and the one that was received into.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Both;

/// A new vector with the result; after a failure, what was to be sent.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Fresh;

/// As [`Fresh`], with `Some` on the ranks that have a result.
#[derive(Clone, Copy, Debug)]
pub struct FreshAt(pub(crate) bool);

/// No buffer.
pub type NoBuf = [u8; 0];
/// The future of a barrier.
pub type BarrierOp = CollectiveOp<NoBuf, NoBuf, Nothing>;
/// The future of a collective that works in one buffer.
pub type InPlaceOp<B> = CollectiveOp<NoBuf, B, InPlace>;
/// The future of a collective from one buffer into another.
pub type ExchangeOp<S, R> = CollectiveOp<S, R, Both>;
/// The future of a collective whose result is a new vector.
pub type FreshOp<S> = CollectiveOp<S, Vec<<S as SendBuf>::Elem>, Fresh>;
/// The future of a collective whose result is a new vector on some ranks.
pub type FreshAtOp<S> = CollectiveOp<S, Vec<<S as SendBuf>::Elem>, FreshAt>;
/// What travels in a reduction of a buffer.
type AccOf<B, R> = <R as Reduction<<B as SendBuf>::Elem>>::Acc;
/// The future of a reduction that works in one buffer.
pub type ReduceInPlaceOp<B, R> = ReductionOp<NoBuf, B, InPlace, AccOf<B, R>>;
/// The future of a reduction from one buffer into another.
pub type ReduceIntoOp<S, B, R> = ReductionOp<S, B, Both, AccOf<S, R>>;
/// The future of a reduction whose result is a new vector.
pub type ReduceFreshOp<S, R> = ReductionOp<S, Vec<<S as SendBuf>::Elem>, Fresh, AccOf<S, R>>;
/// The future of a reduction whose result is a new vector on some ranks.
pub type ReduceFreshAtOp<S, R> = ReductionOp<S, Vec<<S as SendBuf>::Elem>, FreshAt, AccOf<S, R>>;

impl<I: SendBuf, O: RecvBuf, H: Home<I, O>> CollectiveOp<I, O, H> {
    pub(crate) const fn new(run: ProgramOp<I, O>, home: H) -> Self {
        Self {
            run,
            home: Some(home),
        }
    }

    /// Lets it go on by itself; same as dropping it.
    pub fn detach(self) {}

    /// Whether awaiting it would not wait.
    pub fn is_done(&self) -> bool {
        self.run.is_done()
    }
}

impl<I: SendBuf, O: RecvBuf, H: Home<I, O>> Future for CollectiveOp<I, O, H> {
    type Output = Result<H::Done, H::Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.run).poll(cx));
        let home = self.home.take().expect("a program completes once");
        Poll::Ready(match outcome {
            Ok((input, output)) => Ok(home.done(input, output)),
            Err(failure) => Err(home.failed(failure)),
        })
    }
}

impl<I: SendBuf, O: RecvBuf, H: Home<I, O>, A: Wire> ReductionOp<I, O, H, A> {
    pub(crate) const fn direct(op: CollectiveOp<I, O, H>) -> Self {
        let way = Way::Direct(op);
        Self { way }
    }

    pub(crate) fn wide(
        op: CollectiveOp<Vec<A>, Vec<A>, Both>,
        finish: impl FnOnce(Result<Vec<A>, Error>) -> Result<H::Done, H::Failure> + Send + 'static,
    ) -> Self {
        let way = Way::Wide(op, Some(Box::new(finish)));
        Self { way }
    }

    /// Lets it go on by itself; same as dropping it.
    pub fn detach(self) {}

    /// Whether awaiting it would not wait.
    pub fn is_done(&self) -> bool {
        match &self.way {
            Way::Direct(op) => op.is_done(),
            Way::Wide(op, _) => op.is_done(),
        }
    }
}

impl<I: SendBuf, O: RecvBuf, H: Home<I, O>, A: Wire> Future for ReductionOp<I, O, H, A> {
    type Output = Result<H::Done, H::Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.way {
            Way::Direct(op) => Pin::new(op).poll(cx),
            Way::Wide(op, finish) => {
                let outcome = ready!(Pin::new(op).poll(cx));
                let finish = finish.take().expect("a program completes once");
                let result = outcome.map(|(_, output)| output);
                Poll::Ready(finish(result.map_err(Error::from)))
            }
        }
    }
}

impl<I, O> Home<I, O> for Nothing {
    type Done = ();
    type Failure = Error;

    fn done(self, _: I, _: O) {}

    fn failed(self, failure: OpError<(I, O)>) -> Error {
        failure.error
    }
}

impl<I, O> Home<I, O> for InPlace {
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

impl<I, O> Home<I, O> for Both {
    type Done = (I, O);
    type Failure = OpError<(I, O)>;

    fn done(self, input: I, output: O) -> (I, O) {
        (input, output)
    }

    fn failed(self, failure: OpError<(I, O)>) -> OpError<(I, O)> {
        failure
    }
}

impl<I, O> Home<I, O> for Fresh {
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

impl<I, O> Home<I, O> for FreshAt {
    type Done = Option<O>;
    type Failure = OpError<I>;

    fn done(self, _: I, output: O) -> Option<O> {
        self.0.then_some(output)
    }

    fn failed(self, failure: OpError<(I, O)>) -> OpError<I> {
        Fresh.failed(failure)
    }
}

impl<I: SendBuf, O: RecvBuf, H: Home<I, O>> fmt::Debug for CollectiveOp<I, O, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}

impl<I: SendBuf, O: RecvBuf, H: Home<I, O>, A: Wire> fmt::Debug for ReductionOp<I, O, H, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way {
            Way::Direct(op) => op.fmt(f),
            Way::Wide(op, _) => op.fmt(f),
        }
    }
}
