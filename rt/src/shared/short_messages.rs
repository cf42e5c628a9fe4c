//! Starts and ends of messages, with one lock and one check where nothing unusual is known (rt/src/engine/calm.rs).

use std::panic::Location;

use super::RuntimeShared;
use crate::{
    buffer::RecvBuf,
    engine::{Engine, EngineCore},
    error::ErrorKind,
    lock::SpinGuard,
    ops::{ChannelInfo, ChannelNumber, OpInfo, OpTicket, PlacedBytes},
    proto::{matching::MessageEnvelope, wire::OpId},
};

impl RuntimeShared {
    /// Creates a receive and posts it.
    #[inline(always)]
    pub(crate) fn start_recv<B: RecvBuf>(
        &self,
        info: &OpInfo,
        at: &'static Location<'static>,
        buf: B,
    ) -> OpTicket<B> {
        self.start_recv_locked(self.engine.lock(), info, at, buf)
    }

    /// Creates a receive of a channel whose message, of at most `len` bytes, comes to a place.
    ///
    /// # Errors
    /// This is not a failure: if that is not possible now, returns the locked engine for a receive that owns its buffer.
    #[inline(always)]
    pub(crate) fn start_recv_in_place(
        &self,
        channel: &ChannelInfo,
        at: &'static Location<'static>,
        len: usize,
    ) -> Result<OpTicket<PlacedBytes>, SpinGuard<'_, Engine>> {
        let mut engine = self.engine.lock();
        engine.expect_in_place(channel, at, len).ok_or(engine)
    }

    /// Sends bytes if they can leave immediately. Returns false if not, or if the send fails.
    #[inline(always)]
    pub(crate) fn send_at_once(&self, info: &OpInfo, bytes: &[u8]) -> bool {
        let mut engine = self.engine.lock();
        engine.send_expected(info, bytes) || self.send_unexpected(engine, info, bytes)
    }

    /// Gives bytes of a channel of this rank to itself to the expected receive, if that is of the same channel. Returns false,
    /// and sends nothing, if there is no such receive or it cannot take them.
    #[inline(always)]
    pub(crate) fn send_to_place(
        &self,
        channel: ChannelNumber,
        own: &MessageEnvelope,
        bytes: &[u8],
    ) -> bool {
        self.engine.lock().send_to_place(channel, own, bytes)
    }

    /// Does the same as [`send_at_once`](Self::send_at_once) with a message of a channel for which there is no place.
    #[inline(never)]
    pub(crate) fn send_by_channel(&self, channel: &ChannelInfo, bytes: &[u8]) -> bool {
        let mut engine = self.engine.lock();
        channel.own.is_some() && engine.send_expected(&channel.op, bytes)
            || matches!(self.send_other(engine, &channel.op, bytes), Ok(true))
    }

    /// Sends bytes, if they can leave immediately.
    #[inline(always)]
    pub(crate) fn try_send(&self, info: &OpInfo, bytes: &[u8]) -> Result<bool, ErrorKind> {
        let mut engine = self.engine.lock();
        if engine.send_expected(info, bytes) {
            return Ok(true);
        }
        self.try_send_unexpected(engine, info, bytes)
    }

    /// Returns what `take` takes of an operation that is complete. It must leave nothing to do.
    #[inline(always)]
    pub(crate) fn try_take<R>(&self, take: impl FnOnce(&mut EngineCore) -> Option<R>) -> Option<R> {
        take(&mut self.engine.lock().core)
    }

    #[inline(always)]
    fn start_recv_locked<B: RecvBuf>(
        &self,
        mut engine: SpinGuard<'_, Engine>,
        info: &OpInfo,
        at: &'static Location<'static>,
        buf: B,
    ) -> OpTicket<B> {
        let (ticket, is_posted) = engine.recv_calmly(info, at, buf);
        if !is_posted {
            self.post(engine, ticket.op);
        }
        ticket
    }

    /// Creates a receive of a channel that owns its buffer, and posts it.
    #[inline(never)]
    pub(crate) fn start_other_recv<B: RecvBuf>(
        &self,
        engine: SpinGuard<'_, Engine>,
        info: &OpInfo,
        at: &'static Location<'static>,
        buf: B,
    ) -> OpTicket<B> {
        self.start_recv_locked(engine, info, at, buf)
    }

    /// Does the same as [`send_at_once`](Self::send_at_once) where the expected receive does not take the message.
    #[inline(never)]
    fn send_unexpected(&self, engine: SpinGuard<'_, Engine>, info: &OpInfo, bytes: &[u8]) -> bool {
        matches!(self.send_other(engine, info, bytes), Ok(true))
    }

    /// Does the same as [`try_send`](Self::try_send) where the expected receive does not take the message.
    #[inline(never)]
    fn try_send_unexpected(
        &self,
        engine: SpinGuard<'_, Engine>,
        info: &OpInfo,
        bytes: &[u8],
    ) -> Result<bool, ErrorKind> {
        self.send_other(engine, info, bytes)
    }

    /// Sends bytes that the expected receive does not take, if they can leave immediately.
    #[inline(always)]
    fn send_other(
        &self,
        mut engine: SpinGuard<'_, Engine>,
        info: &OpInfo,
        bytes: &[u8],
    ) -> Result<bool, ErrorKind> {
        let is_sent = engine.send_calmly(info, bytes);
        self.finish(engine);
        if is_sent {
            return Ok(true);
        }
        self.with(|engine| engine.try_send(info, bytes))
    }

    /// Posts a receive that already owns its buffer.
    #[inline(never)]
    pub(super) fn post(&self, mut engine: SpinGuard<'_, Engine>, op: OpId) {
        engine.disturb();
        engine.post(op);
        let needs_wakeup = engine.needs_wakeup(|| self.clock.now());
        self.finish(engine);
        if needs_wakeup {
            self.wake_seat_sleeper();
        }
    }
}
