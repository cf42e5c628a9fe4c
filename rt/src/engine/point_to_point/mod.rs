//! Messages from one rank to another: sends and receives, how they match, and how the bytes travel.
//!
//! This is the lowest part of the engine. Collectives, windows and recovery use it. It calls none of their methods: what
//! it records for collectives is in what all parts share ([`EngineCommons`]), which its state holds. Windows and recovery borrow
//! only that.
//!
//! # Owners
//!
//! - An operation, with its buffer and its [`OpState`](crate::ops::OpState), is in the commons (`ops`). This part changes the
//!   states, and an [`OpId`] names an operation also on the wire.
//! - The commons have what waits to be sent to a peer, too (`peers`): headers without a body, envelopes, fragments, and how much
//!   the peer may send and be sent. So is `commands`, the puts and gets that wait for room at the driver.
//! - [`PointToPoint`] owns the rest: which receives are posted and in which order messages came (`matching`), messages that no
//!   receive has taken (`messages`), and long messages that both ends move (`splits`).
//! - [`MessageTransmitter`] borrows the driver as well. Nothing else here calls it, because handlers run inside its `progress`.
//!
//! # The states of a send and of a receive
//!
//! ```text
//! send  leaves at once, without an operation (`send`), or becomes one:
//!   Queued ── room and credits ──> Done                       the bytes go with the envelope
//!     └─────── RTS ───────> Offered                           the bytes stay here
//!   Offered ── ATS ───────> Done                              the receiver has got the bytes
//!     ├─────── RTR ───────> Putting ─> Done                   this rank puts them, then sends ATP
//!     ├─────── RTR ───────> Fragmenting ─> Done               the bytes go in messages, if no other path works
//!     ├─────── SplitRtr ──> Claiming ─> PuttingRear ─> Offered  this rank has put the rear, and waits for ATS
//!     │                     Claiming ─> Offered               the claim has failed
//!     └─────── Cancel ────> Withdrawing                       CancelAck: withdrawn, or Offered if it was matched already
//!
//! receive  Expected ─ its short message ─> Done
//!     └──── any other use of the engine ─> Posted ─ matched ─> Landing ─> Done
//!   A whole message is copied at once: Posted -> Done. `Landing` waits for bytes that the driver or the sender moves.
//!   Recalled     a buffer that is lent to the driver, and that the operation waits to have back
//!   Following    takes over the message of an orphan: a receive in `Landing` whose future was dropped
//! ```
//!
//! # Where to begin
//!
//! A short message: `send`, `transmitter`, then at its receiver `order` (credits, and the order where the driver does not keep
//! it), `recv` (matching and the copy) and `unexpected` (no receive waits; `message` is the store). A long one: `rendezvous`,
//! then `split_rendezvous`. `arrivals` lists the kinds of headers, and `peer_down`, `refuse` and `unreceived` say how things end
//! otherwise. `unexpected_quota` and `out_of_order_fetch` bound what is stored. `probed` has messages that are out of the queue
//! and stay in the store, and `read_in_place` those that are read in their sender's memory. All others are shorter ways, which
//! can be read last: `expected_recv`, `message_runs`, `own_messages`, `hw_matching` and `placed_recv`.
//!
//! Of the rest of the runtime, you need the states (rt/src/ops/op_state.rs), the headers (rt/src/proto/wire), and the rules that
//! are pure: rt/src/proto/matching, rt/src/proto/header_quota and rt/src/proto/channel.

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
mod probed;
mod read_in_place;
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

pub(in crate::engine) use self::expected_recv::{awaited_header, complete_awaited, land_expected};
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
