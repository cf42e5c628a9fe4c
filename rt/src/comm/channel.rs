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
    /// What sends and receives have in common. Has no peer if the channel is to no rank.
    info: OpInfo,
    elem: PhantomData<fn() -> T>,
}

impl<T: Wire> Channel<T> {
    #[track_caller]
    pub(super) fn new(comm: &Comm, peer: Option<usize>, tag: u32) -> Result<Self> {
        let at = Location::caller();
        if let Some(peer) = peer {
            let known = comm.peer("channel", "peer", peer);
            known.map_err(|error| error.called_at(at))?;
        }
        let source = peer.map_or(Source::Any, Source::Rank);
        let info = comm.recv_info::<T>(comm.id(), source, Tag::Is(tag))?;
        Ok(Self {
            comm: comm.clone(),
            info,
            elem: PhantomData,
        })
    }

    /// Sends like [`Comm::send`].
    #[inline]
    #[track_caller]
    pub fn send<B: SendBuf<Elem = T>>(&self, buf: B) -> SendOp<B> {
        let at = Location::caller();
        if self.info.peer.is_none() {
            return SendOp::sent(buf);
        }
        self.comm.start_send(&self.info, at, buf)
    }

    /// Receives like [`Comm::recv_into`].
    #[inline]
    #[track_caller]
    pub fn recv_into<B: RecvBuf<Elem = T>>(&self, buf: B) -> RecvOp<B> {
        let at = Location::caller();
        if self.info.peer.is_none() {
            return RecvOp::from_no_rank(buf, Tag::Is(self.info.tag.unwrap_or(0)));
        }
        self.comm.start_recv(&self.info, at, buf)
    }
}
