//! Starts and ends of messages, with one lock and one check where nothing unusual is known (rt/src/engine/calm.rs).

use std::panic::Location;

use super::RuntimeShared;
use crate::{
    buffer::RecvBuf,
    engine::{Engine, EngineCore},
    error::ErrorKind,
    lock::SpinGuard,
    ops::{OpInfo, OpTicket},
    proto::wire::OpId,
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
        let mut engine = self.engine.lock();
        let (ticket, is_posted) = engine.recv_calmly(info, at, buf);
        if !is_posted {
            self.post(engine, ticket.op);
        }
        ticket
    }

    /// Sends bytes, if they can leave immediately.
    #[inline(always)]
    pub(crate) fn try_send(&self, info: &OpInfo, bytes: &[u8]) -> Result<bool, ErrorKind> {
        if self.send_short(info, bytes) {
            return Ok(true);
        }
        self.with(|engine| engine.try_send(info, bytes))
    }

    /// Returns what `take` takes of an operation that is complete. It must leave nothing to do.
    #[inline(always)]
    pub(crate) fn try_take<R>(&self, take: impl FnOnce(&mut EngineCore) -> Option<R>) -> Option<R> {
        take(&mut self.engine.lock().core)
    }

    /// Sends a short message, if nothing unusual is known and the message can leave immediately.
    #[inline(never)]
    fn send_short(&self, info: &OpInfo, bytes: &[u8]) -> bool {
        let mut engine = self.engine.lock();
        let is_sent = engine.send_calmly(info, bytes);
        if is_sent {
            engine.note_sent(info);
        }
        self.finish(engine);
        is_sent
    }

    /// Posts a receive that already owns its buffer.
    #[inline(never)]
    fn post(&self, mut engine: SpinGuard<'_, Engine>, op: OpId) {
        engine.disturb();
        engine.post(op);
        let needs_wakeup = engine.needs_wakeup(|| self.clock.now());
        self.finish(engine);
        if needs_wakeup {
            self.wake_seat_sleeper();
        }
    }
}
