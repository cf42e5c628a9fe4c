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
    /// What did not leave at once. It is rare, so it is boxed: futures are moved around and dropped.
    rest: Option<Box<UnsentCopy<T>>>,
    is_taken: bool,
}

enum UnsentCopy<T: Wire> {
    Failed(Error),
    InFlight(SendOp<Vec<T>>),
}

impl<T: Wire> SendCopyOp<T> {
    #[inline]
    pub(super) fn sent() -> Self {
        Self {
            rest: None,
            is_taken: false,
        }
    }

    #[cold]
    pub(crate) fn failed(error: Error) -> Self {
        Self::unsent(UnsentCopy::Failed(error))
    }

    pub(crate) fn in_flight(send: SendOp<Vec<T>>) -> Self {
        Self::unsent(UnsentCopy::InFlight(send))
    }

    fn unsent(rest: UnsentCopy<T>) -> Self {
        Self {
            rest: Some(Box::new(rest)),
            is_taken: false,
        }
    }

    /// Lets the send complete in the background. Same as dropping it.
    pub fn detach(self) {}

    /// Returns true if awaiting this would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self.rest.as_deref() {
            Some(UnsentCopy::InFlight(send)) => send.is_done(),
            _ => true,
        }
    }

    /// Gives up after `limit`, as [`SendOp::timeout`] does. The error is then `TimedOut`.
    pub fn timeout(self, limit: Duration) -> Self {
        let is_taken = self.is_taken;
        let rest = self.rest.map(|rest| match *rest {
            UnsentCopy::InFlight(send) => Box::new(UnsentCopy::InFlight(send.timeout(limit))),
            failed => Box::new(failed),
        });
        Self { rest, is_taken }
    }

    /// Polls a send that failed, or whose message did not leave at once.
    #[inline(never)]
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(UnsentCopy::InFlight(send)) = self.rest.as_deref_mut() {
            let sent = ready!(Pin::new(send).poll(cx));
            (self.rest, self.is_taken) = (None, true);
            return Poll::Ready(sent.map(drop).map_err(|failed| failed.error));
        }
        ready!(poll_proceed(cx));
        self.is_taken = true;
        match self.rest.take().map(|rest| *rest) {
            Some(UnsentCopy::Failed(error)) => Poll::Ready(Err(error)),
            _ => unreachable!("seen by the caller"),
        }
    }
}

impl<T: Wire> Future for SendCopyOp<T> {
    type Output = Result<()>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.rest.is_some() {
            return self.poll_unsent(cx);
        }
        ready!(poll_proceed(cx));
        let is_over = mem::replace(&mut self.is_taken, true);
        assert!(!is_over, "a send was polled after it had completed");
        Poll::Ready(Ok(()))
    }
}

impl<T: Wire> fmt::Debug for SendCopyOp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendCopyOp")
            .field("done", &self.is_done())
            .finish()
    }
}
