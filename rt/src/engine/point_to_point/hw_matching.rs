//! Receives that lend their buffers to the driver: an adapter that matches tags may place a message before the host polls.
//!
//! Matching in the engine is unchanged, and it decides. The adapter only saves a copy: if the message that it placed is the one
//! that its receive gets, the bytes are there already. If the receive gets another message, that one is stored and the buffer is
//! asked back. A placed message that belongs elsewhere is copied out first. So neither the order in which the adapter saw the
//! messages matters, nor wildcard receives of which it does not know.
//!
//! A lent buffer belongs to the driver. Its operation completes or fails only when the driver has returned it.

use std::num::NonZeroU32;

use ripstop_fabric::{
    driver::{CommandToken, Driver, TagBuffer},
    tags::MatchTag,
};

use super::{MessageTransmitter, PointToPoint};
use crate::{
    ops::{OpState, ReservedMessage},
    proto::wire::{EagerHeader, OpId},
};

impl MessageTransmitter<'_> {
    /// Posts a receive that already owns its buffer.
    #[inline]
    pub(in crate::engine) fn post_recv(&mut self, op: OpId) {
        self.p2p.recv(op);
        if let Some(least) = self.p2p.hw_matching_min {
            self.post_tag_buffer(op, least.get());
        }
    }

    /// Lends the buffer of a waiting receive, if a message of at least `least` bytes may be placed in it.
    ///
    /// A buffer is not lent while a wildcard receive waits, which may get the message that would be placed. Nor is one that is
    /// longer than the longest eager message, because its message will probably be offered.
    fn post_tag_buffer(&mut self, op: OpId, least: u32) {
        self.p2p.common.trace_recv(op);
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return;
        };
        let (info, len) = (slot.info, slot.area.len);
        let (OpState::Posted(_), Some(from), Some(tag)) = (slot.state, info.peer, info.tag) else {
            return;
        };
        let longest = self.p2p.common.paths.to(from).eager_max();
        if info.probe
            || slot.is_in_program()
            || !(least as usize..=longest).contains(&len)
            || self.p2p.matching.has_wildcard()
        {
            return;
        }
        let context = info.ctx;
        let offer = TagBuffer {
            tag: MatchTag { context, tag },
            header_len: size_of::<EagerHeader>(),
            into: slot.range(len),
            token: CommandToken(op.pack()),
        };
        let tags = self.driver.tag_matching();
        slot.lent = tags.is_some_and(|tags| tags.offer(from, offer));
    }

    /// Asks the driver to return a lent buffer.
    pub(in crate::engine) fn recall_tag_buffer(&mut self, op: OpId) {
        let lent = self.p2p.common.ops.get(op).is_some_and(|slot| slot.lent);
        let token = CommandToken(op.pack());
        let is_back = |driver: &mut dyn Driver| {
            let tags = driver.tag_matching();
            tags.is_some_and(|tags| tags.take_back(token))
        };
        if lent && is_back(&mut *self.driver) {
            self.p2p.common.take_over_buffer(op);
            self.p2p.settle(op);
        }
    }
}

impl PointToPoint {
    /// Completes a receive that waited only for its buffer, which is back.
    pub(in crate::engine) fn settle(&mut self, op: OpId) {
        let Some(slot) = self.common.ops.get(op) else {
            return;
        };
        match slot.state {
            OpState::Recalled(Some(ReservedMessage { stored, arrival })) => {
                let message = self.messages.take(stored);
                self.deliver_stored(op, message, arrival);
            }
            OpState::Recalled(None) => {
                let why = slot.take_why().expect("what failed says why");
                self.common.complete_op(op, Err(why));
            }
            _ => {}
        }
    }
}

impl EagerHeader {
    /// Returns the tag of a message, if the message is long enough for an adapter to match it.
    #[inline]
    pub(in crate::engine) fn tag_for(
        &self,
        least: Option<NonZeroU32>,
        len: usize,
    ) -> Option<MatchTag> {
        let least = least?;
        let tag = MatchTag {
            context: self.ctx,
            tag: self.tag,
        };
        // Messages of programs are matched by their programs.
        (len >= least.get() as usize && self.ctx & 1 == 0).then_some(tag)
    }
}
