//! What the operations of a channel have in common.

use std::sync::atomic::{AtomicU64, Ordering};

use super::OpInfo;
use crate::{group::WorldRank, proto::matching::MessageEnvelope};

/// Description of the operations of a channel and its clones, made once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelInfo {
    /// What all sends and receives of the channel are, except for the source line.
    pub(crate) op: OpInfo,
    pub(crate) number: ChannelNumber,
    /// Rank of the peer in the communicator, 0 for no rank.
    pub(crate) peer: usize,
    /// Envelope of the channel's messages if this rank is its own peer.
    pub(crate) own: Option<MessageEnvelope>,
}

/// Number of a channel, by which a slot recognizes that it describes a receive of that channel already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelNumber(u64);

impl ChannelInfo {
    /// Describes a new channel of the rank `me`.
    pub(crate) fn new(op: OpInfo, peer: usize, me: WorldRank) -> Self {
        Self {
            op,
            number: ChannelNumber::next(),
            peer,
            own: (op.peer == Some(me)).then(|| MessageEnvelope {
                ctx: op.ctx,
                source: me,
                tag: op.tag.unwrap_or(0),
            }),
        }
    }
}

impl ChannelNumber {
    /// The number of no channel.
    pub(super) const NONE: Self = Self(0);

    /// Returns a number that no other channel of this process has.
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
