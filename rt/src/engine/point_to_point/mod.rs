//! Messages from one rank to another: sends and receives, how they match, and how the bytes travel.
//!
//! This is the ground floor of the engine. Collectives, windows and recovery stand on it. It calls none of their methods: what
//! it records for collectives is in what all parts share ([`EngineCommons`]), which its state holds. Windows and recovery borrow
//! only that.

mod arrivals;
mod expected_recv;
mod hw_matching;
pub(in crate::engine) mod message;
mod message_runs;
mod order;
mod out_of_order_fetch;
mod own_messages;
mod peer_down;
mod placed_recv;
mod recv;
mod refuse;
mod rendezvous;
mod send;
mod split_rendezvous;
mod tables;
#[cfg(test)]
pub(in crate::engine) mod tests;
mod transmitter;
mod unexpected;
mod unexpected_quota;
mod unreceived;

use std::num::NonZeroU32;

use ripstop_fabric::driver::Driver;

pub(in crate::engine) use self::expected_recv::land_expected;
pub(crate) use self::send::SendStart;
use self::{
    message::MessageStore, out_of_order_fetch::ParkedMessage, own_messages::OwnMessages,
    peer_down::UnreportedFailures, split_rendezvous::SplitTable, unreceived::UnreceivedMessages,
};
pub(in crate::engine) use self::{transmitter::MessageTransmitter, unexpected::StoredMatch};
use super::{EngineCommons, EngineSetup};
use crate::proto::{header_quota::FetchTracker, matching::Matching, wire::OpId};

/// The messages of one rank in flight, stored and expected.
pub(crate) struct PointToPoint {
    pub(crate) common: EngineCommons,
    matching: Matching<OpId, u32>,
    messages: MessageStore,
    /// Least length in bytes of a receive buffer that is lent to the driver. If its adapter does not match tags: `None`, or
    /// longer than any buffer if this rank records a trace, so that each receive is looked at.
    hw_matching_min: Option<NonZeroU32>,
    splits: SplitTable,
    /// True if both ends move a long message together, while messages go in one direction only.
    may_split_long: bool,
    /// Tracks which senders to ask for messages that have not arrived.
    fetches: FetchTracker,
    /// A message fetched for a probe, not for a receive.
    parked: Option<Box<ParkedMessage>>,
    own: OwnMessages,
    /// Failed members not yet reported to any wildcard receive.
    unreported_failures: UnreportedFailures,
    unreceived: Option<Box<UnreceivedMessages>>,
}

impl PointToPoint {
    pub(super) fn new(driver: &mut dyn Driver, setup: EngineSetup, has_lists: bool) -> Self {
        let by_processor = driver.caps_to(setup.rank).by_processor;
        let tags = driver.tag_matching();
        let hw_matching_min = tags.map(|tags| {
            let least = u32::try_from(tags.shortest_body()).unwrap_or(u32::MAX);
            NonZeroU32::new(least).unwrap_or(NonZeroU32::MIN) // An empty message has no bytes to be placed.
        });
        let caps = driver.caps();
        let is_direct = by_processor && caps.reliable && caps.ordered;
        let own = OwnMessages::new(is_direct);
        let may_split_long = setup.may_split_long;
        Self {
            common: EngineCommons::new(driver, setup, has_lists),
            matching: Matching::new(),
            messages: MessageStore::new(),
            hw_matching_min,
            splits: SplitTable::default(),
            may_split_long,
            fetches: FetchTracker::default(),
            parked: None,
            own,
            unreported_failures: UnreportedFailures::default(),
            unreceived: None,
        }
    }

    /// Looks at each posted receive from now on, as where an adapter matches tags, because this rank records a trace.
    pub(super) fn look_at_each_recv(&mut self) {
        self.hw_matching_min.get_or_insert(NonZeroU32::MAX);
    }
}
