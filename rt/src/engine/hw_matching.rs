//! Receives that lend their buffers to the driver: an adapter that matches tags may place a message before the host polls.
//!
//! Matching in the engine is unchanged, and it decides. The adapter only saves a copy: if the message that it placed is the one
//! that its receive gets, the bytes are there already. If the receive gets another message, that one is stored and the buffer is
//! asked back. A placed message that belongs elsewhere is copied out first. So neither the order in which the adapter saw the
//! messages matters, nor wildcard receives of which it does not know.
//!
//! A lent buffer belongs to the driver. Its operation completes or fails only when the driver has returned it.

use ripstop_fabric::{
    driver::{Driver, Offer, Token},
    tags::Tag,
};

use super::{Core, Engine, Wanted};
use crate::{
    error::ErrorKind,
    ops::{Kept, Landed, Life},
    proto::wire::{Eager, OpId},
};

impl Engine {
    /// Lends the buffer of a waiting receive, if a message of at least `least` bytes may be placed in it.
    ///
    /// A buffer is not lent while a wildcard receive waits, which may get the message that would be placed. Nor is one that is
    /// longer than the longest eager message, because its message will probably be offered.
    pub(super) fn lend(&mut self, op: OpId, least: usize) {
        let Some(slot) = self.core.ops.get(op) else {
            return;
        };
        let (about, len) = (slot.about, slot.area.len);
        let (Life::Posted(_), Some(from), Some(tag)) = (slot.life, about.peer, about.tag) else {
            return;
        };
        let longest = self.core.paths.to(from).eager_max();
        if about.probe
            || slot.part
            || !(least..=longest).contains(&len)
            || self.core.matching.is_wild()
        {
            return;
        }
        let context = about.ctx;
        let offer = Offer {
            tag: Tag { context, tag },
            header_len: size_of::<Eager>(),
            into: slot.range(len),
            token: Token(op.pack()),
        };
        let tags = self.driver.tag_matching();
        slot.lent = tags.is_some_and(|tags| tags.offer(from, offer));
    }

    /// Asks the driver to return a lent buffer.
    pub(super) fn ask_back(&mut self, op: OpId) {
        let lent = self.core.ops.get(op).is_some_and(|slot| slot.lent);
        let token = Token(op.pack());
        let is_back = |driver: &mut dyn Driver| {
            let tags = driver.tag_matching();
            tags.is_none_or(|tags| tags.take_back(token))
        };
        if lent && is_back(&mut *self.driver) {
            self.core.take_over_buffer(op);
            self.core.settle(op);
        }
    }
}

impl Core {
    /// Ends a receive whose buffer is lent, with this message or an error. It completes once the buffer is back.
    pub(super) fn recall_buffer(&mut self, op: OpId, kept: Option<Kept>) {
        self.ops.live(op).life = Life::Recalled(kept);
        self.wanted.push(Wanted::Recall { op });
    }

    /// Fails a receive whose buffer is lent, in place of [`land`](Self::land).
    #[cold]
    pub(super) fn fail_lent(&mut self, op: OpId, outcome: Result<Landed, ErrorKind>) {
        let why = outcome.expect_err("what succeeds has its buffer");
        self.ops.live(op).blame(why);
        self.recall_buffer(op, None);
    }

    /// Records that the buffer of a receive is not lent any more.
    pub(super) fn take_over_buffer(&mut self, op: OpId) {
        if let Some(slot) = self.ops.get(op) {
            slot.lent = false;
        }
    }

    /// Completes a receive that waited only for its buffer, which is back.
    pub(super) fn settle(&mut self, op: OpId) {
        let Some(slot) = self.ops.get(op) else {
            return;
        };
        match slot.life {
            Life::Recalled(Some(Kept { stored, arrival })) => {
                let message = self.messages.take(stored);
                self.deliver_stored(op, message, arrival);
            }
            Life::Recalled(None) => {
                let why = slot.take_why().expect("what failed says why");
                self.land(op, Err(why));
            }
            _ => {}
        }
    }
}

impl Eager {
    /// Returns the tag of a message, if the message is long enough for an adapter to match it.
    #[inline]
    pub(super) fn tag_for(&self, least: Option<usize>, len: usize) -> Option<Tag> {
        let least = least?;
        let tag = Tag {
            context: self.ctx,
            tag: self.tag,
        };
        // Messages of programs are matched by their programs.
        (len >= least && self.ctx & 1 == 0).then_some(tag)
    }
}
