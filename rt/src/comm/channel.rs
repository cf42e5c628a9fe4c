//! Channels: messages with a fixed peer and tag.

use std::{marker::PhantomData, panic::Location};

use super::{Comm, RecvOp, SendOp, Source, Tag};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    error::Result,
    ops::OpInfo,
};

/// One peer, tag and element type, checked once, for messages that are exchanged repeatedly.
///
/// Made by [`Comm::channel`]. Its messages are ordinary messages, so the other rank need not use a channel.
#[derive(Clone, Debug)]
pub struct Channel<T: Wire> {
    comm: Comm,
    send: OpInfo,
    recv: OpInfo,
    elem: PhantomData<fn() -> T>,
}

impl<T: Wire> Channel<T> {
    #[track_caller]
    pub(super) fn new(comm: &Comm, peer: usize, tag: u32) -> Result<Self> {
        let (at, known) = (Location::caller(), comm.peer("channel", "peer", peer));
        known.map_err(|error| error.called_at(at))?;
        let send = comm.send_info::<T>(comm.id(), peer, tag, false)?;
        let recv = comm.recv_info::<T>(comm.id(), Source::Rank(peer), Tag::Is(tag))?;
        Ok(Self {
            comm: comm.clone(),
            send,
            recv,
            elem: PhantomData,
        })
    }

    /// Sends like [`Comm::send`].
    #[inline]
    #[track_caller]
    pub fn send<B: SendBuf<Elem = T>>(&self, buf: B) -> SendOp<B> {
        let at = Location::caller();
        self.comm.start_send(OpInfo { at, ..self.send }, buf)
    }

    /// Receives like [`Comm::recv_into`].
    #[inline]
    #[track_caller]
    pub fn recv_into<B: RecvBuf<Elem = T>>(&self, buf: B) -> RecvOp<B> {
        let at = Location::caller();
        self.comm.start_recv(OpInfo { at, ..self.recv }, buf)
    }
}
