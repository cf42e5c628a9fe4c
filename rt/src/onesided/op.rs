//! The future of an operation on a window.

use std::{
    fmt,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::overlap::Watched;
use crate::{
    comm::Comm,
    engine::Core,
    error::OpError,
    executor::poll_proceed,
    ops::{Outcome, Ticket},
};

/// An operation on another rank's memory. It was started when it was made, and gives its buffer back.
///
/// Dropping it detaches it: it goes on by itself, and an epoch that it is in does not end before it.
#[must_use = "await it, or call `detach`"]
#[repr(C)] // it is moved by 16 bytes: a vector's pointer and length are to go together, as they are read together
pub struct RemoteOp<B: Send + 'static> {
    /// What there is to say of all that are not over at once. Those are moved several times before they are awaited, which takes
    /// as long as a short copy does, so there is nothing else in here.
    rest: Option<Box<Rest<B>>>,
    /// The buffer, when it is over.
    buf: Option<B>,
}

enum Rest<B> {
    /// A long copy of the caller's, which left the buffer in its place.
    Copied(Watched),
    Failed(OpError<B>),
    Flying(Flight<B>),
}

struct Flight<B> {
    op: &'static str,
    comm: Comm,
    ticket: Ticket<B>,
    take: Take<B>,
    /// A long copy of the agent's, until it is polled.
    watched: Option<Watched>,
}

type Take<B> = fn(&mut Core, &Ticket<B>) -> Option<(Outcome, B)>;

impl<B: Send + 'static> RemoteOp<B> {
    #[inline]
    pub(super) fn done(buf: B) -> Self {
        Self {
            buf: Some(buf),
            rest: None,
        }
    }

    /// One that could not even be started.
    #[doc(hidden)]
    #[cold]
    #[track_caller]
    pub fn failed(error: OpError<B>) -> Self {
        let error = error.called_at(Location::caller());
        Self {
            buf: None,
            rest: Some(Box::new(Rest::Failed(error))),
        }
    }

    /// A copy of the caller's, which may be watched.
    #[inline]
    pub(super) fn copied(buf: B, watched: Option<Watched>) -> Self {
        Self {
            buf: Some(buf),
            rest: watched.map(|watched| Box::new(Rest::Copied(watched))),
        }
    }

    /// A long copy of the agent's is watched until it is polled.
    pub(super) fn flying(
        op: &'static str,
        comm: &Comm,
        (ticket, take): (Ticket<B>, Take<B>),
        watched: Option<Watched>,
    ) -> Self {
        let flight = Flight {
            op,
            comm: comm.clone(),
            ticket,
            take,
            watched,
        };
        Self {
            buf: None,
            rest: Some(Box::new(Rest::Flying(flight))),
        }
    }

    /// Lets it go on by itself; same as dropping it.
    pub fn detach(self) {}

    /// Whether awaiting it would not wait.
    pub fn is_done(&self) -> bool {
        let Some(Rest::Flying(flight)) = self.rest.as_deref() else {
            return true;
        };
        let (shared, op) = (flight.comm.shared(), flight.ticket.op);
        shared.is_so(|engine| engine.core.is_done(op))
    }

    /// Puts the buffer where it is taken from, or says why the operation failed.
    #[cold]
    fn settle(&mut self, cx: &Context<'_>) -> Poll<Option<Box<OpError<B>>>> {
        if let Some(Rest::Flying(flight)) = self.rest.as_deref_mut() {
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
            Some(Rest::Failed(error)) => return Poll::Ready(Some(Box::new(error))),
            Some(Rest::Copied(watched)) => watched.asked(true),
            Some(Rest::Flying(_)) | None => {}
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

impl<B: Send + 'static> Flight<B> {
    fn is_done(&self) -> bool {
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.is_done(self.ticket.op))
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<B, OpError<B>>> {
        if let Some(watched) = self.watched.take() {
            watched.asked(self.is_done());
        }
        let take = |core: &mut Core| (self.take)(core, &self.ticket);
        let shared = self.comm.shared();
        let (outcome, buf) = ready!(shared.poll(self.ticket.op, cx.waker(), take));
        Poll::Ready(match outcome {
            Ok(_) => Ok(buf),
            Err(failure) => {
                let group = self.comm.group();
                let peer = failure.about.peer.and_then(|world| group.local_of(world));
                let error = self.comm.error(self.op, failure.kind, peer, None);
                let error = error.called_at(failure.about.at);
                Err(OpError { error, buf })
            }
        })
    }
}

impl<B: Send + 'static> Drop for RemoteOp<B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(Rest::Flying(flight)) = self.rest.as_deref() {
            let shared = flight.comm.shared();
            shared.with(|engine| engine.core.detach(flight.ticket.op));
        }
    }
}

// A buffer is moved, never pinned.
impl<B: Send + 'static> Unpin for RemoteOp<B> {}

impl<B: Send + 'static> fmt::Debug for RemoteOp<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteOp")
            .field("done", &self.is_done())
            .finish()
    }
}
