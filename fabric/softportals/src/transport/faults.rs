//! Injected network faults, reproducible from a seed.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::event::PhysicalId;

/// Faults and their probabilities, from 0 to 1 per datagram.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct DatagramFaults {
    /// Seed of the random numbers. The same seed does the same to the same datagrams.
    pub seed: u64,
    /// Probability that a datagram is lost.
    pub drop: f64,
    /// Probability that a datagram is duplicated.
    pub duplicate: f64,
    /// Probability that a datagram arrives after later ones.
    pub reorder: f64,
    /// Probability that the receiver refuses a datagram for lack of room.
    pub exhaust: f64,
    /// Delay of every datagram in microseconds.
    pub delay_us: u64,
}

impl DatagramFaults {
    /// Parses faults such as `drop=0.1,delay_us=200,seed=7`; the others stay zero. Returns `None` if a name or a number is wrong.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut faults = Self::default();
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (name, number) = pair.split_once('=')?;
            let number = number.trim();
            let chance = || {
                let chance: f64 = number.parse().ok()?;
                (0.0..1.0).contains(&chance).then_some(chance)
            };
            match name.trim() {
                "seed" => faults.seed = number.parse().ok()?,
                "drop" => faults.drop = chance()?,
                "duplicate" => faults.duplicate = chance()?,
                "reorder" => faults.reorder = chance()?,
                "exhaust" => faults.exhaust = chance()?,
                "delay_us" => faults.delay_us = number.parse().ok()?,
                _ => return None,
            }
        }
        Some(faults)
    }
}

/// Datagrams in flight through a faulty network.
#[derive(Debug)]
pub(super) struct FaultyNetwork {
    faults: DatagramFaults,
    state: u64,
    /// Datagrams by arrival time, then in the order sent.
    held: BTreeMap<(u64, u64), (PhysicalId, Vec<u8>)>,
    sent: u64,
}

impl FaultyNetwork {
    pub(super) const fn new(faults: DatagramFaults) -> Self {
        Self {
            state: faults.seed,
            faults,
            held: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Returns true if no faults are configured.
    pub(super) fn is_faultless(&self) -> bool {
        let DatagramFaults { seed, .. } = self.faults;
        let calm = DatagramFaults {
            seed,
            ..DatagramFaults::default()
        };
        self.faults == calm
    }

    /// Sends a datagram through the network.
    pub(super) fn push(&mut self, now: u64, to: PhysicalId, datagram: Vec<u8>) {
        if self.chance(self.faults.drop) {
            return;
        }
        if self.chance(self.faults.duplicate) {
            self.hold(now, to, datagram.clone());
        }
        self.hold(now, to, datagram);
    }

    fn hold(&mut self, now: u64, to: PhysicalId, datagram: Vec<u8>) {
        let late = match self.chance(self.faults.reorder) {
            true => self.next() % LATE_NS_MAX,
            false => 0,
        };
        let at = now + self.faults.delay_us.saturating_mul(1000) + late;
        self.sent += 1;
        self.held.insert((at, self.sent), (to, datagram));
    }

    /// Takes the next datagram that has arrived by now.
    pub(super) fn pop(&mut self, now: u64) -> Option<(PhysicalId, Vec<u8>)> {
        let first = self.held.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Returns the arrival time of the next datagram.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.held.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns true if the receiver lacks room this time.
    pub(super) fn exhausts(&mut self) -> bool {
        self.chance(self.faults.exhaust)
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "the high 53 bits are what a float holds"
    )]
    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Maximum extra delay of a reordered datagram, enough for a window of others to overtake it.
const LATE_NS_MAX: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::{DatagramFaults, FaultyNetwork, PhysicalId};

    #[test]
    fn faults_are_read_by_name() {
        let faults = DatagramFaults::parse("drop=0.25, delay_us=10,seed=3").expect("right");
        assert_eq!((faults.drop, faults.delay_us, faults.seed), (0.25, 10, 3));
        for wrong in ["drop", "drop=1", "drop=-0.1", "loss=0.1", "seed=x"] {
            assert_eq!(DatagramFaults::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn as_much_goes_wrong_as_was_asked_for_and_the_same_each_time() {
        let run = || {
            let text = "drop=0.2,duplicate=0.1,reorder=0.3,seed=9";
            let mut weather = FaultyNetwork::new(DatagramFaults::parse(text).expect("right"));
            let to = PhysicalId { nid: 1, pid: 1 };
            let mut seen = Vec::new();
            for number in 0..1000_u32 {
                weather.push(0, to, number.to_le_bytes().to_vec());
            }
            while let Some((_, datagram)) = weather.pop(u64::MAX) {
                seen.push(datagram);
            }
            seen
        };
        let seen = run();
        assert!((820..940).contains(&seen.len()), "{}", seen.len());
        assert!(!seen.is_sorted());
        assert_eq!(seen, run());
    }

    #[test]
    fn a_delay_keeps_the_order() {
        let mut weather = FaultyNetwork::new(DatagramFaults::parse("delay_us=5").expect("right"));
        assert!(
            !weather.is_faultless() && FaultyNetwork::new(DatagramFaults::default()).is_faultless()
        );
        let to = PhysicalId { nid: 1, pid: 1 };
        weather.push(100, to, vec![1]);
        weather.push(100, to, vec![2]);
        assert_eq!((weather.pop(5099), weather.deadline()), (None, Some(5100)));
        assert_eq!(weather.pop(5100), Some((to, vec![1])));
        assert_eq!(weather.pop(5100), Some((to, vec![2])));
    }
}
