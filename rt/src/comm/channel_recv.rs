//! The future of a receive of a channel: [`ChannelRecv`].

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Comm, RecvOp, Status, handle_cache,
    op::{MessageFlight, PolledOutOfLine, failed, status_of, unexpected_state},
};
use crate::{
    buffer::RecvBuf,
    engine::EngineCore,
    error::OpError,
    executor::poll_proceed,
    ops::{OpTicket, PlacedBytes, PlacedMessage},
};

/// A posted receive of a [`Channel`](super::Channel). It proceeds whether or not it is polled.
///
/// It is like a [`RecvOp`], except that a short message may wait in the runtime until the future is polled, and the buffer waits
/// in the future. So an exchange of short messages by channels takes fewer instructions.
///
/// Dropping it cancels the receive. A message that it has already matched returns to its place in the queue, so
/// `select!` and time limits lose no message.
#[must_use = "await it; dropping it takes the receive back"]
pub struct ChannelRecv<B> {
    /// `None` after a receive in place was completed.
    state: Option<ChannelRecvState<B>>,
}

enum ChannelRecvState<B> {
    /// The message comes to a place of the runtime.
    InPlace {
        flight: MessageFlight<PlacedBytes>,
        buf: B,
    },
    /// The receive is like any other one: its message may be long, or another receive was posted before it.
    Posted(RecvOp<B>),
}

impl<B> ChannelRecv<B> {
    pub(super) const fn posted(recv: RecvOp<B>) -> Self {
        Self {
            state: Some(ChannelRecvState::Posted(recv)),
        }
    }

    /// Returns true if awaiting this would not wait.
    pub fn is_done(&self) -> bool {
        match &self.state {
            Some(ChannelRecvState::InPlace { flight, .. }) => flight.is_done(),
            Some(ChannelRecvState::Posted(recv)) => recv.is_done(),
            None => true,
        }
    }

    /// Gives up after `limit`, as [`RecvOp::timeout`] does.
    pub fn timeout(mut self, limit: Duration) -> Self {
        match self.state.take() {
            Some(ChannelRecvState::Posted(recv)) => return Self::posted(recv.timeout(limit)),
            state => self.state = state,
        }
        if let Some(ChannelRecvState::InPlace { flight, .. }) = &self.state {
            flight.set_timer(limit);
        }
        self
    }
}

impl<B: RecvBuf> ChannelRecv<B> {
    #[inline(always)]
    pub(super) fn in_place(comm: &Comm, ticket: OpTicket<PlacedBytes>, buf: B) -> Self {
        let flight = MessageFlight::new(comm, ticket);
        Self {
            state: Some(ChannelRecvState::InPlace { flight, buf }),
        }
    }

    /// Cancels the receive and returns the buffer.
    ///
    /// # Errors
    /// This is not a failure: if the message arrived first, returns the buffer with the message in it.
    pub async fn cancel(self) -> Result<B, (B, Status)> {
        match &self.state {
            Some(ChannelRecvState::InPlace { flight, .. }) => flight.unpost(),
            Some(ChannelRecvState::Posted(recv)) => recv.unpost(),
            None => {}
        }
        match self.await {
            Ok((buf, status)) => Err((buf, status)),
            Err(error) => Ok(error.buf),
        }
    }

    /// Takes a message that has come to its place.
    #[inline(always)]
    fn take_arrived(&mut self) -> Option<(B, Status)> {
        let Some(ChannelRecvState::InPlace { flight, buf }) = &mut self.state else {
            return None;
        };
        let (shared, ticket) = (flight.comm.shared(), &flight.ticket);
        let placed = shared.try_take(|core| core.p2p.common.ops.take_landed_place(ticket, buf))?;
        Some(self.received(placed))
    }

    /// Returns the buffer, with the message in it, of a receive whose operation is complete.
    #[inline(always)]
    fn received(&mut self, placed: PlacedMessage) -> (B, Status) {
        let (comm, buf) = self.take_parts();
        handle_cache::cache_handle(comm);
        let status = Status {
            source: placed.source,
            tag: placed.tag,
            len: placed.len,
        };
        (buf, status)
    }

    /// Returns the parts of a receive whose operation has ended.
    #[inline(always)]
    fn take_parts(&mut self) -> (Comm, B) {
        match self.state.take() {
            Some(ChannelRecvState::InPlace { flight, buf }) => (flight.comm, buf),
            other => unexpected_state(other),
        }
    }

    /// Polls a receive that has no place, or whose message was not there.
    #[inline(never)]
    fn poll_unreceived(&mut self, cx: &Context<'_>) -> PolledOutOfLine<(B, Status), B> {
        let taken = match &mut self.state {
            Some(ChannelRecvState::InPlace { flight, buf }) => {
                let (shared, ticket) = (flight.comm.shared(), &flight.ticket);
                let take =
                    |core: &mut EngineCore| core.p2p.common.ops.take_landed_place(ticket, buf);
                shared.take_expected(ticket.op, take)
            }
            Some(ChannelRecvState::Posted(recv)) => {
                return match recv.take_arrived() {
                    Some(received) => Poll::Ready(Ok(received)),
                    None => recv.poll_unreceived(cx),
                };
            }
            None => panic!("a receive was polled after it had completed"),
        };
        match taken {
            Some(Some(placed)) => Poll::Ready(Ok(self.received(placed))),
            turned => self.poll_posted(cx, turned.is_some()),
        }
    }

    /// Polls a receive that is posted by now, or that fails. Makes no turns if that `has_turned`.
    fn poll_posted(
        &mut self,
        cx: &Context<'_>,
        has_turned: bool,
    ) -> PolledOutOfLine<(B, Status), B> {
        let Some(ChannelRecvState::InPlace { flight, buf }) = &mut self.state else {
            unreachable!("seen by the caller")
        };
        let (shared, ticket) = (flight.comm.shared(), &flight.ticket);
        let take = |core: &mut EngineCore| core.p2p.common.take_place(ticket, buf);
        let outcome = ready!(shared.poll_after(has_turned, ticket.op, cx.waker(), take));
        Poll::Ready(match outcome {
            Ok(landed) => {
                let (comm, buf) = self.take_parts();
                let status = status_of::<B::Elem>(&comm, &landed);
                handle_cache::cache_handle(comm);
                Ok((buf, status))
            }
            Err(failure) => {
                let (comm, buf) = self.take_parts();
                Err(Box::new(failed("recv", &comm, *failure, buf)))
            }
        })
    }
}

impl<B: RecvBuf> Future for ChannelRecv<B> {
    type Output = Result<(B, Status), OpError<B>>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(poll_proceed(cx));
        match self.take_arrived() {
            Some(received) => Poll::Ready(Ok(received)),
            None => {
                let received = ready!(self.poll_unreceived(cx));
                Poll::Ready(received.map_err(|failed| *failed))
            }
        }
    }
}

impl<B> ChannelRecv<B> {
    #[inline(never)]
    fn drop_state(&mut self) {
        if let Some(ChannelRecvState::InPlace { flight, .. }) = self.state.take() {
            flight.take_back();
        }
    }
}

impl<B> Drop for ChannelRecv<B> {
    #[inline(always)]
    fn drop(&mut self) {
        // One comparison is enough for a receive in place that has completed, as for a send.
        if self.state.is_some() {
            self.drop_state();
        }
    }
}

// The buffer is moved, never pinned.
impl<B> Unpin for ChannelRecv<B> {}

impl<B> fmt::Debug for ChannelRecv<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelRecv")
            .field("done", &self.is_done())
            .finish()
    }
}
