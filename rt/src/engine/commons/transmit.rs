//! How messages, and commands for memory of peers, are handed to the driver by all parts of the engine.

use ripstop_fabric::{
    driver::{CommandToken, Driver, DriverCommand, PostResult},
    tags::MatchTag,
};

use super::{EngineCommons, peer::EnginePeer};
use crate::{engine::OneSidedCommand, group::WorldRank, proto::wire::HeaderBase};

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
#[inline(always)]
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
    let posted = match tag {
        None => driver.post_message(rank, header, body),
        Some(tag) => post_tagged(driver, rank, tag, header, body),
    };
    if posted {
        peer.posted = peer.posted.wrapping_add(1);
        peer.credits.returned(credits);
        if let Some(channel) = &mut peer.channel {
            channel.sent(header, body);
        }
    }
    posted
}

fn post_tagged(
    driver: &mut dyn Driver,
    to: WorldRank,
    tag: MatchTag,
    header: &[u8],
    body: &[u8],
) -> bool {
    let Some(tags) = driver.tag_matching() else {
        return driver.post_message(to, header, body); // the adapter was never reached
    };
    let message = DriverCommand::Message { to, header, body };
    matches!(tags.post_tagged(tag, message), PostResult::Posted)
}

/// Result of a flush: whether there was room for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum FlushResult {
    All,
    Stuck,
}

impl EngineCommons {
    /// Sends the headers without a body that are queued for a peer.
    pub(in crate::engine) fn flush_control(
        &mut self,
        driver: &mut dyn Driver,
        rank: WorldRank,
    ) -> FlushResult {
        let peer = self.peers.peer_mut(rank);
        while let Some(mut frame) = peer.control.front().copied() {
            if !transmit(driver, peer, rank, frame.bytes(), &[]) {
                return FlushResult::Stuck;
            }
            peer.control.pop_front();
        }
        FlushResult::All
    }

    /// Posts a get or a put of an operation, or a count. Returns true if it is posted or no longer needed.
    pub(in crate::engine) fn post_one_sided(
        &mut self,
        driver: &mut dyn Driver,
        one_sided: OneSidedCommand,
    ) -> bool {
        let (op, key, at) = match one_sided {
            OneSidedCommand::Get { op, key, at } | OneSidedCommand::Put { op, key, at } => {
                (op, key, at)
            }
            OneSidedCommand::Count { rank, counter, by } => {
                let to = rank;
                let command = DriverCommand::Count { to, counter, by };
                return matches!(driver.post(command), PostResult::Posted);
            }
            _ => return true, // it belongs to one part of the engine, which posts it
        };
        let Some(slot) = self.ops.get(op) else {
            return true;
        };
        let Some(to) = slot.state.partner(&slot.info) else {
            return true;
        };
        let Ok(bytes) = usize::try_from(key.len) else {
            return true;
        };
        let local = slot.range(at + bytes).slice(at, bytes);
        let token = CommandToken(op.pack());
        let command = match one_sided {
            OneSidedCommand::Put { .. } => DriverCommand::Put {
                to,
                from: local,
                into: key,
                count: None,
                token,
            },
            _ => DriverCommand::Get {
                to,
                from: key,
                into: local,
                token,
            },
        };
        let posted = matches!(driver.post(command), PostResult::Posted);
        self.commands_in_flight += u32::from(posted);
        posted
    }
}
