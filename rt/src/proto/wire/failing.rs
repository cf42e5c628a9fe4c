//! Headers of what ranks say when others have failed, or do not call what they call.

use bytemuck::{Pod, Zeroable};

use super::{Base, Kind};

/// [`Kind::Words`]. The rank is the world's.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Words {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) rank: u32,
    /// Which part this is, of how many.
    pub(crate) part: u8,
    pub(crate) parts: u8,
    /// Bytes of it.
    pub(crate) len: u8,
    pub(crate) zero: u8,
    pub(crate) text: [u8; WORDS_LEN],
}

/// [`Kind::LastCalls`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LastCalls {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    /// Of the comparison: the sender is 2^`round` places before its receiver.
    pub(crate) round: u32,
    /// The number that the sender's next collective would have.
    pub(crate) next: u32,
    /// 1 if the sender calls no collective any more.
    pub(crate) closing: u32,
    /// How many the sender has begun on the world, if it calls none any more.
    pub(crate) begun: u32,
    /// Halves of the signatures of its last calls, the last one first; 0 where it does not know one.
    pub(crate) sigs: [u32; CALLS],
}

/// Calls that are compared.
pub(crate) const CALLS: usize = 16;

/// Bytes of a part of what a rank has called.
pub(crate) const WORDS_LEN: usize = 84;
/// The most parts.
pub(crate) const WORDS_PARTS: usize = 3;

/// [`Kind::Revoke`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Revoke {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) zero: u32,
}

/// [`Kind::Agree`]. Ranks are the communicator's.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Agree {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) round: u32,
    /// One of the `SAY_*` numbers.
    pub(crate) what: u8,
    pub(crate) flag: u8,
    /// 1 if the sender says more of which ranks are down: parts come in order, and this is not the last.
    pub(crate) more: u8,
    /// Of a report: 1 if this is what the sender has promised to keep to.
    pub(crate) promised: u8,
    pub(crate) number: u32,
    /// Which rank the first bit of `down` is for, divided by 64.
    pub(crate) at: u32,
    pub(crate) zero: u32,
    /// A bit for each rank that is down.
    pub(crate) down: [u64; DOWN_WORDS],
}

/// As many as the longest header has room for.
pub(crate) const DOWN_WORDS: usize = 10;

pub(crate) const SAY_REPORT: u8 = 1;
pub(crate) const SAY_PROPOSE: u8 = 2;
pub(crate) const SAY_PROMISE: u8 = 3;
pub(crate) const SAY_DECIDE: u8 = 4;

/// [`Kind::Death`]: of which rank of the world. It is outside of the channel's order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Death {
    pub(crate) base: Base,
    pub(crate) rank: u32,
    unused: u32,
}

impl Death {
    pub(crate) fn new(rank: u32) -> Self {
        Self {
            base: Base::new(Kind::Death),
            rank,
            unused: 0,
        }
    }
}
