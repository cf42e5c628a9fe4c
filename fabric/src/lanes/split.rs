//! How a length is best divided between lanes of different speed: the exact optimum where a lane needs a fixed time and a time
//! for each byte (spec P5, "water-filling").

use super::{LANES_MAX, LaneSet};

/// What a lane needs for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// The fixed time of a piece, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes per microsecond, at least 1: a million bytes per second each.
    pub bytes_per_us: u64,
}

/// The speeds of a pair's lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speeds {
    lanes: Vec<Speed>,
}

impl Speeds {
    /// In the order of lanes. A bandwidth of 0 counts as 1.
    ///
    /// # Panics
    /// With more than [`LANES_MAX`].
    #[must_use]
    pub fn new(lanes: &[Speed]) -> Self {
        assert!(
            lanes.len() <= LANES_MAX as usize,
            "{} lanes, and {LANES_MAX} can be",
            lanes.len()
        );
        let at_least_one = |lane: &Speed| Speed {
            bytes_per_us: lane.bytes_per_us.max(1),
            ..*lane
        };
        Self {
            lanes: lanes.iter().map(at_least_one).collect(),
        }
    }

    /// So many lanes of one speed.
    ///
    /// # Panics
    /// With more than [`LANES_MAX`].
    #[must_use]
    pub fn equal(count: u32, speed: Speed) -> Self {
        Self::new(&vec![speed; count as usize])
    }

    /// Of adapters that weigh so much, at least 1: those of the greatest weight are as fast as this. No weights are those of one.
    #[must_use]
    pub fn by_weight(fastest: Speed, weights: &[u32]) -> Self {
        let weights = if weights.is_empty() { &[1] } else { weights };
        let most = u64::from(weights.iter().copied().max().unwrap_or(1).max(1));
        let speed = |weight: &u32| Speed {
            bytes_per_us: fastest.bytes_per_us * u64::from(*weight) / most,
            ..fastest
        };
        Self::new(&weights.iter().map(speed).collect::<Vec<_>>())
    }

    /// All lanes.
    #[must_use]
    pub fn all(&self) -> LaneSet {
        LaneSet::first(u32::try_from(self.lanes.len()).unwrap_or(LANES_MAX))
    }

    /// Bytes per microsecond of a lane; 0 of one that there is not.
    #[must_use]
    pub fn bytes_per_us(&self, lane: u32) -> u64 {
        let lane = self.lanes.get(lane as usize);
        lane.map_or(0, |lane| lane.bytes_per_us)
    }

    /// What each of `lanes` should move of `len` bytes so that all end at the same time, as pairs of a lane and its bytes, and
    /// nothing for lanes that would not help: those slower than a quarter of the fastest, and those whose part would be shorter
    /// than [`PIECE_MIN`]. Empty without lanes. Whole pages but for the last.
    #[must_use]
    pub fn shares(&self, len: u64, lanes: LaneSet) -> Vec<(u32, u64)> {
        let mut lanes = self.quick(lanes);
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

    /// Those of `lanes` that are not much slower than the others; the one with the least latency first.
    fn quick(&self, lanes: LaneSet) -> Vec<u32> {
        let there = lanes.iter().filter(|lane| self.bytes_per_us(*lane) > 0);
        let mut lanes: Vec<_> = there.collect();
        let most = lanes.iter().map(|lane| self.bytes_per_us(*lane)).max();
        let least = most.unwrap_or(0).div_ceil(SLOWER_MAX);
        lanes.retain(|lane| self.bytes_per_us(*lane) >= least);
        lanes.sort_by_key(|lane| self.lanes[*lane as usize].latency_ns);
        lanes
    }

    /// The parts of lanes in the order of their latencies: those that begin too late have nothing to do.
    fn fill(&self, len: u64, lanes: &[u32]) -> Vec<(u32, u64)> {
        // The end of all, with the lanes looked at so far, is (len + Σ latency·rate) / Σ rate; in nanoseconds and bytes per
        // microsecond a factor of 1000 comes in.
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

/// The same parts in whole pages; the last takes the rest.
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

/// The shortest piece that is worth a command of its own.
pub const PIECE_MIN: u64 = 32 << 10;
/// Shorter commands go by one lane.
pub const STRIPE_MIN: u64 = 2 * PIECE_MIN;
/// A lane slower than the fastest by more than this costs more in waiting than it brings.
const SLOWER_MAX: u64 = 4;
/// Pieces begin at these where they can.
pub(super) const PAGE: u64 = 4096;
