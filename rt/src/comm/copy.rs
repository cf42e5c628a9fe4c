//! The future of a send that copies its data: [`SendCopyOp`].

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::SendOp;
use crate::{
    buffer::Wire,
    error::{Error, Result},
    executor::poll_proceed,
};

/// A send of copied data. The call that made it has already started the send, which proceeds whether or not it is
/// polled.
///
/// It completes when the message has left, or, if the message is longer than the eager limit, when it has been
/// received. Dropping it detaches it: the message is still sent.
#[must_use = "await it, or call `detach`"]
pub struct SendCopyOp<T: Wire> {
    state: SendCopyState<T>,
}

// The type is small, because futures are moved around and dropped. What did not leave at once is rare, so it is boxed.
enum SendCopyState<T: Wire> {
    Sent,
    Failed(Box<Error>),
    InFlight(Box<SendOp<Vec<T>>>),
    Taken,
}

impl<T: Wire> SendCopyOp<T> {
    #[inline]
    pub(super) fn sent() -> Self {
        Self {
            state: SendCopyState::Sent,
        }
    }

    #[cold]
    pub(crate) fn failed(error: Error) -> Self {
        Self {
            state: SendCopyState::Failed(Box::new(error)),
        }
    }

    pub(crate) fn in_flight(send: SendOp<Vec<T>>) -> Self {
        Self {
            state: SendCopyState::InFlight(Box::new(send)),
        }
    }

    /// Lets the send complete in the background. Same as dropping it.
    pub fn detach(self) {}

    /// Returns true if awaiting this would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.state {
            SendCopyState::InFlight(send) => send.is_done(),
            _ => true,
        }
    }

    /// Gives up after `limit`, as [`SendOp::timeout`] does. The error is then `TimedOut`.
    pub fn timeout(self, limit: Duration) -> Self {
        match self.state {
            SendCopyState::InFlight(send) => Self::in_flight(send.timeout(limit)),
            state => Self { state },
        }
    }
}

impl<T: Wire> Future for SendCopyOp<T> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let SendCopyState::InFlight(send) = &mut self.state {
            let sent = ready!(Pin::new(send).poll(cx));
            self.state = SendCopyState::Taken;
            return Poll::Ready(sent.map(drop).map_err(|failed| failed.error));
        }
        ready!(poll_proceed(cx));
        match mem::replace(&mut self.state, SendCopyState::Taken) {
            SendCopyState::Sent => Poll::Ready(Ok(())),
            SendCopyState::Failed(error) => Poll::Ready(Err(*error)),
            _ => panic!("a send was polled after it had completed"),
        }
    }
}

impl<T: Wire> fmt::Debug for SendCopyOp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendCopyOp")
            .field("done", &self.is_done())
            .finish()
    }
}
