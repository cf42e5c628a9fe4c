//! Counts of the unexpected messages of collectives.

use crate::proto::collective_id::CollectiveId;

/// Unexpected messages of collectives, sorted by id.
pub(in crate::engine) struct EarlyMessages(Vec<(CollectiveId, StoredMessages)>);

/// Messages stored for one collective. The count is an upper bound, because some may have left the store unrecorded.
#[derive(Clone, Copy)]
struct StoredMessages {
    stored: usize,
    /// Signature of the first message.
    sig: u64,
    /// True if another signature was seen.
    mixed: bool,
}

impl EarlyMessages {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Records that a message for a collective is stored.
    pub(in crate::engine) fn add(&mut self, id: CollectiveId, sig: u64) {
        match self.0.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => {
                let early = &mut self.0[at].1;
                early.stored += 1;
                early.mixed |= early.sig != sig;
            }
            Err(at) => {
                let (stored, mixed) = (1, false);
                self.0
                    .insert(at, (id, StoredMessages { stored, sig, mixed }));
            }
        }
    }

    /// Records that a stored message has left the store.
    pub(in crate::engine) fn remove(&mut self, id: CollectiveId) {
        if let Ok(at) = self.0.binary_search_by_key(&id, |(id, _)| *id) {
            self.0[at].1.stored -= 1;
            if self.0[at].1.stored == 0 {
                self.0.remove(at);
            }
        }
    }

    /// Returns true if no message is stored for any collective.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if messages may be stored for this collective.
    #[inline]
    pub(in crate::engine) fn may_have(&self, id: CollectiveId) -> bool {
        !self.is_empty() && self.0.binary_search_by_key(&id, |(id, _)| *id).is_ok()
    }

    /// Returns true if a message with another signature may be stored for this collective.
    #[inline]
    pub(in crate::engine) fn may_have_other(&self, id: CollectiveId, sig: u64) -> bool {
        let at = self.0.binary_search_by_key(&id, |(id, _)| *id);
        at.is_ok_and(|at| self.0[at].1.mixed || self.0[at].1.sig != sig)
    }
}
