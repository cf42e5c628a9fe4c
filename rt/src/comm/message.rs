//! Sends, receives and probes: the point-to-point methods of [`Comm`].

use std::panic::Location;

use super::{
    Channel, Comm, Matched, Messages, RecvOp, SendCopyOp, SendOp, Source, Tag,
    op::{SendOpState, error_of},
    probe,
};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    engine::SendStart,
    error::{Error, ErrorKind, OpError, Result},
    ops::OpInfo,
};

impl Comm {
    /// Sends the elements of `buf` to rank `to`. The future returns the buffer when the operation no longer needs it.
    ///
    /// The message is already in flight when this call returns. Messages from one rank to another on one communicator
    /// are matched in the order in which they were sent. O(1).
    ///
    /// `to` is a rank or an `Option` of one. A send to `None` completes at once: nothing is sent. So the neighbors of
    /// [`Cart::shift`](crate::Cart::shift) need no case for the edge of a grid.
    ///
    /// Output: `Result<B, OpError<B>>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let inbox = world.recv::<f64>(0, 7);
    /// let field = world.send(0, 7, vec![0.5; 3]).await?;
    /// assert_eq!(inbox.await?.0, field);
    ///
    /// let unsent = world.send(None, 7, field).await?;
    /// assert_eq!(unsent, [0.5; 3]);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future fails if `to` is out of range, if the peer failed or finished, or if this rank sends to itself and waits
    /// for itself. Every error carries the buffer.
    #[inline]
    #[track_caller]
    pub fn send<B: SendBuf>(&self, to: impl Into<Option<usize>>, tag: u32, buf: B) -> SendOp<B> {
        self.send_on(self.id(), to.into(), tag, buf, false)
    }

    /// Like [`send`](Self::send), but the future completes only when the message has been received.
    ///
    /// Output: `Result<B, OpError<B>>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// if world.rank() == 0 {
    ///     // Rank 1 has taken the order when this completes.
    ///     world.send_synchronous(1, 7, vec![1, 2]).await?;
    /// } else {
    ///     assert_eq!(world.recv::<i32>(0, 7).await?.0, [1, 2]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`send`](Self::send) does.
    #[track_caller]
    pub fn send_synchronous<B: SendBuf>(
        &self,
        to: impl Into<Option<usize>>,
        tag: u32,
        buf: B,
    ) -> SendOp<B> {
        self.send_on(self.id(), to.into(), tag, buf, true)
    }

    /// Receives a message into `buf`, from its start. The status has the number of received elements.
    ///
    /// A non-empty vector has room for its length; an empty one for its capacity.
    ///
    /// `from` is a rank, an `Option` of one, or a [`Source`]. A receive from `None` completes at once: the buffer is as
    /// it was, and the status has 0 elements from [`Status::NO_RANK`](crate::Status::NO_RANK).
    ///
    /// Output: `Result<(B, Status), OpError<B>>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let inbox = world.recv_into(0, 7, [0.0; 4]);
    /// world.send(0, 7, [1.0, 2.0]).await?;
    /// let (values, status) = inbox.await?;
    /// assert_eq!((values, status.len), ([1.0, 2.0, 0.0, 0.0], 2));
    ///
    /// let (ghosts, status) = world.recv_into(None, 7, vec![9.0; 2]).await?;
    /// assert_eq!((ghosts, status.len), (vec![9.0; 2], 0));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future fails if `from` is out of range, if the message is too long or has another type (it stays queued), or if
    /// the peer failed or finished. The future also fails if this rank waits for itself: all other ranks have finished, and
    /// this rank has nothing in flight. Every error carries the buffer.
    #[inline]
    #[track_caller]
    pub fn recv_into<B: RecvBuf>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        buf: B,
    ) -> RecvOp<B> {
        let (from, tag) = (from.into(), tag.into());
        if from == Source::NoRank {
            return RecvOp::from_no_rank(buf, tag);
        }
        self.recv_on(self.id(), from, tag, buf)
    }

    /// Receives a message into a new vector of the length of the message. A receive from `None` gives an empty vector.
    ///
    /// Output: `Result<(Vec<T>, Status), OpError<Vec<T>>>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let inbox = world.recv::<u32>(0, 7);
    /// world.send(0, 7, [1_u32, 2, 3]).await?;
    /// let (values, status) = inbox.await?;
    /// assert_eq!((values.len(), status.source, status.tag), (3, 0, 7));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call fails as [`recv_into`](Self::recv_into) does, but a message is never too long as long as memory can be
    /// allocated for it.
    #[track_caller]
    pub fn recv<T: Wire>(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> RecvOp<Vec<T>> {
        let (from, tag) = (from.into(), tag.into());
        if from == Source::NoRank {
            return RecvOp::from_no_rank(Vec::new(), tag);
        }
        self.start_growing(self.recv_info::<T>(self.id(), from, tag))
    }

    /// Starts a receive into a new vector.
    pub(super) fn start_growing<T: Wire>(&self, info: Result<OpInfo>) -> RecvOp<Vec<T>> {
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                return RecvOp::failed(OpError {
                    error,
                    buf: Vec::new(),
                });
            }
        };
        RecvOp::new(self, self.shared().start_growing_recv(info))
    }

    /// Sends a copy of `data`, which the caller may reuse when this call returns.
    ///
    /// A short message waits only until there is room for it, and takes no memory if there is room now. A message
    /// longer than the eager limit completes only when it has been received, as with [`send`](Self::send). So two ranks
    /// that both send such a message to each other, and await it before they receive, wait forever.
    ///
    /// The message is already in flight when this call returns.
    ///
    /// Output: `Result<()>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let mut row = vec![1, 2, 3, 4];
    /// let sent = world.send_copy(0, 7, &row[1..3]);
    /// row[1] = 9; // the message has what was there before
    /// assert_eq!(world.recv::<i32>(0, 7).await?.0, [2, 3]);
    /// sent.await?;
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call fails as [`send`](Self::send) does, and the error has no buffer.
    #[track_caller]
    pub fn send_copy<T: Wire>(
        &self,
        to: impl Into<Option<usize>>,
        tag: u32,
        data: &[T],
    ) -> SendCopyOp<T> {
        let to = to.into();
        match self.try_send_copy(to, tag, data) {
            Ok(true) => SendCopyOp::sent(),
            Ok(false) => SendCopyOp::in_flight(self.send(to, tag, data.to_vec())),
            Err(error) => SendCopyOp::failed(error),
        }
    }

    /// Like [`send_copy`](Self::send_copy), but never waits. Returns `false` if the message cannot leave immediately,
    /// because there is no room now or because it is longer than the eager limit.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// if world.rank() == 0 {
    ///     let left = world.try_send_copy(1, 7, &[0.5, 1.5])?;
    ///     assert!(left); // if not, the program keeps the values and tries again later
    /// } else {
    ///     assert_eq!(world.recv::<f64>(0, 7).await?.0, [0.5, 1.5]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`send`](Self::send) does.
    #[track_caller]
    pub fn try_send_copy<T: Wire>(
        &self,
        to: impl Into<Option<usize>>,
        tag: u32,
        data: &[T],
    ) -> Result<bool> {
        let Some(to) = to.into() else {
            return Ok(true);
        };
        let info = self.send_info::<T>(self.id(), to, tag, false)?;
        let sent = self.shared().try_send(&info, bytemuck::cast_slice(data));
        sent.map_err(|kind| error_of("send", self, &info, kind))
    }

    /// Returns a stream of all matching messages, which never ends by itself. The stream posts the next receive when
    /// the last message has been taken.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Source};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// if world.rank() == 0 {
    ///     let mut results = world.messages::<u64>(Source::Any, 7);
    ///     let mut sum = 0;
    ///     for _ in 1..world.size() {
    ///         let (values, _status) = results.recv().await?;
    ///         sum += values[0];
    ///     }
    ///     assert_eq!(sum, 30);
    /// } else {
    ///     world.send(0, 7, [10 * world.rank() as u64]).await?;
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    pub fn messages<T: Wire>(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Messages<T> {
        Messages::new(self, from.into(), tag.into())
    }

    /// Waits for a message and takes it out of the queue without receiving it. No other receive can match it meanwhile.
    ///
    /// Output: `Result<Matched>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// if world.rank() == 0 {
    ///     world.send(1, 7, vec![1.0; 5]).await?;
    /// } else {
    ///     let message = world.probe(0, 7).await?;
    ///     let room = vec![0.0; message.bytes() / size_of::<f64>()];
    ///     let (values, status) = message.recv_into(room).await?;
    ///     assert_eq!((values, status.len), (vec![1.0; 5], 5));
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`recv`](Self::recv) does.
    #[track_caller]
    pub fn probe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> impl Future<Output = Result<Matched>> + Send {
        let info = self.recv_info::<u8>(self.id(), from.into(), tag.into());
        probe::probe(self, info)
    }

    /// Like [`probe`](Self::probe), but takes only a message that has already arrived.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Source};
    /// # use std::time::Duration;
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// if world.rank() == 0 {
    ///     world.send(1, 7, [4_u8]).await?;
    /// } else {
    ///     let message = loop {
    ///         match world.try_probe(Source::Any, 7)? {
    ///             Some(message) => break message,
    ///             None => world.sleep(Duration::from_micros(1)).await, // or something useful
    ///         }
    ///     };
    ///     assert_eq!(message.source(), 0);
    ///     assert_eq!(message.recv::<u8>().await?.0, [4]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Fails like [`probe`](Self::probe) if the named rank can send no more messages.
    #[track_caller]
    pub fn try_probe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Matched>> {
        probe::try_probe(self, from.into(), tag.into())
    }

    /// Returns a channel: a fixed peer and tag, checked once, for messages that are exchanged repeatedly.
    ///
    /// Sends and receives on a channel to `None` complete at once, like those of [`send`](Self::send) and
    /// [`recv_into`](Self::recv_into).
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let channel = world.channel::<f64>(0, 7)?;
    /// let mut ghost = 0.0;
    /// for step in [1.0, 2.0] {
    ///     let inbox = channel.recv_into(ghost);
    ///     channel.send(step).await?;
    ///     (ghost, _) = inbox.await?;
    ///     assert_eq!(ghost, step);
    /// }
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if `peer` is out of range.
    #[track_caller]
    pub fn channel<T: Wire>(&self, peer: impl Into<Option<usize>>, tag: u32) -> Result<Channel<T>> {
        Channel::new(self, peer.into(), tag)
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn send_on<B: SendBuf>(
        &self,
        ctx: u32,
        to: Option<usize>,
        tag: u32,
        buf: B,
        synchronous: bool,
    ) -> SendOp<B> {
        let Some(to) = to else {
            return SendOp::sent(buf);
        };
        match self.send_info::<B::Elem>(ctx, to, tag, synchronous) {
            Ok(info) => self.start_send(&info, info.at, buf, |bytes| {
                self.shared().send_at_once(&info, bytes)
            }),
            Err(error) => SendOp::failed(OpError { error, buf }),
        }
    }

    /// Starts a send. `send_at_once` sends the bytes if they can leave at once, and returns true then.
    #[inline(always)]
    pub(super) fn start_send<B: SendBuf>(
        &self,
        info: &OpInfo,
        at: &'static Location<'static>,
        buf: B,
        send_at_once: impl FnOnce(&[u8]) -> bool,
    ) -> SendOp<B> {
        if let Some(fault) = buf.fault() {
            return SendOp::failed(self.unusable("send", OpInfo { at, ..*info }, fault, buf));
        }
        // The buffer is moved only if the message does not leave at once.
        let bytes = bytemuck::cast_slice(buf.elems());
        if !send_at_once(bytes) {
            return SendOp::of(self.start_unsent(OpInfo { at, ..*info }, buf));
        }
        if bytes.len() >= LONG {
            self.shared().turn_between_copies();
        }
        SendOp::sent(buf)
    }

    #[cold]
    pub(super) fn unusable<B>(
        &self,
        op: &'static str,
        info: OpInfo,
        fault: &'static str,
        buf: B,
    ) -> OpError<B> {
        let error = error_of(op, self, &info, ErrorKind::unusable_buffer(fault));
        OpError { error, buf }
    }

    /// Starts a send that could not leave at once, or fails it. Returns the state and not the future, because the compiler then
    /// keeps the future in registers where a message leaves at once.
    #[inline(never)]
    fn start_unsent<B: SendBuf>(&self, info: OpInfo, buf: B) -> SendOpState<B> {
        let started: SendStart<B> = self.shared().with(|engine| engine.send(info, buf));
        SendOpState::new(self, info, started)
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn recv_on<B: RecvBuf>(
        &self,
        ctx: u32,
        from: Source,
        tag: Tag,
        buf: B,
    ) -> RecvOp<B> {
        match self.recv_info::<B::Elem>(ctx, from, tag) {
            Ok(info) => self.start_recv(&info, info.at, buf),
            Err(error) => RecvOp::failed(OpError { error, buf }),
        }
    }

    /// Starts a receive into a usable buffer that may complete without the bytes of a message in a packing block.
    #[track_caller]
    pub(super) fn recv_in_place<B: RecvBuf>(&self, from: Source, tag: Tag, buf: B) -> RecvOp<B> {
        let info = match self.recv_info::<B::Elem>(self.id(), from, tag) {
            Ok(info) => info,
            Err(error) => return RecvOp::failed(OpError { error, buf }),
        };
        let ticket = self.shared().with(|engine| {
            let ticket = engine.core.p2p.common.ops.hold_in_place_recv(info, buf);
            engine.post(ticket.op);
            ticket
        });
        RecvOp::new(self, ticket)
    }

    #[inline(always)]
    pub(super) fn start_recv<B: RecvBuf>(
        &self,
        info: &OpInfo,
        at: &'static Location<'static>,
        buf: B,
    ) -> RecvOp<B> {
        if let Some(fault) = buf.fault() {
            return RecvOp::failed(self.unusable("recv", OpInfo { at, ..*info }, fault, buf));
        }
        let ticket = self.shared().start_recv(info, at, buf);
        RecvOp::new(self, ticket)
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn send_info<T: Wire>(
        &self,
        ctx: u32,
        to: usize,
        tag: u32,
        synchronous: bool,
    ) -> Result<OpInfo> {
        let at = Location::caller();
        let peer = self.peer("send", "to", to);
        let peer = peer.map_err(|error| error.called_at(at))?;
        Ok(OpInfo {
            ctx,
            peer: Some(peer),
            tag: Some(tag),
            sig: T::SIG.0,
            elem: size_of::<T>(),
            synchronous,
            probe: false,
            at,
        })
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn recv_info<T: Wire>(&self, ctx: u32, from: Source, tag: Tag) -> Result<OpInfo> {
        let at = Location::caller();
        let named = |rank| self.peer("recv", "from", rank);
        let peer = match from {
            Source::Any => None,
            Source::Rank(rank) => Some(named(rank).map_err(|error| error.called_at(at))?),
            Source::NoRank => return Err(self.names_no_rank().called_at(at)),
        };
        let tag = match tag {
            Tag::Any => None,
            Tag::Is(tag) => Some(tag),
        };
        Ok(OpInfo {
            ctx,
            peer,
            tag,
            sig: T::SIG.0,
            elem: size_of::<T>(),
            synchronous: false,
            probe: false,
            at,
        })
    }
}

/// How calls that wait for a message refuse to wait for one of no rank.
impl Comm {
    #[cold]
    pub(crate) fn names_no_rank(&self) -> Error {
        let sentence = "`from` names no rank, and only `recv`, `recv_into` and `sendrecv` can receive from none: \
                        leave this call out where there is no neighbor";
        self.error_here("recv", ErrorKind::InvalidArgument(sentence.to_owned()))
    }
}

/// Message length in bytes from which copying takes much longer than a progress turn.
const LONG: usize = 4096;
