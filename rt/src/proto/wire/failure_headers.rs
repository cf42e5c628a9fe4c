//! Headers of messages about failed ranks, and about ranks that call different collectives.

use bytemuck::{Pod, Zeroable};

use super::{HeaderBase, WireKind};

/// Header of [`WireKind::CallDescription`]. The rank is that of the world.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CallDescriptionHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) rank: u32,
    /// Index of this part.
    pub(crate) part: u8,
    /// Number of parts.
    pub(crate) parts: u8,
    /// Length of this part's text in bytes.
    pub(crate) len: u8,
    pub(crate) zero: u8,
    pub(crate) text: [u8; WORDS_LEN],
}

/// Header of [`WireKind::LastCalls`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LastCallsHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    /// Round of the comparison. The sender is 2^`round` places before its receiver.
    pub(crate) round: u32,
    /// Number that the sender's next collective would have.
    pub(crate) next: u32,
    /// 1 if the sender calls no collective any more.
    pub(crate) closing: u32,
    /// Number of collectives that the sender has begun on the world, if it is closing.
    pub(crate) begun: u32,
    /// Halves of the signatures of the sender's last calls, the last one first. 0 if a signature is not known.
    pub(crate) sigs: [u32; CALLS],
}

/// Number of calls that are compared.
pub(crate) const CALLS: usize = 16;

/// Maximum bytes of text in one [`CallDescriptionHeader`].
pub(crate) const WORDS_LEN: usize = 84;
/// Maximum number of parts of one description.
pub(crate) const WORDS_PARTS: usize = 3;

/// Header of [`WireKind::Revoke`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RevokeHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    /// 1 in an answer: the sender has left the communicator, or is not in it yet, so it notifies no others.
    pub(crate) left: u32,
}

/// Header of [`WireKind::Agree`]. Ranks are those of the communicator.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AgreeHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) round: u32,
    /// One of the `SAY_*` numbers.
    pub(crate) step: u8,
    pub(crate) flag: u8,
    /// 1 if more parts of the list of failed ranks follow. Parts arrive in order.
    pub(crate) more: u8,
    /// 1 in a report with a value that the sender has promised to keep.
    pub(crate) promised: u8,
    pub(crate) number: u32,
    /// Rank of the first bit of `down`, divided by 64.
    pub(crate) at: u32,
    pub(crate) zero: u32,
    /// One bit for each rank, set if the rank is down.
    pub(crate) down: [u64; DOWN_WORDS],
}

/// Words of the bitmap in one [`AgreeHeader`]. It fills the longest header.
pub(crate) const DOWN_WORDS: usize = 10;

pub(crate) const SAY_REPORT: u8 = 1;
pub(crate) const SAY_PROPOSE: u8 = 2;
pub(crate) const SAY_PROMISE: u8 = 3;
pub(crate) const SAY_DECIDE: u8 = 4;

/// Header of [`WireKind::Death`], with a rank of the world. It is not part of the channel's order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct DeathHeader {
    pub(crate) base: HeaderBase,
    pub(crate) rank: u32,
    unused: u32,
}

impl DeathHeader {
    pub(crate) fn new(rank: u32) -> Self {
        Self {
            base: HeaderBase::new(WireKind::Death),
            rank,
            unused: 0,
        }
    }
}
