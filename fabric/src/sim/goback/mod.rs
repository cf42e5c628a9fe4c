//! Go-back-n between two adapters: what makes a network that loses, doubles and reorders reliable, and a receiver with few slots
//! harmless.
//!
//! After spec P15. Packets of a pair are numbered. The [`Receiver`] takes the next one and keeps nothing else; it says what it
//! expects (ACK, for several packets at once), and when something else came or no slot is free, that too (NACK), once in a while.
//! The [`Sender`] keeps what is not acknowledged, and sends again from what is expected: at once after a gap, later and later
//! after a refusal, and when no answer came in time. An adapter that has to refuse keeps a list of whom it refused ([`Pool`]),
//! and calls them one by one (GRANT) as slots become free, so that nobody is lucky twice.
//!
//! All is pure: times are picoseconds that the caller passes in, and packets are whatever the caller means by `T`.

mod pool;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub(super) use self::{pool::Pool, receiver::Receiver, sender::Sender};

/// How patient an adapter is, and how much it sends ahead. Times are in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Packets of a pair that may be under way.
    pub(super) window: u32,
    /// What an answer may be late before it counts as lost; doubles with every repetition.
    pub(super) slack: u64,
    /// The least time between two refusals, and the first wait after one.
    pub(super) hold: u64,
    /// A peer that is not heard for so long is dead.
    pub(super) silence: u64,
    /// Spreads the waits.
    pub(super) seed: u64,
}

/// What goes before a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    /// Its number.
    pub(super) seq: u64,
    /// Nothing follows until this is answered.
    pub(super) ask: bool,
    /// The sender has more.
    pub(super) more: bool,
}

/// What a receiver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// All before this number is here.
    pub(super) expected: u64,
    pub(super) what: Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Go on.
    Ack,
    /// Go on when you are called.
    Pause,
    /// Something is missing: send again from there.
    Gap,
    /// There was no slot: send again from there when you are called; by yourself only after so long.
    NoSlot(u64),
    /// You are called: send one.
    Grant,
}
