//! What the rest of the engine may see of the receives and messages that wait here.

use super::{
    PointToPoint,
    message::{MessageStore, StoredBody, StoredMessage},
};
use crate::{
    group::WorldRank,
    proto::{
        matching::{Matching, RecvPattern},
        wire::OpId,
    },
};

/// The receives and messages that wait, to be looked at.
#[derive(Clone, Copy)]
pub(crate) struct MessageTables<'a> {
    matching: &'a Matching<OpId, u32>,
    pub(super) messages: &'a MessageStore,
}

impl<'a> MessageTables<'a> {
    /// Returns true if a receive is posted.
    pub(crate) fn is_receiving(self) -> bool {
        self.matching.is_receiving()
    }

    /// Returns true if no receive is posted and no message waits.
    #[inline(always)]
    pub(in crate::engine) fn is_idle(self) -> bool {
        self.matching.is_idle()
    }

    /// Returns the numbers of receives that were posted and of messages that arrived, so far.
    pub(crate) fn counts(self) -> (u64, u64) {
        self.matching.counts()
    }

    /// Returns what the posted receives wait for.
    pub(in crate::engine) fn posted_patterns(self) -> impl Iterator<Item = &'a RecvPattern> {
        self.matching.posted_patterns()
    }

    /// Returns the messages that wait for a receive, and those that probes hold.
    pub(in crate::engine) fn stored_messages(self) -> impl Iterator<Item = &'a StoredMessage> {
        self.messages.all()
    }

    /// Returns the sender of a message whose signature is not that of the collective it was sent for, if there is one.
    pub(in crate::engine) fn mismatched_sender(
        self,
        ctx: u32,
        tag: u32,
        sig: u64,
    ) -> Option<WorldRank> {
        self.messages.mismatched_sender(ctx, tag, sig)
    }

    /// Returns for each table the number of allocated entries, and how many of them are in use.
    #[inline]
    pub(in crate::engine) fn rooms(self) -> [(usize, usize); 2] {
        [self.matching.room(), self.messages.room()]
    }

    /// Returns the memory of the stored messages, in bytes.
    pub(in crate::engine) fn bytes(self) -> usize {
        self.messages.bytes()
    }
}

impl PointToPoint {
    /// Returns the receives and messages that wait, to be looked at.
    #[inline(always)]
    pub(crate) fn tables(&self) -> MessageTables<'_> {
        MessageTables {
            matching: &self.matching,
            messages: &self.messages,
        }
    }

    /// Returns the earliest stored message that a receive would take now, and leaves it stored.
    pub(in crate::engine) fn stored_for(&mut self, want: RecvPattern) -> Option<&StoredBody> {
        let found = self.matching.peek(want)?;
        Some(&self.messages.get(found.message).body)
    }

    /// Releases the memory of entries that are no longer in use.
    pub(in crate::engine) fn shrink_tables(&mut self) {
        self.matching.shrink();
        self.messages.shrink();
    }
}
