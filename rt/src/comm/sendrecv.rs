//! Sends and receives in one call, as for a shift along a grid.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{Comm, RecvOp, SendOp, Source, Status};
use crate::{
    buffer::{RecvBuf, SendBuf},
    error::OpError,
};

/// A send and a receive in flight together. Both started when this was made, and proceed whether or not it is polled.
///
/// It completes when both have ended. If one of them fails, the error is that one's, and has both buffers. If the send
/// fails, the receive is taken back.
///
/// Dropping it detaches the send, and takes the receive back without losing a message.
#[must_use = "await it; dropping it takes the receive back"]
pub struct SendRecvOp<S, R> {
    send: OpProgress<SendOp<S>, SentBuffer<S>>,
    recv: OpProgress<RecvOp<R>, ReceivedBuffer<R>>,
}

type SentBuffer<S> = Result<S, OpError<S>>;
type ReceivedBuffer<R> = Result<(R, Status), OpError<R>>;

/// One of the two operations, or its result.
enum OpProgress<Op, Outcome> {
    InFlight(Op),
    Ended(Outcome),
    Taken,
}

impl Comm {
    /// Sends `buf` to rank `to`, and receives a message of the same element type from `from` into a new vector. Both
    /// have the tag `tag`.
    ///
    /// The two proceed at the same time, so ranks that call this in a ring do not wait for each other in a circle. A rank
    /// that is `None` is left out: see [`send`](Self::send) and [`recv`](Self::recv).
    ///
    /// Output: `Result<(B, Vec<B::Elem>, Status), OpError<(B, Vec<B::Elem>)>>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let (rank, size) = (world.rank(), world.size());
    /// let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    /// let (mine, from_left, _) = world.sendrecv(right, left, 7, vec![rank; 3]).await?;
    /// assert_eq!((mine, from_left), (vec![rank; 3], vec![left; 3]));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future fails as those of [`send`](Self::send) and [`recv`](Self::recv) do, with both buffers.
    #[track_caller]
    pub fn sendrecv<B: SendBuf>(
        &self,
        to: impl Into<Option<usize>>,
        from: impl Into<Source>,
        tag: u32,
        buf: B,
    ) -> SendRecvOp<B, Vec<B::Elem>> {
        let recv = self.recv(from, tag); // posted first, so that a message to this rank itself finds it
        SendRecvOp::new(self.send(to, tag, buf), recv)
    }

    /// Like [`sendrecv`](Self::sendrecv), into the buffer `recv`, whose elements may have another type.
    ///
    /// Output: `Result<(S, R, Status), OpError<(S, R)>>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let (right, left) = (None, None); // a grid of one rank that does not wrap around
    /// let (edge, ghost) = (2.0, 0.5);
    /// let (_, ghost, status) = world.sendrecv_into(right, left, 7, edge, ghost).await?;
    /// assert_eq!((ghost, status.len), (0.5, 0));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future fails as those of [`send`](Self::send) and [`recv_into`](Self::recv_into) do, with both buffers.
    #[track_caller]
    pub fn sendrecv_into<S: SendBuf, R: RecvBuf>(
        &self,
        to: impl Into<Option<usize>>,
        from: impl Into<Source>,
        tag: u32,
        send: S,
        recv: R,
    ) -> SendRecvOp<S, R> {
        let recv = self.recv_into(from, tag, recv);
        SendRecvOp::new(self.send(to, tag, send), recv)
    }
}

impl<S, R: RecvBuf> SendRecvOp<S, R> {
    fn new(send: SendOp<S>, recv: RecvOp<R>) -> Self {
        if send.failed_at_once() {
            recv.unpost(); // its message may never come: the caller could not do its part
        }
        Self {
            send: OpProgress::InFlight(send),
            recv: OpProgress::InFlight(recv),
        }
    }
}

impl<S, R> SendRecvOp<S, R> {
    /// Returns true if awaiting this would not wait.
    ///
    /// If the send fails after it has started, the next poll takes the receive back. Until then this returns false, unless a
    /// message has come.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let sent = match &self.send {
            OpProgress::InFlight(send) => send.is_done(),
            _ => true,
        };
        let received = match &self.recv {
            OpProgress::InFlight(recv) => recv.is_done(),
            _ => true,
        };
        sent && received
    }

    /// Gives up what is not complete after `limit`, as [`SendOp::timeout`] and [`RecvOp::timeout`] do. The error is then
    /// `TimedOut`, and has both buffers.
    pub fn timeout(self, limit: Duration) -> Self {
        Self {
            send: match self.send {
                OpProgress::InFlight(send) => OpProgress::InFlight(send.timeout(limit)),
                ended => ended,
            },
            recv: match self.recv {
                OpProgress::InFlight(recv) => OpProgress::InFlight(recv.timeout(limit)),
                ended => ended,
            },
        }
    }
}

impl<Op: Future + Unpin> OpProgress<Op, Op::Output> {
    /// Polls the operation until it has ended, and keeps its result.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::InFlight(op) = self {
            match Pin::new(op).poll(cx) {
                Poll::Ready(outcome) => *self = Self::Ended(outcome),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    fn take(&mut self) -> Op::Output {
        match mem::replace(self, Self::Taken) {
            Self::Ended(outcome) => outcome,
            _ => panic!("a send and receive was polled after it had completed"),
        }
    }
}

impl<S: Send + 'static, R: RecvBuf> Future for SendRecvOp<S, R> {
    type Output = Result<(S, R, Status), OpError<(S, R)>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let sent = this.send.advance(cx);
        if let (OpProgress::Ended(Err(_)), OpProgress::InFlight(recv)) = (&this.send, &this.recv) {
            recv.unpost(); // as above
        }
        let received = this.recv.advance(cx);
        if sent.is_pending() || received.is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(match (this.send.take(), this.recv.take()) {
            (Ok(sent), Ok((received, status))) => Ok((sent, received, status)),
            (Err(failed), Ok((received, _)) | Err(OpError { buf: received, .. })) => Err(OpError {
                error: failed.error,
                buf: (failed.buf, received),
            }),
            (Ok(sent), Err(failed)) => Err(OpError {
                error: failed.error,
                buf: (sent, failed.buf),
            }),
        })
    }
}

// The buffers are moved, never pinned.
impl<S, R> Unpin for SendRecvOp<S, R> {}

impl<S, R> fmt::Debug for SendRecvOp<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRecvOp")
            .field("done", &self.is_done())
            .finish()
    }
}
