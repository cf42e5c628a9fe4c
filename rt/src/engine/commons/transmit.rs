//! How a message is handed to the driver, by all parts of the engine.

use ripstop_fabric::{
    driver::{Driver, DriverCommand, PostResult},
    tags::MatchTag,
};

use super::peer::EnginePeer;
use crate::{group::WorldRank, proto::wire::HeaderBase};

/// Hands a message to the driver, with the credits and the acknowledgment that ride on every message. Returns false if there was
/// no room.
#[inline]
pub(in crate::engine) fn transmit(
    driver: &mut dyn Driver,
    peer: &mut EnginePeer,
    rank: WorldRank,
    header: &mut [u8],
    body: &[u8],
) -> bool {
    transmit_tagged(driver, peer, rank, None, header, body)
}

/// Does the same as [`transmit`], with a tag for adapters that match tags.
#[inline]
pub(in crate::engine) fn transmit_tagged(
    driver: &mut dyn Driver,
    peer: &mut EnginePeer,
    rank: WorldRank,
    tag: Option<MatchTag>,
    header: &mut [u8],
    body: &[u8],
) -> bool {
    let credits = peer.credits.due();
    let (mut seq, mut ack) = (0, 0);
    if let Some(channel) = &mut peer.channel {
        let Some(next) = channel.next_seq() else {
            return false;
        };
        (seq, ack) = (next, channel.ack());
    }
    HeaderBase::stamp(header, seq, credits, ack);
    let message = DriverCommand::Message {
        to: rank,
        header,
        body,
    };
    let posted = match tag {
        None => driver.post(message),
        Some(tag) => match driver.tag_matching() {
            Some(tags) => tags.post_tagged(tag, message),
            None => driver.post(message), // the adapter was never reached
        },
    };
    let posted = matches!(posted, PostResult::Posted);
    if posted {
        peer.posted = peer.posted.wrapping_add(1);
        peer.credits.returned(credits);
        if let Some(channel) = &mut peer.channel {
            channel.sent(header, body);
        }
    }
    posted
}

/// Result of a flush: whether there was room for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum FlushResult {
    All,
    Stuck,
}
