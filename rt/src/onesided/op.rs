//! The future of an operation on a window.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::overlap::Watched;
use crate::{
    comm::Comm,
    engine::Core,
    error::OpError,
    ops::{Outcome, Ticket},
};

/// An operation on another rank's memory. It was started when it was made, and gives its buffer back.
///
/// Dropping it detaches it: it goes on by itself, and an epoch that it is in does not end before it.
#[must_use = "await it, or call `detach`"]
pub struct RemoteOp<B: Send + 'static> {
    state: State<B>,
}

enum State<B> {
    Done(B),
    /// A long copy of the caller's.
    Copied(B, Box<Watched>),
    Failed(Box<OpError<B>>),
    Flying(Flight<B>),
    Taken,
}

struct Flight<B> {
    op: &'static str,
    comm: Comm,
    ticket: Ticket<B>,
    take: Take<B>,
    /// A long copy of the agent's, until it is polled.
    watched: Option<Box<Watched>>,
}

type Take<B> = fn(&mut Core, &Ticket<B>) -> Option<(Outcome, B)>;

impl<B: Send + 'static> RemoteOp<B> {
    pub(super) fn done(buf: B) -> Self {
        Self {
            state: State::Done(buf),
        }
    }

    /// One that could not even be started.
    #[doc(hidden)]
    pub fn failed(error: OpError<B>) -> Self {
        Self {
            state: State::Failed(Box::new(error)),
        }
    }

    pub(super) fn flying(op: &'static str, comm: &Comm, ticket: Ticket<B>, take: Take<B>) -> Self {
        let comm = comm.clone();
        Self {
            state: State::Flying(Flight {
                op,
                comm,
                ticket,
                take,
                watched: None,
            }),
        }
    }

    /// Has it tell when it is polled first.
    #[inline]
    pub(super) fn watched(mut self, watched: Option<Box<Watched>>) -> Self {
        let Some(watched) = watched else {
            return self;
        };
        match &mut self.state {
            State::Flying(flight) => flight.watched = Some(watched),
            state => {
                *state = match mem::replace(state, State::Taken) {
                    State::Done(buf) => State::Copied(buf, watched),
                    other => other,
                }
            }
        }
        self
    }

    /// Lets it go on by itself; same as dropping it.
    pub fn detach(self) {}

    /// Whether awaiting it would not wait.
    pub fn is_done(&self) -> bool {
        let State::Flying(flight) = &self.state else {
            return true;
        };
        let shared = flight.comm.shared();
        shared.with(|engine| engine.core.is_done(flight.ticket.op))
    }
}

impl<B: Send + 'static> Future for RemoteOp<B> {
    type Output = Result<B, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Flying(Flight {
            op,
            comm,
            ticket,
            take,
            watched,
        }) = &mut self.state
        {
            let shared = comm.shared();
            if let Some(watched) = watched.take() {
                watched.asked(shared.with(|engine| engine.core.is_done(ticket.op)));
            }
            let (outcome, buf) =
                ready!(shared.poll(ticket.op, cx.waker(), |core| take(core, ticket)));
            let done = match outcome {
                Ok(_) => Ok(buf),
                Err(failure) => {
                    let peer = failure
                        .about
                        .peer
                        .and_then(|world| comm.group().local_of(world));
                    let error = comm.error(op, failure.kind, peer, None);
                    Err(OpError { error, buf })
                }
            };
            self.state = State::Taken;
            return Poll::Ready(done);
        }
        Poll::Ready(match mem::replace(&mut self.state, State::Taken) {
            State::Done(buf) => Ok(buf),
            State::Copied(buf, watched) => {
                watched.asked(true);
                Ok(buf)
            }
            State::Failed(error) => Err(*error),
            State::Flying(_) | State::Taken => {
                panic!("an operation was polled after it had completed")
            }
        })
    }
}

impl<B: Send + 'static> Drop for RemoteOp<B> {
    fn drop(&mut self) {
        if let State::Flying(flight) = &self.state {
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
