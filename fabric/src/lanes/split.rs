//! How to divide a length between lanes of different speeds: the exact optimum if a lane needs a fixed time plus a time per byte
//! ("water-filling").

use super::{LANES_MAX, LaneSet};

/// Time that a lane needs for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSpeed {
    /// Fixed time of a piece in nanoseconds.
    pub latency_ns: u64,
    /// Bandwidth in bytes per microsecond (millions of bytes per second), at least 1.
    pub bytes_per_us: u64,
}

/// Speeds of a pair's lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSpeeds {
    lanes: Vec<LaneSpeed>,
}

impl LaneSpeeds {
    /// Makes the speeds of these lanes, in order. A bandwidth of 0 counts as 1.
    ///
    /// # Panics
    /// Panics if there are more than [`LANES_MAX`].
    #[must_use]
    pub fn new(lanes: &[LaneSpeed]) -> Self {
        assert!(
            lanes.len() <= LANES_MAX as usize,
            "{} lanes, but at most {LANES_MAX} are possible",
            lanes.len()
        );
        let at_least_one = |lane: &LaneSpeed| LaneSpeed {
            bytes_per_us: lane.bytes_per_us.max(1),
            ..*lane
        };
        Self {
            lanes: lanes.iter().map(at_least_one).collect(),
        }
    }

    /// Makes the speeds of `count` equal lanes.
    ///
    /// # Panics
    /// Panics if there are more than [`LANES_MAX`].
    #[must_use]
    pub fn equal(count: u32, speed: LaneSpeed) -> Self {
        Self::new(&vec![speed; count as usize])
    }

    /// Makes the speeds of adapters with these weights, each at least 1. Adapters with the greatest weight have the speed
    /// `fastest`. Without weights, there is one adapter.
    #[must_use]
    pub fn by_weight(fastest: LaneSpeed, weights: &[u32]) -> Self {
        let weights = if weights.is_empty() { &[1] } else { weights };
        let most = u64::from(weights.iter().copied().max().unwrap_or(1).max(1));
        let speed = |weight: &u32| LaneSpeed {
            bytes_per_us: fastest.bytes_per_us * u64::from(*weight) / most,
            ..fastest
        };
        Self::new(&weights.iter().map(speed).collect::<Vec<_>>())
    }

    /// Returns the set of all lanes.
    #[must_use]
    pub fn all(&self) -> LaneSet {
        LaneSet::first(u32::try_from(self.lanes.len()).unwrap_or(LANES_MAX))
    }

    /// Returns the bandwidth of a lane in bytes per microsecond, or 0 if there is no such lane.
    #[must_use]
    pub fn bytes_per_us(&self, lane: u32) -> u64 {
        let lane = self.lanes.get(lane as usize);
        lane.map_or(0, |lane| lane.bytes_per_us)
    }

    /// Returns how many of `len` bytes each of `lanes` should move so that all end at the same time.
    ///
    /// Lanes that would not help get nothing: those with less than a quarter of the fastest bandwidth, and those whose part would
    /// be shorter than [`PIECE_MIN`]. All parts except the last are whole pages. The result is empty without lanes.
    #[must_use]
    pub fn shares(&self, len: u64, lanes: LaneSet) -> Vec<(u32, u64)> {
        let mut lanes = self.fast_enough(lanes);
        loop {
            let parts = self.fill(len, &lanes);
            let short = parts.iter().filter(|(_, part)| *part < PIECE_MIN);
            let shortest = short.min_by_key(|(_, part)| *part).map(|(lane, _)| *lane);
            match shortest {
                Some(lane) if lanes.len() > 1 => lanes.retain(|other| *other != lane),
                _ => return whole_pages(len, parts),
            }
        }
    }

    /// Returns those of `lanes` that are not much slower than the others, in ascending order of latency.
    fn fast_enough(&self, lanes: LaneSet) -> Vec<u32> {
        let there = lanes.iter().filter(|lane| self.bytes_per_us(*lane) > 0);
        let mut lanes: Vec<_> = there.collect();
        let most = lanes.iter().map(|lane| self.bytes_per_us(*lane)).max();
        let least = most.unwrap_or(0).div_ceil(SLOWER_MAX);
        lanes.retain(|lane| self.bytes_per_us(*lane) >= least);
        lanes.sort_by_key(|lane| self.lanes[*lane as usize].latency_ns);
        lanes
    }

    /// Returns the parts of lanes, which are given in ascending order of latency. Lanes that would begin too late get nothing.
    fn fill(&self, len: u64, lanes: &[u32]) -> Vec<(u32, u64)> {
        // With the lanes considered so far, all end at (len + Σ latency·rate) / Σ rate. The factor of 1000 converts between
        // nanoseconds and bytes per microsecond.
        let (mut weighted, mut rate) = (u128::from(len) * 1000, 0_u128);
        let mut busy = Vec::new();
        for lane in lanes {
            let speed = self.lanes[*lane as usize];
            let latency = u128::from(speed.latency_ns);
            if rate > 0 && weighted / rate <= latency {
                break;
            }
            weighted += latency * u128::from(speed.bytes_per_us);
            rate += u128::from(speed.bytes_per_us);
            busy.push(*lane);
        }
        let end = weighted / rate.max(1);
        let part = |lane: &u32| {
            let speed = self.lanes[*lane as usize];
            let time = end.saturating_sub(u128::from(speed.latency_ns));
            let part = time * u128::from(speed.bytes_per_us) / 1000;
            (*lane, u64::try_from(part).unwrap_or(u64::MAX).min(len))
        };
        busy.iter().map(part).collect()
    }
}

/// Rounds the parts down to whole pages; the last part takes the rest.
fn whole_pages(len: u64, mut parts: Vec<(u32, u64)>) -> Vec<(u32, u64)> {
    let Some((last, others)) = parts.split_last_mut() else {
        return parts;
    };
    let mut left = len;
    for (_, part) in others {
        *part = (*part / PAGE * PAGE).min(left);
        left -= *part;
    }
    last.1 = left;
    parts
}

/// Shortest piece in bytes that is worth its own command.
pub const PIECE_MIN: u64 = 32 << 10;
/// Commands shorter than this many bytes go through one lane.
pub const STRIPE_MIN: u64 = 2 * PIECE_MIN;
/// A lane slower than the fastest by more than this factor costs more in waiting than it gains.
const SLOWER_MAX: u64 = 4;
/// Pieces begin at multiples of this many bytes where possible.
pub(super) const PAGE: u64 = 4096;
