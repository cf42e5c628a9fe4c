//! Go-back-n between two adapters: makes a network reliable that loses, duplicates and reorders packets, and copes with a
//! receiver that has few slots.
//!
//! Packets of a pair are numbered.
//!
//! - The [`GoBackReceiver`] takes the next packet and keeps no other. It reports which number it expects, once for several
//!   packets (ACK). If another packet came or no slot is free, it reports that too (NACK), but not too often.
//! - The [`GoBackSender`] keeps packets that are not acknowledged. It sends again from the expected number on: immediately after
//!   a gap, with growing delays after a refusal, and when no answer came in time.
//! - An adapter that must refuse packets keeps a list of the senders it refused ([`ReceiveSlotPool`]). It calls them one by one
//!   (GRANT) as slots become free, so that no sender is served twice before another.
//!
//! All three are pure state machines. Times are in picoseconds and passed in by the caller, and packets are of the caller's type
//! `T`.

mod pool;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub(super) use self::{pool::ReceiveSlotPool, receiver::GoBackReceiver, sender::GoBackSender};

/// Patience of an adapter, and the number of packets that it sends ahead. Times are in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoBackLimits {
    /// Most packets of a pair in flight.
    pub(super) window: u32,
    /// Delay after which an answer counts as lost. Every repetition doubles the delay.
    pub(super) slack: u64,
    /// Least time between two refusals, and the first wait after one.
    pub(super) hold: u64,
    /// A peer that is silent for this long counts as dead.
    pub(super) silence: u64,
    /// Seed that spreads the waits.
    pub(super) seed: u64,
}

/// Header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoBackHeader {
    /// Number of the packet.
    pub(super) seq: u64,
    /// True if nothing follows until this packet is answered.
    pub(super) ask: bool,
    /// True if the sender has more packets.
    pub(super) more: bool,
}

/// Answer of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoBackAnswer {
    /// All packets before this number have arrived.
    pub(super) expected: u64,
    pub(super) kind: GoBackAnswerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoBackAnswerKind {
    /// Continue.
    Ack,
    /// Continue when called.
    Pause,
    /// A packet is missing: send again from `expected` on.
    Gap,
    /// There was no free slot: send again from `expected` on when called, or by yourself after this many picoseconds.
    NoSlot(u64),
    /// The sender is called: it may send one packet.
    Grant,
}
