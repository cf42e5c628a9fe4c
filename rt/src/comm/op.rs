//! The futures of sends and receives: [`SendOp`] and [`RecvOp`].

use std::{
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{Comm, Status, Tag, handle_cache};
use crate::{
    buffer::RecvBuf,
    clock::ClockTime,
    engine::{Engine, EngineCore, SendStart},
    error::{ErrorKind, OpError},
    executor::poll_proceed,
    group::CommRank,
    ops::{MessageStatus, OpFailure, OpInfo, OpTicket},
};

/// A send in flight. The call that made it has already started the send, which proceeds whether or not it is polled.
///
/// It completes when the operation no longer needs the buffer, and returns the buffer. Dropping it detaches it: the
/// message is still sent, and the buffer is dropped afterwards.
#[must_use = "await it, or call `detach`"]
pub struct SendOp<B> {
    /// `None` after completion.
    state: Option<SendOpState<B>>,
}

/// A posted receive. It proceeds whether or not it is polled.
///
/// Dropping it cancels the receive. A message that it has already matched returns to its place in the queue, so
/// `select!` and time limits lose no message.
#[must_use = "await it; dropping it takes the receive back"]
pub struct RecvOp<B> {
    /// `None` after completion.
    state: Option<MessageOpState<B, Box<(B, Status)>>>,
}

// The type is small, because futures are moved around. Failures are rare, so they are boxed, as are receives from no rank.
pub(super) enum MessageOpState<B, Done> {
    Done(Done),
    Failed(Box<OpError<B>>),
    InFlight(MessageFlight<B>),
}

/// State of a send.
pub(super) type SendOpState<B> = MessageOpState<B, B>;

/// The part of an operation that its future holds.
pub(super) struct MessageFlight<B> {
    pub(super) ticket: OpTicket<B>,
    pub(super) comm: Comm,
}

/// Result of the part of a poll that is not inlined. It is not the type of the poll itself, so that the compiler keeps the
/// result of a complete operation in registers.
pub(super) type PolledOutOfLine<T, B> = Poll<Result<T, Box<OpError<B>>>>;

/// A message that a receive has got without its bytes.
pub(super) struct StoredArrival {
    pub(super) landed: MessageStatus,
    pub(super) comm: Comm,
}

/// Outcome of a receive that may get a message without its bytes.
pub(super) type InPlaceOutcome<B> = Result<(B, Status, Option<StoredArrival>), OpError<B>>;

/// Outcome of a receive: the buffer, information about the message in it, and the communicator.
type RecvOutcome<B> = Result<(B, MessageStatus, Comm), Box<OpError<B>>>;

impl<B> SendOpState<B> {
    pub(super) fn new(comm: &Comm, info: OpInfo, started: SendStart<B>) -> Self {
        match started {
            SendStart::Sent(buf) => Self::Done(buf),
            SendStart::Refused(kind, buf) => {
                let error = error_of("send", comm, &info, kind);
                Self::Failed(Box::new(OpError { error, buf }))
            }
            SendStart::InFlight(ticket) => Self::InFlight(MessageFlight::new(comm, ticket)),
        }
    }
}

impl<B> SendOp<B> {
    pub(super) const fn of(state: SendOpState<B>) -> Self {
        Self { state: Some(state) }
    }

    /// Returns a send whose bytes have left, so that the buffer is free.
    #[inline]
    pub(super) const fn sent(buf: B) -> Self {
        Self::of(MessageOpState::Done(buf))
    }

    pub(super) fn failed(error: OpError<B>) -> Self {
        Self::of(MessageOpState::Failed(Box::new(error)))
    }

    /// Lets the send complete in the background. Same as dropping it.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// world.send(other, 0, vec![0.5; 1000]).detach(); // the program does not need the vector again
    /// let (theirs, _) = world.recv::<f64>(other, 0).await?;
    /// assert_eq!(theirs.len(), 1000);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn detach(self) {}

    /// Returns true if the call that made the send could not start it.
    pub(super) fn failed_at_once(&self) -> bool {
        matches!(self.state, Some(MessageOpState::Failed(_)))
    }

    /// Returns true if awaiting this would not wait.
    pub fn is_done(&self) -> bool {
        match &self.state {
            Some(MessageOpState::InFlight(flight)) => flight.is_done(),
            _ => true,
        }
    }

    /// Gives up after `limit`. The error is then `TimedOut` and carries the buffer.
    ///
    /// A message that the receiver has begun to take completes instead. A rendezvous offer must be withdrawn in
    /// agreement with the receiver, so the future may take a little longer than `limit`. If the receiver is in `inline`
    /// mode, it takes as long as the receiver computes.
    pub fn timeout(self, limit: Duration) -> Self {
        if let Some(MessageOpState::InFlight(flight)) = &self.state {
            flight.set_timer(limit);
        }
        self
    }
}

// The type is not bound to `SendBuf`: the call that gets the buffer reports a wrong buffer type, so each `await` need not
// report it again.
impl<B: Send + 'static> Future for SendOp<B> {
    type Output = Result<B, OpError<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(poll_proceed(cx));
        match self.state.take() {
            Some(MessageOpState::Done(buf)) => Poll::Ready(Ok(buf)),
            unsent => {
                self.state = unsent;
                let sent = ready!(self.poll_unsent(cx));
                Poll::Ready(sent.map_err(|failed| *failed))
            }
        }
    }
}

impl<B: Send + 'static> SendOp<B> {
    /// Polls a send that was in flight when it was made, or that failed.
    #[inline(never)]
    fn poll_unsent(&mut self, cx: &Context<'_>) -> PolledOutOfLine<B, B> {
        if let Some(MessageOpState::InFlight(flight)) = &self.state {
            let ticket = &flight.ticket;
            let shared = flight.comm.shared();
            let (outcome, buf) = ready!(shared.poll(ticket.op, cx.waker(), |core| {
                core.p2p.common.take_send(ticket)
            }));
            let Some(MessageOpState::InFlight(flight)) = self.state.take() else {
                unreachable!("just seen")
            };
            return Poll::Ready(match outcome {
                Ok(_) => {
                    handle_cache::cache_handle(flight.comm);
                    Ok(buf)
                }
                Err(failure) => Err(Box::new(failed("send", &flight.comm, *failure, buf))),
            });
        }
        match self.state.take() {
            Some(MessageOpState::Failed(error)) => Poll::Ready(Err(error)),
            _ => panic!("a send was polled after it had completed"),
        }
    }
}

impl<B> SendOp<B> {
    #[inline(never)]
    fn drop_state(&mut self) {
        if let Some(MessageOpState::InFlight(flight)) = self.state.take() {
            flight.detach();
        }
    }
}

impl<B> Drop for SendOp<B> {
    #[inline(always)]
    fn drop(&mut self) {
        // One comparison is enough for a future that has completed: the compiler knows then that there is nothing to drop.
        if self.state.is_some() {
            self.drop_state();
        }
    }
}

impl<B> RecvOp<B> {
    /// Returns true if awaiting this would not wait.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let inbox = world.recv::<u32>(other, 0);
    /// world.send(other, 0, [5_u32]).await?;
    /// // ... compute ...
    /// if !inbox.is_done() {
    ///     println!("the computation was too short to hide the message");
    /// }
    /// assert_eq!(inbox.await?.0, [5]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn is_done(&self) -> bool {
        match &self.state {
            Some(MessageOpState::InFlight(flight)) => flight.is_done(),
            _ => true,
        }
    }

    /// Gives up after `limit`. The error is then `TimedOut` and carries the buffer. A message that is already being
    /// written to the buffer completes instead.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # use ripstop_rt::ErrorKind;
    /// # use std::time::Duration;
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let inbox = world.recv_into(1 - world.rank(), 0, [0.0; 8]).timeout(Duration::from_millis(10));
    /// let failure = inbox.await.expect_err("no rank sends this");
    /// assert!(matches!(failure.error.kind, ErrorKind::TimedOut));
    /// let room: [f64; 8] = failure.buf; // for the next receive
    /// # drop(room);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn timeout(self, limit: Duration) -> Self {
        if let Some(MessageOpState::InFlight(flight)) = &self.state {
            flight.set_timer(limit);
        }
        self
    }

    /// Gives up at this time, as after a [`timeout`](Self::timeout).
    pub(super) fn give_up_at(&self, deadline: ClockTime) {
        if let Some(MessageOpState::InFlight(flight)) = &self.state {
            flight.set_deadline(deadline);
        }
    }

    /// Returns the time after `limit`, unless the receive has ended.
    pub(super) fn deadline_after(&self, limit: Duration) -> Option<ClockTime> {
        match &self.state {
            Some(MessageOpState::InFlight(flight)) => {
                Some(flight.comm.shared().clock.now() + limit)
            }
            _ => None,
        }
    }
}

impl<B: RecvBuf> RecvOp<B> {
    pub(super) fn new(comm: &Comm, ticket: OpTicket<B>) -> Self {
        Self {
            state: Some(MessageOpState::InFlight(MessageFlight::new(comm, ticket))),
        }
    }

    pub(crate) fn failed(error: OpError<B>) -> Self {
        Self {
            state: Some(MessageOpState::Failed(Box::new(error))),
        }
    }

    /// Returns a receive from no rank: it has completed without elements, and the buffer is as it was.
    #[cold]
    pub(super) fn from_no_rank(buf: B, tag: Tag) -> Self {
        let status = Status {
            source: Status::NO_RANK,
            tag: match tag {
                Tag::Any => 0,
                Tag::Is(tag) => tag,
            },
            len: 0,
        };
        Self {
            state: Some(MessageOpState::Done(Box::new((buf, status)))),
        }
    }

    /// Takes a message that has arrived, if the receive needs nothing else.
    #[inline(always)]
    pub(super) fn take_arrived(&mut self) -> Option<(B, Status)> {
        let Some(MessageOpState::InFlight(flight)) = &self.state else {
            return None;
        };
        let shared = flight.comm.shared();
        let take = |core: &mut EngineCore| core.p2p.common.ops.take_landed(&flight.ticket);
        let (landed, buf) = shared.try_take(take)?;
        Some(self.received(&landed, buf))
    }

    /// Makes turns if the engine knows of this receive only as the expected one. Returns `Some` of the message, or of `None` if
    /// it has not come. Does nothing, and returns `None`, for another receive.
    #[inline(always)]
    fn take_expected(&mut self) -> Option<Option<(B, Status)>> {
        let Some(MessageOpState::InFlight(flight)) = &self.state else {
            return None;
        };
        let (shared, ticket) = (flight.comm.shared(), &flight.ticket);
        let take = |core: &mut EngineCore| core.p2p.common.ops.take_landed(ticket);
        let taken = shared.take_expected(ticket.op, take)?;
        Some(taken.map(|(landed, buf)| self.received(&landed, buf)))
    }

    /// Returns the message of a receive whose operation is complete.
    #[inline(always)]
    fn received(&mut self, landed: &MessageStatus, buf: B) -> (B, Status) {
        let flight = match self.state.take() {
            Some(MessageOpState::InFlight(flight)) => flight,
            other => unexpected_state(other),
        };
        let status = status_of::<B::Elem>(&flight.comm, landed);
        handle_cache::cache_handle(flight.comm);
        (buf, status)
    }

    /// Polls for the received message and its communicator. Makes no turns if that `has_turned`.
    fn poll_landed(&mut self, cx: &Context<'_>, has_turned: bool) -> Poll<RecvOutcome<B>> {
        let Some(MessageOpState::InFlight(flight)) = &self.state else {
            return Poll::Ready(Err(self.take_failure()));
        };
        let ticket = &flight.ticket;
        let shared = flight.comm.shared();
        let take = |core: &mut EngineCore| core.p2p.common.take_recv(ticket);
        let (outcome, buf) = ready!(shared.poll_after(has_turned, ticket.op, cx.waker(), take));
        let Some(MessageOpState::InFlight(flight)) = self.state.take() else {
            unreachable!("just seen")
        };
        Poll::Ready(match outcome {
            Ok(landed) => Ok((buf, landed, flight.comm)),
            Err(failure) => Err(Box::new(failed("recv", &flight.comm, *failure, buf))),
        })
    }

    /// Polls a receive that waits, or was never in flight: its arguments were wrong, or it names no rank.
    #[inline(never)]
    pub(super) fn poll_unreceived(&mut self, cx: &Context<'_>) -> PolledOutOfLine<(B, Status), B> {
        if matches!(self.state, Some(MessageOpState::Done(_)))
            && let Some(MessageOpState::Done(done)) = self.state.take()
        {
            return Poll::Ready(Ok(*done));
        }
        let has_turned = match self.take_expected() {
            Some(Some(received)) => return Poll::Ready(Ok(received)),
            turned => turned.is_some(),
        };
        let landed = ready!(self.poll_landed(cx, has_turned));
        Poll::Ready(landed.map(|(buf, landed, comm)| {
            let status = status_of::<B::Elem>(&comm, &landed);
            handle_cache::cache_handle(comm);
            (buf, status)
        }))
    }

    /// Polls like [`poll`](Future::poll), for a receive that may get a message without its bytes. Its description and its
    /// communicator are returned then.
    pub(super) fn poll_in_place(&mut self, cx: &mut Context<'_>) -> Poll<InPlaceOutcome<B>> {
        if !matches!(self.state, Some(MessageOpState::InFlight(_))) {
            let done = ready!(Pin::new(self).poll(cx));
            return Poll::Ready(done.map(|(buf, status)| (buf, status, None)));
        }
        ready!(poll_proceed(cx));
        let landed = ready!(self.poll_landed(cx, false));
        Poll::Ready(
            landed
                .map(|(buf, landed, comm)| {
                    let status = status_of::<B::Elem>(&comm, &landed);
                    let stored = landed
                        .stored
                        .is_some()
                        .then_some(StoredArrival { landed, comm });
                    (buf, status, stored)
                })
                .map_err(|failed| *failed),
        )
    }

    fn take_failure(&mut self) -> Box<OpError<B>> {
        match self.state.take() {
            Some(MessageOpState::Failed(error)) => error,
            _ => panic!("a receive was polled after it had completed"),
        }
    }

    /// Waits for the message and returns its description without the bytes, for a probe.
    pub(super) async fn landed(mut self) -> Result<MessageStatus, OpError<B>> {
        let landed = poll_fn(|cx| {
            ready!(poll_proceed(cx));
            self.poll_landed(cx, false)
        });
        let (_, landed, _) = landed.await.map_err(|failed| *failed)?;
        Ok(landed)
    }

    /// Cancels the receive and returns the buffer.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let inbox = world.recv_into(1 - world.rank(), 0, [0.0; 8]);
    /// match inbox.cancel().await {
    ///     Ok(room) => assert_eq!(room, [0.0; 8]), // taken back
    ///     Err((message, status)) => println!("rank {} was faster: {message:?}", status.source),
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// This is not a failure: if the message arrived first, returns the buffer with the message in it.
    pub async fn cancel(self) -> Result<B, (B, Status)> {
        self.unpost();
        match self.await {
            Ok((buf, status)) => Err((buf, status)),
            Err(error) => Ok(error.buf),
        }
    }

    /// Takes the receive back if no message has come: it then ends in `Cancelled`.
    pub(super) fn unpost(&self) {
        if let Some(MessageOpState::InFlight(flight)) = &self.state {
            flight.unpost();
        }
    }
}

impl<B: RecvBuf> Future for RecvOp<B> {
    type Output = Result<(B, Status), OpError<B>>;

    #[inline]
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

impl<B> RecvOp<B> {
    #[inline(never)]
    fn drop_state(&mut self) {
        if let Some(MessageOpState::InFlight(flight)) = self.state.take() {
            flight.take_back();
        }
    }
}

impl<B> Drop for RecvOp<B> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.state.is_some() {
            self.drop_state();
        }
    }
}

// The buffer is moved, never pinned.
impl<B> Unpin for SendOp<B> {}
impl<B> Unpin for RecvOp<B> {}

impl<B> MessageFlight<B> {
    #[inline]
    pub(super) fn new(comm: &Comm, ticket: OpTicket<B>) -> Self {
        let comm = handle_cache::clone_handle(comm);
        Self { ticket, comm }
    }

    #[cold]
    fn detach(&self) {
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.p2p.common.detach(self.ticket.op));
    }

    /// Takes a receive back if no message has come: it then ends in `Cancelled`.
    pub(super) fn unpost(&self) {
        let op = self.ticket.op;
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.p2p.unpost(op, ErrorKind::Cancelled));
    }

    #[cold]
    pub(super) fn take_back(&self) {
        self.comm.shared().with(|engine| {
            engine.core.p2p.drop_recv(self.ticket.op);
            engine.flush();
        });
    }

    pub(super) fn is_done(&self) -> bool {
        let shared = self.comm.shared();
        shared.test_condition(|engine| engine.core.p2p.common.is_done(self.ticket.op))
    }

    pub(super) fn set_timer(&self, limit: Duration) {
        self.set_deadline(self.comm.shared().clock.now() + limit);
    }

    fn set_deadline(&self, deadline: ClockTime) {
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.p2p.common.set_timer(deadline, self.ticket.op));
        shared.wake_seat_sleeper();
    }
}

/// Panics for a state that the caller has just ruled out. Forgets the state, because to drop it here the compiler would keep it
/// in memory on the usual way, too.
#[inline(always)]
pub(super) fn unexpected_state<T>(state: T) -> ! {
    mem::forget(state);
    unreachable!("just seen")
}

#[inline(always)]
pub(super) fn status_of<T>(comm: &Comm, landed: &MessageStatus) -> Status {
    let source = comm.group().local_of(landed.source);
    let len = landed.bytes.checked_div(size_of::<T>()).unwrap_or(0);
    Status {
        source: source.map_or(0, |rank| rank.0),
        tag: landed.tag,
        len,
    }
}

pub(super) fn failed<B>(op: &'static str, comm: &Comm, failure: OpFailure, buf: B) -> OpError<B> {
    let error = error_of(op, comm, &failure.info, failure.kind);
    OpError { error, buf }
}

pub(super) fn error_of(
    op: &'static str,
    comm: &Comm,
    info: &OpInfo,
    kind: ErrorKind,
) -> crate::Error {
    let peer = info.peer.and_then(|world| comm.group().local_of(world));
    let finished = matches!(kind, ErrorKind::PeerFinished { .. });
    let mut error = comm.error(op, kind, peer, info.tag).called_at(info.at);
    if let Some(world) = info.peer.filter(|_| finished && op != "send") {
        let rank = peer.unwrap_or(CommRank(0));
        let waiting =
            |engine: &mut Engine| engine.core.p2p.tables().waiting_from(world, info.ctx, rank);
        if let Some(sentence) = comm.shared().with(waiting) {
            error.note = Some(sentence);
        }
    }
    error
}

impl<B> fmt::Debug for SendOp<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendOp")
            .field("done", &self.is_done())
            .finish()
    }
}

impl<B> fmt::Debug for RecvOp<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvOp")
            .field("done", &self.is_done())
            .finish()
    }
}
