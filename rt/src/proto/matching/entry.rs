//! Entries of the matching lists: what a receive asks for, what a message carries, and their links.

use super::{
    ArrivalNumber,
    list::{ListEntry, ListLink},
    table::{MatchingKey, ReceiveClass},
};
use crate::{group::WorldRank, proto::collective_id::CollectiveId};

/// The fields of a message that are used for matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageEnvelope {
    pub(crate) ctx: u32,
    pub(crate) source: WorldRank,
    pub(crate) tag: u32,
}

/// The fields that a receive asks for; `None` means any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecvPattern {
    pub(crate) ctx: u32,
    pub(crate) source: Option<WorldRank>,
    pub(crate) tag: Option<u32>,
}

impl RecvPattern {
    /// Returns true if a message with this envelope matches.
    #[inline]
    pub(crate) fn fits(&self, envelope: &MessageEnvelope) -> bool {
        self.ctx == envelope.ctx
            && self.source.is_none_or(|source| source == envelope.source)
            && self.tag.is_none_or(|tag| tag == envelope.tag)
    }

    /// Returns which fields the receive specifies.
    #[inline]
    pub(super) const fn class(&self) -> ReceiveClass {
        match (self.source, self.tag) {
            (Some(_), Some(_)) => ReceiveClass::Exact,
            (None, Some(_)) => ReceiveClass::AnySource,
            (Some(_), None) => ReceiveClass::AnyTag,
            (None, None) => ReceiveClass::Any,
        }
    }

    #[inline]
    pub(super) fn key(&self) -> MatchingKey {
        let class = self.class();
        let source = self.source.map_or(0, |source| source.0);
        let tag = self.tag.unwrap_or(0);
        MatchingKey::new(class, self.ctx, source, tag)
    }
}

impl MessageEnvelope {
    /// Returns the collective that the message belongs to, if its context is that of collectives.
    #[inline]
    pub(crate) const fn collective_id(&self) -> CollectiveId {
        CollectiveId::new(self.ctx, self.tag)
    }

    /// Returns the key of the list of this class in which the message waits, or its matching receives.
    #[inline]
    pub(super) fn key(&self, class: ReceiveClass) -> MatchingKey {
        let Self { ctx, source, tag } = *self;
        let source = source.0;
        match class {
            ReceiveClass::Exact => MatchingKey::new(class, ctx, source, tag),
            ReceiveClass::AnySource => MatchingKey::new(class, ctx, 0, tag),
            ReceiveClass::AnyTag => MatchingKey::new(class, ctx, source, 0),
            ReceiveClass::Any => MatchingKey::new(class, ctx, 0, 0),
        }
    }
}

/// A waiting receive.
#[derive(Debug)]
pub(super) struct PostedReceive<R> {
    pub(super) posting: u64,
    pub(super) want: RecvPattern,
    pub(super) recv: R,
    pub(super) link: ListLink,
}

impl<R> ListEntry for PostedReceive<R> {
    fn order(&self) -> u64 {
        self.posting
    }

    fn link(&self, _: usize) -> ListLink {
        self.link
    }

    fn link_mut(&mut self, _: usize) -> &mut ListLink {
        &mut self.link
    }
}

/// A waiting message.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingMessage<M> {
    pub(super) arrival: ArrivalNumber,
    pub(super) envelope: MessageEnvelope,
    pub(super) message: M,
    /// True if the message is in its wildcard lists too, and not only in the exact list.
    pub(super) linked: bool,
    /// Links in the list of each class; the last link is for [`ARRIVED`].
    pub(super) links: [ListLink; 5],
}

impl<M> ListEntry for WaitingMessage<M> {
    fn order(&self) -> u64 {
        self.arrival.0
    }

    fn link(&self, list: usize) -> ListLink {
        self.links[list]
    }

    fn link_mut(&mut self, list: usize) -> &mut ListLink {
        &mut self.links[list]
    }
}

/// Index of the list of all messages, among a message's links.
pub(super) const ARRIVED: usize = 4;
