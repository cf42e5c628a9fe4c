//! Receives that lend their buffers to the driver, whose adapter matches tags: it may put a message there before anybody looks.
//!
//! Matching here stays as it is, and decides. The adapter only saves a copy: when the message that it has placed is the one
//! that its receive gets, the bytes are there already. Any other message that a receive gets meanwhile is kept, and the buffer
//! is asked for; a message that was placed and goes elsewhere is copied out first. So it does not matter which messages the
//! adapter saw first, nor whether wildcards were posted that it knows nothing of.
//!
//! A buffer that is lent belongs to the driver: its operation ends, whatever it ends in, when the driver says that it is back.

use ripstop_fabric::{
    driver::{Offer, Peer as Rank, Token},
    tags::Tag,
};

use super::{Core, Engine, Wanted};
use crate::{
    error::ErrorKind,
    ops::{Kept, Landed, Life},
    proto::wire::{Eager, OpId},
};

impl Engine {
    /// Lends the buffer of a receive that waits, if a message for it may be placed and nothing speaks against it.
    ///
    /// While a receive from anybody or with any tag waits, it may well get what would be placed elsewhere. A longer buffer than
    /// the longest message that comes uninvited is likely to be for one that is offered.
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
        slot.lent = self.driver.offer(Rank(from), offer);
    }

    /// Asks for a buffer that is lent.
    pub(super) fn ask_back(&mut self, op: OpId) {
        let lent = self.core.ops.get(op).is_some_and(|slot| slot.lent);
        if lent && self.driver.take_back(Token(op.pack())) {
            self.core.take_over_buffer(op);
            self.core.settle(op);
        }
    }
}

impl Core {
    /// A receive whose buffer is lent is over: it has this message, or has failed.
    pub(super) fn recall_buffer(&mut self, op: OpId, kept: Option<Kept>) {
        self.ops.live(op).life = Life::Recalled(kept);
        self.wanted.push(Wanted::Recall { op });
    }

    /// As [`land`](Self::land), of a receive whose buffer is lent.
    #[cold]
    pub(super) fn fail_lent(&mut self, op: OpId, outcome: Result<Landed, ErrorKind>) {
        let why = outcome.expect_err("what succeeds has its buffer");
        self.ops.live(op).blame(why);
        self.recall_buffer(op, None);
    }

    /// The buffer of a receive is not lent any more.
    pub(super) fn take_over_buffer(&mut self, op: OpId) {
        if let Some(slot) = self.ops.get(op) {
            slot.lent = false;
        }
    }

    /// Ends a receive that was over but for its buffer, which is back.
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
    /// The tag of a message, if it is long enough for an adapter to look for.
    #[inline]
    pub(super) fn tag_for(&self, least: Option<usize>, len: usize) -> Option<Tag> {
        let least = least?;
        let tag = Tag {
            context: self.ctx,
            tag: self.tag,
        };
        // Programs match by themselves.
        (len >= least && self.ctx & 1 == 0).then_some(tag)
    }
}
