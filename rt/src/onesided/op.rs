//! The future of an operation on a window: [`RemoteOp`].

use std::{
    fmt,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::overlap::ObservedCopy;
use crate::{
    comm::Comm,
    engine::{EngineCommons, EngineCore},
    error::OpError,
    executor::poll_proceed,
    ops::{OpOutcome, OpTicket},
};

/// An operation on another rank's memory. It has already been started, and returns its buffer.
///
/// Dropping it detaches it: it goes on in the background, and its epoch does not end before it.
#[must_use = "await it, or call `detach`"]
#[repr(C)] // moved in units of 16 bytes: a vector's pointer and length must stay together, because they are read together
pub struct RemoteOp<B: Send + 'static> {
    /// State of an operation that did not complete immediately. Boxed, because an operation is moved several times
    /// before it is awaited, and moving much data takes as long as a short copy.
    rest: Option<Box<RemoteOpState<B>>>,
    /// Buffer of a completed operation.
    buf: Option<B>,
}

enum RemoteOpState<B> {
    /// A long copy that the caller made. The buffer is already in its place.
    Copied(ObservedCopy),
    Failed(OpError<B>),
    InFlight(RemoteOpFlight<B>),
}

struct RemoteOpFlight<B> {
    op: &'static str,
    comm: Comm,
    ticket: OpTicket<B>,
    take: TakeOutcome<B>,
    /// Observation of a long copy by the agent, until the future is polled.
    watched: Option<ObservedCopy>,
}

type TakeOutcome<B> = fn(&mut EngineCommons, &OpTicket<B>) -> Option<(OpOutcome, B)>;

impl<B: Send + 'static> RemoteOp<B> {
    #[inline]
    pub(super) fn done(buf: B) -> Self {
        Self {
            buf: Some(buf),
            rest: None,
        }
    }

    /// Creates an operation that failed before it started.
    #[cold]
    #[track_caller]
    pub(crate) fn failed(error: OpError<B>) -> Self {
        let error = error.called_at(Location::caller());
        Self {
            buf: None,
            rest: Some(Box::new(RemoteOpState::Failed(error))),
        }
    }

    /// Creates a completed copy by the caller, which may be observed.
    #[inline]
    pub(super) fn copied(buf: B, watched: Option<ObservedCopy>) -> Self {
        Self {
            buf: Some(buf),
            rest: watched.map(|watched| Box::new(RemoteOpState::Copied(watched))),
        }
    }

    /// Creates an operation in flight. A long copy by the agent is observed until the future is polled.
    pub(super) fn in_flight(
        op: &'static str,
        comm: &Comm,
        ticket: OpTicket<B>,
        take: TakeOutcome<B>,
        watched: Option<ObservedCopy>,
    ) -> Self {
        let flight = RemoteOpFlight {
            op,
            comm: comm.clone(),
            ticket,
            take,
            watched,
        };
        Self {
            buf: None,
            rest: Some(Box::new(RemoteOpState::InFlight(flight))),
        }
    }

    /// Lets the operation complete in the background. Same as dropping it.
    pub fn detach(self) {}

    /// Returns true if awaiting this would not wait.
    pub fn is_done(&self) -> bool {
        let Some(RemoteOpState::InFlight(flight)) = self.rest.as_deref() else {
            return true;
        };
        let (shared, op) = (flight.comm.shared(), flight.ticket.op);
        shared.test_condition(|engine| engine.core.p2p.common.is_done(op))
    }

    /// Puts the buffer in its place, or returns the error of the operation.
    #[cold]
    fn settle(&mut self, cx: &Context<'_>) -> Poll<Option<Box<OpError<B>>>> {
        if let Some(RemoteOpState::InFlight(flight)) = self.rest.as_deref_mut() {
            let done = ready!(flight.poll(cx));
            self.rest = None;
            return Poll::Ready(match done {
                Ok(buf) => {
                    self.buf = Some(buf);
                    None
                }
                Err(error) => Some(Box::new(error)),
            });
        }
        match self.rest.take().map(|rest| *rest) {
            Some(RemoteOpState::Failed(error)) => return Poll::Ready(Some(Box::new(error))),
            Some(RemoteOpState::Copied(watched)) => watched.asked(true),
            Some(RemoteOpState::InFlight(_)) | None => {}
        }
        Poll::Ready(None)
    }
}

impl<B: Send + 'static> Future for RemoteOp<B> {
    type Output = Result<B, OpError<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(poll_proceed(cx));
        if self.rest.is_some()
            && let Some(error) = ready!(self.settle(cx))
        {
            return Poll::Ready(Err(*error));
        }
        match self.buf.take() {
            Some(buf) => Poll::Ready(Ok(buf)),
            None => panic!("an operation was polled after it had completed"),
        }
    }
}

impl<B: Send + 'static> RemoteOpFlight<B> {
    fn is_done(&self) -> bool {
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.p2p.common.is_done(self.ticket.op))
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<B, OpError<B>>> {
        if let Some(watched) = self.watched.take() {
            watched.asked(self.is_done());
        }
        let take = |core: &mut EngineCore| (self.take)(&mut core.p2p.common, &self.ticket);
        let shared = self.comm.shared();
        let (outcome, buf) = ready!(shared.poll(self.ticket.op, cx.waker(), take));
        Poll::Ready(match outcome {
            Ok(_) => Ok(buf),
            Err(failure) => {
                let group = self.comm.group();
                let peer = failure.info.peer.and_then(|world| group.local_of(world));
                let error = self.comm.error(self.op, failure.kind, peer, None);
                let error = error.called_at(failure.info.at);
                Err(OpError { error, buf })
            }
        })
    }
}

impl<B: Send + 'static> Drop for RemoteOp<B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(RemoteOpState::InFlight(flight)) = self.rest.as_deref() {
            let shared = flight.comm.shared();
            shared.with(|engine| engine.core.p2p.common.detach(flight.ticket.op));
        }
    }
}

// The buffer is moved, never pinned.
impl<B: Send + 'static> Unpin for RemoteOp<B> {}

impl<B: Send + 'static> fmt::Debug for RemoteOp<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteOp")
            .field("done", &self.is_done())
            .finish()
    }
}
