//! Several adapters between two ranks, used as one. Pure state machines: the owner posts the commands to the adapters.
//!
//! ```text
//!   LaneSpeeds        how a length is best divided between lanes, or given to one         split
//!   LaneStripe        one long command: which lane moves which piece next, what is left   stripe
//!   LaneFences        which lanes of a pair still work, and which can do no more harm     fence
//!   home, pair_up     the lane of what is ordered; which adapter talks to which           here
//! ```
//!
//! A *lane* is a number below [`LANES_MAX`] that means the same path to both ranks of a pair.
//!
//! **Order.** Envelopes are ordered, bytes are not. All ordered traffic goes through one lane, the [`home`] of its context, which
//! both sides compute without communication. Pieces of long commands go through all lanes, and the command is complete when all
//! have landed.
//!
//! **Failure.** A transfer in flight on a lane that fails may still arrive long after it was given up. Its piece is therefore
//! sent again only when the lane is *fenced*: both ranks have closed it, so it cannot access memory any more ([`LaneFences`]).
//! Until then the command is not complete, and its memory must not be reused.

mod fence;
mod split;
mod stripe;
#[cfg(test)]
mod tests;

pub use self::{
    fence::{LaneFences, LaneReport},
    split::{LaneSpeed, LaneSpeeds, PIECE_MIN, STRIPE_MIN},
    stripe::{LaneStripe, PieceId, StripePiece, StripeProgress},
};
use crate::random::SeededRandom;

/// Most lanes of a pair.
pub const LANES_MAX: u32 = 8;

/// Most adapters that drivers give a rank.
pub const RAILS_MAX: usize = 4;

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSet(u8);

impl LaneSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Returns the first `count` lanes, but at most [`LANES_MAX`].
    #[must_use]
    pub const fn first(count: u32) -> Self {
        if count >= LANES_MAX {
            Self(u8::MAX)
        } else {
            Self((1 << count) - 1)
        }
    }

    /// Returns the lanes whose bits are set.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns one bit per lane.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if `lane` is in the set.
    #[must_use]
    pub const fn has(self, lane: u32) -> bool {
        lane < LANES_MAX && self.0 & (1 << lane) != 0
    }

    /// Returns the set with `lane` added, which must be below [`LANES_MAX`].
    #[must_use]
    pub const fn with(self, lane: u32) -> Self {
        Self(self.0 | 1 << lane)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the set without the lanes of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the number of lanes.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns true if there are no lanes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the lanes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..LANES_MAX).filter(move |lane| self.has(*lane))
    }
}

/// Returns the lane for ordered traffic of a context, or `None` if there is no lane.
///
/// Both ranks of a pair compute the same lane. When a lane fails, only its own contexts move.
#[must_use]
pub fn home(context: u64, lanes: LaneSet) -> Option<u32> {
    let weight = |lane: &u32| SeededRandom::new(context ^ u64::from(*lane) << 56).bits();
    lanes.iter().max_by_key(weight)
}

/// Returns the context for all ordered traffic between two ranks. It is the same for both.
#[must_use]
pub fn pair(one: u32, other: u32) -> u64 {
    u64::from(one.max(other)) << 32 | u64::from(one.min(other))
}

/// Decides which adapters of the two ranks form lane 0, 1 and so on, from the bandwidths of both.
///
/// With equally many adapters on both sides, each has its own partner. Otherwise the faster ones of the side with fewer have
/// several. Both ranks compute the same lanes, at most [`LANES_MAX`], and none if a side has no adapter.
#[must_use]
pub fn pair_up(mine: &[u64], theirs: &[u64]) -> Vec<(usize, usize)> {
    if mine.is_empty() || theirs.is_empty() {
        return Vec::new();
    }
    let count = mine.len().max(theirs.len()).min(LANES_MAX as usize);
    if mine.len() == theirs.len() {
        return (0..count).map(|lane| (lane, lane)).collect();
    }
    let (mine, theirs) = (fastest_first(mine), fastest_first(theirs));
    let lanes = mine.iter().cycle().zip(theirs.iter().cycle());
    lanes
        .take(count)
        .map(|(one, other)| (*one, *other))
        .collect()
}

fn fastest_first(speeds: &[u64]) -> Vec<usize> {
    let mut order: Vec<_> = (0..speeds.len()).collect();
    order.sort_by_key(|adapter| std::cmp::Reverse(speeds[*adapter])); // stable: equal speeds stay in ascending order
    order
}
