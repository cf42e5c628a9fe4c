//! Entries of the matching lists: what a receive asks for, what a message carries, and their links.

use super::{
    Arrival,
    list::{Link, Linked},
    table::{Class, Key},
};
use crate::group::WorldRank;

/// The fields of a message that are used for matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) ctx: u32,
    pub(crate) source: WorldRank,
    pub(crate) tag: u32,
}

/// The fields that a receive asks for; `None` means any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) ctx: u32,
    pub(crate) source: Option<WorldRank>,
    pub(crate) tag: Option<u32>,
}

impl Want {
    /// Returns true if a message with this envelope matches.
    pub(crate) fn fits(&self, envelope: &Envelope) -> bool {
        self.ctx == envelope.ctx
            && self.source.is_none_or(|source| source == envelope.source)
            && self.tag.is_none_or(|tag| tag == envelope.tag)
    }

    pub(super) fn key(&self) -> Key {
        let class = match (self.source, self.tag) {
            (Some(_), Some(_)) => Class::Exact,
            (None, Some(_)) => Class::AnySource,
            (Some(_), None) => Class::AnyTag,
            (None, None) => Class::Any,
        };
        let source = self.source.map_or(0, |source| source.0);
        let tag = self.tag.unwrap_or(0);
        Key::new(class, self.ctx, source, tag)
    }
}

impl Envelope {
    /// Returns the key of the list of this class in which the message waits, or its matching receives.
    #[inline]
    pub(super) fn key(&self, class: Class) -> Key {
        let Self { ctx, source, tag } = *self;
        let source = source.0;
        match class {
            Class::Exact => Key::new(class, ctx, source, tag),
            Class::AnySource => Key::new(class, ctx, 0, tag),
            Class::AnyTag => Key::new(class, ctx, source, 0),
            Class::Any => Key::new(class, ctx, 0, 0),
        }
    }
}

/// A waiting receive.
#[derive(Debug)]
pub(super) struct Receive<R> {
    pub(super) posting: u64,
    pub(super) want: Want,
    pub(super) recv: R,
    pub(super) link: Link,
}

impl<R> Linked for Receive<R> {
    fn order(&self) -> u64 {
        self.posting
    }

    fn link(&self, _: usize) -> Link {
        self.link
    }

    fn link_mut(&mut self, _: usize) -> &mut Link {
        &mut self.link
    }
}

/// A waiting message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<M> {
    pub(super) arrival: Arrival,
    pub(super) envelope: Envelope,
    pub(super) message: M,
    /// True if the message is in its wildcard lists too, and not only in the exact list.
    pub(super) linked: bool,
    /// Links by class; the last one is for [`ARRIVED`].
    pub(super) links: [Link; 5],
}

impl<M> Linked for Message<M> {
    fn order(&self) -> u64 {
        self.arrival.0
    }

    fn link(&self, list: usize) -> Link {
        self.links[list]
    }

    fn link_mut(&mut self, list: usize) -> &mut Link {
        &mut self.links[list]
    }
}

/// Index of the list of all messages, among a message's links.
pub(super) const ARRIVED: usize = 4;
