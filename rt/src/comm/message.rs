//! Sending and receiving.

use std::panic::Location;

use super::{
    Channel, Comm, Matched, Messages, RecvOp, SendCopyOp, SendOp, Source, Tag, op::error_of, probe,
};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    engine::Started,
    error::{OpError, Result},
    ops::About,
};

impl Comm {
    /// Sends the elements of `buf` to rank `to`; the buffer comes back when it is free again.
    ///
    /// The message is on its way when this returns. Messages from one rank to another on one communicator are matched in the
    /// order in which they were sent. O(1).
    ///
    /// # Errors
    /// The future's: `to` out of range, the peer failed or finished, or it is this rank, which waits for itself. All carry the
    /// buffer.
    #[inline]
    #[track_caller]
    pub fn send<B: SendBuf>(&self, to: usize, tag: u32, buf: B) -> SendOp<B> {
        self.send_on(self.id(), to, tag, buf, false)
    }

    /// As [`send`](Self::send), but completes only when the message has been received.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn send_synchronous<B: SendBuf>(&self, to: usize, tag: u32, buf: B) -> SendOp<B> {
        self.send_on(self.id(), to, tag, buf, true)
    }

    /// Receives into `buf`, from its start. The status says how many elements came.
    ///
    /// A vector with elements has room for as many; an empty one for its capacity.
    ///
    /// # Errors
    /// The future's: `from` out of range, a message that is too long or of another type (it stays in the queue), the peer
    /// failed or finished, or this rank waits for itself: all other ranks have finished and nothing of this rank goes on. All
    /// carry the buffer.
    #[inline]
    #[track_caller]
    pub fn recv_into<B: RecvBuf>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        buf: B,
    ) -> RecvOp<B> {
        self.recv_on(self.id(), from.into(), tag.into(), buf)
    }

    /// Receives into a new vector that is as long as the message.
    ///
    /// # Errors
    /// As [`recv_into`](Self::recv_into), but no message is too long while there is memory for it.
    #[track_caller]
    pub fn recv<T: Wire>(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> RecvOp<Vec<T>> {
        self.start_growing(self.about_recv::<T>(self.id(), from.into(), tag.into()))
    }

    /// A receive into a new vector.
    pub(super) fn start_growing<T: Wire>(&self, about: Result<About>) -> RecvOp<Vec<T>> {
        let about = match about {
            Ok(about) => about,
            Err(error) => {
                return RecvOp::failed(OpError {
                    error,
                    buf: Vec::new(),
                });
            }
        };
        let ticket = self.shared().with(|engine| {
            let ticket = engine.core.ops.hold_growing::<T>(about);
            engine.post(ticket.op);
            ticket
        });
        RecvOp::new(self, ticket)
    }

    /// Sends a copy of `data`; the slice is free when this returns. A short message only waits for room, and takes no memory
    /// where there is some. One that is longer than what is sent without being asked for waits until it is received, as with
    /// [`send`](Self::send): two ranks that both send such a one, and await that, before they receive wait for each other.
    ///
    /// The message is on its way when this returns.
    ///
    /// # Errors
    /// As [`send`](Self::send), without a buffer.
    #[track_caller]
    pub fn send_copy<T: Wire>(&self, to: usize, tag: u32, data: &[T]) -> SendCopyOp<T> {
        match self.try_send_copy(to, tag, data) {
            Ok(true) => SendCopyOp::sent(),
            Ok(false) => SendCopyOp::under_way(self.send(to, tag, data.to_vec())),
            Err(error) => SendCopyOp::failed(error),
        }
    }

    /// As [`send_copy`](Self::send_copy), but never waits: `false` when the message cannot leave at once, because there is no
    /// room now or because it is longer than what is sent without being asked for.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn try_send_copy<T: Wire>(&self, to: usize, tag: u32, data: &[T]) -> Result<bool> {
        let about = self.about_send::<T>(self.id(), to, tag, false)?;
        let sent = self
            .shared()
            .with(|engine| engine.try_send(&about, bytemuck::cast_slice(data)));
        sent.map_err(|kind| error_of("send", self, &about, kind))
    }

    /// Every message that matches, as a stream that never ends by itself. The next receive is posted when the last message
    /// is taken.
    #[track_caller]
    pub fn messages<T: Wire>(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Messages<T> {
        Messages::new(self, from.into(), tag.into())
    }

    /// Waits for a message and takes it out of the queue without receiving it: nobody else can get it meanwhile.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    #[track_caller]
    pub fn probe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> impl Future<Output = Result<Matched>> + Send {
        let about = self.about_recv::<u8>(self.id(), from.into(), tag.into());
        probe::probe(self, about)
    }

    /// As [`probe`](Self::probe), but takes only a message that has come already.
    ///
    /// # Errors
    /// As [`probe`](Self::probe), when the rank that was named will send no more.
    #[track_caller]
    pub fn try_probe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Matched>> {
        probe::try_probe(self, from.into(), tag.into())
    }

    /// A fixed peer and tag, checked once, for messages that are exchanged again and again.
    ///
    /// # Errors
    /// `peer` out of range.
    #[track_caller]
    pub fn channel<T: Wire>(&self, peer: usize, tag: u32) -> Result<Channel<T>> {
        Channel::new(self, peer, tag)
    }

    #[inline]
    #[track_caller]
    pub(super) fn send_on<B: SendBuf>(
        &self,
        ctx: u32,
        to: usize,
        tag: u32,
        buf: B,
        synchronous: bool,
    ) -> SendOp<B> {
        match self.about_send::<B::Elem>(ctx, to, tag, synchronous) {
            Ok(about) => self.start_send(about, buf),
            Err(error) => SendOp::failed(OpError { error, buf }),
        }
    }

    #[inline]
    pub(super) fn start_send<B: SendBuf>(&self, about: About, buf: B) -> SendOp<B> {
        let started: Started<B> = self.shared().with(|engine| engine.send(about, buf));
        if let Started::Sent(buf) = &started
            && size_of_val(buf.elems()) >= LONG
        {
            self.shared().turn_between_copies();
        }
        SendOp::new(self, about, started)
    }

    #[inline]
    #[track_caller]
    pub(super) fn recv_on<B: RecvBuf>(
        &self,
        ctx: u32,
        from: Source,
        tag: Tag,
        buf: B,
    ) -> RecvOp<B> {
        match self.about_recv::<B::Elem>(ctx, from, tag) {
            Ok(about) => self.start_recv(about, buf),
            Err(error) => RecvOp::failed(OpError { error, buf }),
        }
    }

    #[inline]
    pub(super) fn start_recv<B: RecvBuf>(&self, about: About, buf: B) -> RecvOp<B> {
        let ticket = self.shared().with(|engine| engine.recv(&about, buf));
        RecvOp::new(self, ticket)
    }

    #[inline]
    #[track_caller]
    pub(super) fn about_send<T: Wire>(
        &self,
        ctx: u32,
        to: usize,
        tag: u32,
        synchronous: bool,
    ) -> Result<About> {
        let at = Location::caller();
        let peer = self.peer("send", "to", to);
        let peer = peer.map_err(|error| error.called_at(at))?;
        Ok(About {
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

    #[inline]
    #[track_caller]
    pub(super) fn about_recv<T: Wire>(&self, ctx: u32, from: Source, tag: Tag) -> Result<About> {
        let at = Location::caller();
        let named = |rank| self.peer("recv", "from", rank);
        let peer = match from {
            Source::Any => None,
            Source::Rank(rank) => Some(named(rank).map_err(|error| error.called_at(at))?),
        };
        let tag = match tag {
            Tag::Any => None,
            Tag::Is(tag) => Some(tag),
        };
        Ok(About {
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

/// Bytes of a message that takes longer to copy than a turn takes, many times.
const LONG: usize = 4096;
