//! What is revoked, and which messages of collectives are stored: asked for each message, by all parts.

use super::EngineCommons;
use crate::{
    error::ErrorKind,
    group::WorldRank,
    proto::{collective_id::CollectiveId, matching::MessageEnvelope, wire::RevokeHeader},
};

impl EngineCommons {
    /// Returns true if any communicator is revoked.
    #[inline]
    pub(in crate::engine) fn any_revoked(&self) -> bool {
        self.calls.revocations.any()
    }

    /// Returns the error for messages of this collective, if it is revoked.
    pub(in crate::engine) fn revoked_kind(&self, ctx: u32, tag: Option<u32>) -> Option<ErrorKind> {
        if self.calls.revocations.is_void(ctx) {
            return Some(ErrorKind::Revoked);
        }
        self.calls.revocations.kind(CollectiveId::new(ctx, tag?))
    }

    /// Returns true if nothing unusual is known about this collective and its communicator. Its ranks are not looked at.
    #[inline]
    pub(in crate::engine) fn is_calm_for(&self, id: CollectiveId) -> bool {
        let is_ending = self.closing | self.leaving | self.ended;
        let is_watched = is_ending || self.unusual && self.calls.revocations.is_revoked(id.context);
        !(is_watched || self.calls.early.may_have(id))
    }

    /// Returns the same for a collective of this rank alone, which no message precedes.
    #[inline(always)]
    pub(in crate::engine) fn is_calm_alone(&self, ctx: u32) -> bool {
        let is_ending = self.closing | self.leaving | self.ended;
        !(is_ending | self.unusual) || !is_ending && !self.is_watched_alone(ctx)
    }

    /// Returns true if the communicator was revoked, or the collective belongs into the trace.
    #[cold]
    fn is_watched_alone(&self, ctx: u32) -> bool {
        self.recorders.has_trace() || self.calls.revocations.is_revoked(ctx)
    }

    /// Revokes a context with all its messages. Returns false if it was revoked already.
    pub(in crate::engine) fn make_void(&mut self, ctx: u32) -> bool {
        self.unusual = true;
        self.calls.revocations.make_void(ctx)
    }

    /// Returns true if this context was revoked with all its messages.
    #[inline]
    pub(in crate::engine) fn is_void(&self, ctx: u32) -> bool {
        self.calls.revocations.is_void(ctx)
    }

    /// Records that a stored message has left the store.
    #[inline]
    pub(in crate::engine) fn note_left_store(&mut self, envelope: MessageEnvelope) {
        if !envelope.ctx.is_multiple_of(2) {
            self.calls.early.remove(envelope.collective_id());
        }
    }

    /// Records that a message was put back in the store.
    pub(in crate::engine) fn note_stored(&mut self, envelope: MessageEnvelope, sig: u64) {
        if !envelope.ctx.is_multiple_of(2) {
            self.calls.early.add(envelope.collective_id(), sig);
        }
    }

    /// Returns true if this rank receives no message of this context any more. The context is revoked, or this rank has dropped
    /// the communicator.
    #[inline]
    pub(in crate::engine) fn has_stopped_receiving(&self, ctx: u32) -> bool {
        self.is_void(ctx) || self.has_left(ctx)
    }

    /// Returns true if a message is for a collective of a dropped communicator, and that collective is not in flight.
    pub(in crate::engine) fn is_left(&self, envelope: &MessageEnvelope) -> bool {
        let running = || self.calls.running(envelope.collective_id());
        self.has_left(envelope.ctx & !1) && running().is_none()
    }

    /// Notifies a peer of the first revoked collective of a context, or that the whole communicator is revoked.
    pub(in crate::engine) fn tell_revoked(&mut self, rank: WorldRank, ctx: u32) {
        if self.is_void(ctx) {
            self.peers.control(rank, &RevokeHeader::new(ctx & !1));
        } else if let Some((tag, why)) = self.calls.revocations.first(ctx) {
            self.peers
                .control(rank, &why.header(CollectiveId::new(ctx, tag)));
        }
    }
}
