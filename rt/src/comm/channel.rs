//! Channels: messages with a fixed peer and tag.

use std::{marker::PhantomData, panic::Location};

use super::{ChannelRecv, Comm, RecvOp, SendOp, Source, Tag};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire, room},
    error::Result,
    ops::{ChannelInfo, OpInfo},
};

/// One peer, tag and element type, checked once, for messages that are exchanged repeatedly.
///
/// Made by [`Comm::channel`]. Its messages are ordinary messages, so the other rank need not use a channel.
#[derive(Clone, Debug)]
pub struct Channel<T: Wire> {
    comm: Comm,
    /// What sends and receives have in common. Has no peer if the channel is to no rank.
    info: ChannelInfo,
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
            info: ChannelInfo::new(info, peer.unwrap_or(0), comm.shared().place.rank),
            elem: PhantomData,
        })
    }

    /// Sends like [`Comm::send`].
    ///
    /// Output: `Result<B, OpError<B>>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let channel = world.channel::<f64>(1 - world.rank(), 7)?;
    /// let inbox = channel.recv_into([0.0; 2]);
    /// let mut mine = [1.5, 2.5];
    /// mine = channel.send(mine).await?; // free for the next step
    /// assert_eq!(inbox.await?.0, mine);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn send<B: SendBuf<Elem = T>>(&self, buf: B) -> SendOp<B> {
        let at = Location::caller();
        if let Some(own) = &self.info.own {
            let bytes = || bytemuck::cast_slice(buf.elems());
            let shared = self.comm.shared();
            if buf.fault().is_none() && shared.send_to_place(self.info.number, own, bytes()) {
                return SendOp::sent(buf);
            }
        } else if self.info.op.peer.is_none() {
            return SendOp::sent(buf);
        }
        self.comm.start_send(&self.info.op, at, buf, |bytes| {
            self.comm.shared().send_by_channel(&self.info, bytes)
        })
    }

    /// Receives like [`Comm::recv_into`].
    ///
    /// Output: `Result<(B, Status), OpError<B>>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let channel = world.channel::<f64>(1 - world.rank(), 7)?;
    /// let (mut mine, mut ghost) = (world.rank() as f64, 0.0);
    /// for _step in 0..10 {
    ///     let inbox = channel.recv_into(ghost);
    ///     channel.send(mine).await?;
    ///     (ghost, _) = inbox.await?;
    ///     mine = 0.5 * (mine + ghost);
    /// }
    /// assert_eq!(mine, 0.5);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn recv_into<B: RecvBuf<Elem = T>>(&self, mut buf: B) -> ChannelRecv<B> {
        let at = Location::caller();
        let info = &self.info.op;
        if let Some(fault) = buf.fault() {
            if info.peer.is_none() {
                return self.recv_from_no_rank(buf);
            }
            let info = OpInfo { at, ..*info };
            let failed = self.comm.unusable("recv", info, fault, buf);
            return ChannelRecv::posted(RecvOp::failed(failed));
        }
        let shared = self.comm.shared();
        let len = room(&mut buf) * size_of::<T>();
        match shared.start_recv_in_place(&self.info, at, len) {
            Ok(ticket) => ChannelRecv::in_place(&self.comm, ticket, buf),
            Err(engine) if info.peer.is_none() => {
                drop(engine);
                self.recv_from_no_rank(buf)
            }
            Err(engine) => {
                let ticket = shared.start_other_recv(engine, info, at, buf);
                ChannelRecv::posted(RecvOp::new(&self.comm, ticket))
            }
        }
    }

    #[cold]
    fn recv_from_no_rank<B: RecvBuf>(&self, buf: B) -> ChannelRecv<B> {
        let tag = Tag::Is(self.info.op.tag.unwrap_or(0));
        ChannelRecv::posted(RecvOp::from_no_rank(buf, tag))
    }
}
