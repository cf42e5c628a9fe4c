//! Start of sends.

use super::{Engine, SendStart};
use crate::{buffer::SendBuf, error::ErrorKind, ops::OpInfo, trace::TracedKind};

impl Engine {
    /// Starts a send. A short message that meets no obstacle leaves immediately, without an operation.
    #[inline]
    pub(crate) fn send<B: SendBuf>(&mut self, info: OpInfo, buf: B) -> SendStart<B> {
        let to = info.peer.expect("a send has a peer");
        if let Some(kind) = self.core.p2p.common.unsendable(info.ctx, to) {
            return SendStart::Refused(kind, buf);
        }
        let bytes = bytemuck::cast_slice(buf.elems());
        let begin = self.core.p2p.common.trace_time();
        if self.transmitter().send_now(&info, to, bytes) {
            self.core.p2p.common.trace_send(&info, bytes.len(), begin);
            self.note_sent(&info);
            return SendStart::Sent(buf);
        }
        let ticket = self.core.p2p.common.ops.hold_send(info, buf);
        self.core.p2p.common.trace_op(TracedKind::Send, ticket.op);
        self.transmitter().queue(ticket.op, to);
        self.flush();
        SendStart::InFlight(ticket)
    }

    /// Records that a send has left at its call.
    #[inline(always)]
    pub(super) fn note_sent(&mut self, info: &OpInfo) {
        if let Some(to) = info.peer {
            self.core.p2p.common.ops.note_sent(to);
        }
    }

    /// Sends borrowed bytes, if they can leave immediately.
    pub(crate) fn try_send(&mut self, info: &OpInfo, bytes: &[u8]) -> Result<bool, ErrorKind> {
        let sent = self.try_to_send(info, bytes)?;
        if sent {
            self.note_sent(info);
        }
        Ok(sent)
    }

    fn try_to_send(&mut self, info: &OpInfo, bytes: &[u8]) -> Result<bool, ErrorKind> {
        if self.core.p2p.common.unusual {
            return self.try_send_unusual(info, bytes);
        }
        let to = info.peer.expect("a send has a peer");
        match self.core.p2p.common.unreachable(to) {
            Some(kind) => Err(kind),
            None => Ok(self.transmitter().send_now(info, to, bytes)),
        }
    }

    /// Does the same as [`try_send`](Self::try_send) where communicators are revoked, or a trace is recorded.
    #[cold]
    fn try_send_unusual(&mut self, info: &OpInfo, bytes: &[u8]) -> Result<bool, ErrorKind> {
        let to = info.peer.expect("a send has a peer");
        if let Some(kind) = self.core.p2p.common.unsendable(info.ctx, to) {
            return Err(kind);
        }
        let begin = self.core.p2p.common.trace_time();
        let sent = self.transmitter().send_now(info, to, bytes);
        if sent {
            self.core.p2p.common.trace_send(info, bytes.len(), begin);
        }
        Ok(sent)
    }
}
