//! Several adapters between two ranks, used as one. Pure: whoever owns it gives the adapters their commands.
//!
//! ```text
//!   Speeds, shares    how a length is best divided between lanes, or given to one         split
//!   Stripe            one long command: which lane moves which piece next, what is left   stripe
//!   Fences            which lanes of a pair still work, and which can do no more harm     fence
//!   home, pair_up     the lane of what is ordered; which adapter talks to which           here
//! ```
//!
//! A *lane* is a number below [`LANES_MAX`] that means the same way to both ranks of a pair.
//!
//! **Order.** Envelopes are ordered, bytes are not: all that must keep an order goes by one lane, the [`home`] of its context,
//! which both sides find without a word. Pieces of long commands go by all lanes, and the command is over when all have landed.
//!
//! **Failure.** What was under way on a lane that fails may still arrive, long after it was given up. So a piece of it goes out
//! again only when the lane is *fenced*: both ranks have closed it, and nothing that comes by it touches memory any more
//! ([`Fences`]). Until then the command is not over, and its memory is nobody else's.

mod fence;
mod split;
mod stripe;
#[cfg(test)]
mod tests;

pub use self::{
    fence::{Fences, Word},
    split::{PIECE_MIN, STRIPE_MIN, Speed, Speeds},
    stripe::{Piece, PieceId, Standing, Stripe},
};
use crate::random::Random;

/// The most lanes of a pair.
pub const LANES_MAX: u32 = 8;

/// The most adapters that drivers give a rank.
pub const RAILS_MAX: usize = 4;

/// Some lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSet(u8);

impl LaneSet {
    /// None.
    pub const EMPTY: Self = Self(0);

    /// The first `count` lanes, of [`LANES_MAX`] at most.
    #[must_use]
    pub const fn first(count: u32) -> Self {
        if count >= LANES_MAX {
            Self(u8::MAX)
        } else {
            Self((1 << count) - 1)
        }
    }

    /// The lanes whose bits are set.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// A bit for each lane.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether `lane` is one of them.
    #[must_use]
    pub const fn has(self, lane: u32) -> bool {
        lane < LANES_MAX && self.0 & (1 << lane) != 0
    }

    /// These and `lane`, which is below [`LANES_MAX`].
    #[must_use]
    pub const fn with(self, lane: u32) -> Self {
        Self(self.0 | 1 << lane)
    }

    /// The lanes of either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The lanes of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// These without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All of them, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..LANES_MAX).filter(move |lane| self.has(*lane))
    }
}

/// The lane of what must keep its order in a context: both ranks of a pair find the same one. When a lane fails, only its own
/// contexts move. `None` when no lane is left.
#[must_use]
pub fn home(context: u64, lanes: LaneSet) -> Option<u32> {
    let weight = |lane: &u32| Random::new(context ^ u64::from(*lane) << 56).bits();
    lanes.iter().max_by_key(weight)
}

/// The context of all that keeps its order between two ranks, who call it the same.
#[must_use]
pub fn pair(one: u32, other: u32) -> u64 {
    u64::from(one.max(other)) << 32 | u64::from(one.min(other))
}

/// Which adapter of the one rank and which of the other are lane 0, 1 and so on, from the bandwidths of both. With as many on
/// either side each has a partner of its own; else the faster ones of the fewer have more than one. Both ranks come to the same.
///
/// At most [`LANES_MAX`] lanes; none when a side has no adapter.
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
    order.sort_by_key(|adapter| std::cmp::Reverse(speeds[*adapter])); // stable: the lower number first
    order
}
