//! What goes wrong in a simulated cluster: which fault, when, and for which ranks.
//!
//! A [`FaultRule`] says what happens, when, and to which ranks. Whether it hits a packet is a pure function of the seed and of
//! the packet's place in its flow (the number of packets of its kind that went from the same rank to the same rank before). A run
//! can therefore be repeated, and a change at one end of a cluster does not change the random events at the other.
//!
//! ```
//! use ripstop_fabric::sim::Faults;
//!
//! let faults: Faults = "drop=0.3, dup=0.1, reorder=64, kill=3@2ms".parse()?;
//! assert!(faults.check(8, 1).is_ok());
//! let refused = faults.check(3, 1).unwrap_err();
//! assert_eq!(refused.to_string(), "faults.kill.rank: rank 3 does not exist on a cluster of 3: give 0 to 2");
//! # Ok::<(), ripstop_fabric::sim::ConfigError>(())
//! ```

mod file;
mod one_line;
#[cfg(test)]
mod tests;
mod text;

use std::ops::RangeInclusive;

use super::ConfigError;
use crate::random::SeededRandom;

/// A plan of faults. By default nothing goes wrong.
///
/// A plan is read from a line with [`parse`](str::parse), or from a file with [`from_toml`](Self::from_toml). In a line, faults
/// are separated by commas:
///
/// | fault | means |
/// |---|---|
/// | `drop=0.3` | three packets of ten are lost; `drop=#7`: the packet with number 7 (from 0) of every flow is lost |
/// | `dup=0.1` | a packet arrives twice; same forms |
/// | `corrupt=0.01` | bits are flipped; same forms |
/// | `delay=0.1:5us` | a packet arrives this much later; same forms |
/// | `reorder=64` | up to 64 later packets of a flow may overtake one |
/// | `partition=0-3\|4-7` | nothing passes between these ranks |
/// | `pause=2@1ms+300us` | the host of rank 2 stands still |
/// | `kill=3@2ms` | rank 3 ends without notifying its peers |
/// | `kill-rail=1` | rail 1 carries nothing |
/// | `slow-rail=0/4` | rail 0 is four times as slow |
/// | `slots=2` | every adapter has two receive slots |
///
/// `@1ms` after a fault is its start time, and `+500us` after that its duration. Times have a unit: ps, ns, us, ms or s. Packets
/// between any two different ranks can be hit, even on one node. Packets of a rank to itself cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// All faults. Several of them can hit the same packet.
    pub list: Vec<FaultRule>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Time in which the fault acts.
    pub timing: FaultTiming,
    /// Ranks and rails that the fault affects.
    pub scope: FaultScope,
}

/// Kind of a [`FaultRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// A packet is lost.
    Drop,
    /// A packet arrives twice.
    Duplicate,
    /// Up to this many later packets of its flow may overtake a packet.
    Reorder(u32),
    /// A packet arrives this many picoseconds later.
    Delay(u64),
    /// Bits of a packet are flipped.
    Corrupt,
    /// Nothing passes between [`FaultScope::from`] and [`FaultScope::to`], in either direction.
    Partition,
    /// The host of [`FaultScope::rank`] stands still; its adapter keeps running.
    Pause,
    /// [`FaultScope::rank`] ends without notifying its peers.
    KillRank,
    /// [`FaultScope::rail`] carries nothing.
    KillRail,
    /// Packets take this many times as long on [`FaultScope::rail`].
    SlowRail(u32),
    /// An adapter has this many receive slots.
    ///
    /// A message occupies one from its arrival until its host takes it. A sender whose message finds no slot is called later;
    /// without repair by the adapters, the message is lost.
    Slots(u32),
}

/// Time in which a [`FaultRule`] acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultTiming {
    /// Start time in picoseconds.
    pub at: u64,
    /// Duration in picoseconds; `u64::MAX` means forever.
    pub lasting: u64,
    /// Packets of that time that are hit.
    pub hits: FaultHits,
}

/// Packets that a [`FaultRule`] hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultHits {
    /// All packets.
    Every,
    /// The packet with this number in its flow, from 0. Retransmissions count, too.
    Nth(u64),
    /// Each packet with this probability.
    Chance(Probability),
}

/// A probability in billionths, which makes it the same number on all machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probability(u32);

/// Ranks and rails that a [`FaultRule`] affects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultScope {
    /// Senders of the packets; empty means all ranks.
    pub from: RankRanges,
    /// Receivers of the packets; empty means all ranks.
    pub to: RankRanges,
    /// The rank affected, for faults of one rank (`Pause`, `KillRank`) or limited to one (`Slots`).
    pub rank: Option<u32>,
    /// The rail affected, for faults of one rail or limited to packets on one.
    pub rail: Option<u32>,
}

/// A set of ranks. The empty set stands for all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankRanges(pub Vec<RangeInclusive<u32>>);

/// A packet about to cross the network.
#[derive(Clone, Copy, Debug)]
pub struct PacketCrossing {
    /// Sender of the packet.
    pub from: u32,
    /// Receiver of the packet.
    pub to: u32,
    /// Rail that the packet takes.
    pub rail: u32,
    /// Kind of the packet.
    pub flow: FlowKind,
    /// Packets of that kind that went from this sender to this receiver on this rail before.
    pub nth: u64,
    /// Time in picoseconds.
    pub at: u64,
    /// Shortest time between two packets of a flow, in picoseconds.
    pub spacing: u64,
}

/// Kind of a packet. Packets from one rank to another are numbered per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowKind {
    /// Messages, and the pieces of puts and gets.
    Packets,
    /// Answers of adapters to those.
    Answers,
    /// Messages about a connection.
    ConnectionMessages,
}

/// Faults of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketFate {
    /// True if the packet never arrives.
    pub lost: bool,
    /// Delay of the packet in picoseconds.
    pub delay: u64,
    /// Delay of a second copy of the packet in picoseconds, if there is one.
    pub copy_delay: Option<u64>,
    /// Damage to the packet, if any; see [`BitDamage::apply`].
    pub damage: Option<BitDamage>,
}

/// Selects the bits of a packet that are flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitDamage(u64);

/// A fault of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFault {
    /// Time in picoseconds.
    pub at: u64,
    /// Rank of the host.
    pub rank: u32,
    /// Time for which the host stands still, in picoseconds. `None` if it is killed.
    pub pause: Option<u64>,
}

impl Faults {
    /// Reads a file of `[[fault]]` tables.
    ///
    /// Each has `kind`, with the same names as in a line, and the fields that the fault needs or allows: `chance`, `nth`, `at`,
    /// `for`, `from`, `to`, `rank`, `rail`, `window`, `by`, `factor` and `slots`.
    ///
    /// ```
    /// # use ripstop_fabric::sim::Faults;
    /// let file = r#"
    ///     [[fault]]
    ///     what = "drop"
    ///     chance = 0.3
    ///     from = "0-3"
    ///     at = "1ms"
    ///     for = "500us"
    /// "#;
    /// assert_eq!(Faults::from_toml(file)?.list.len(), 1);
    /// # Ok::<(), ripstop_fabric::sim::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// Names the field, and its valid values.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        file::parse(text)
    }

    /// Returns true if nothing goes wrong.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns true if packets may be lost, duplicated or reordered, so that adapters must repair that.
    #[must_use]
    pub fn disturbs(&self) -> bool {
        let harmless = |fault: &FaultRule| {
            use FaultKind::{KillRank, Pause, Slots, SlowRail};
            matches!(fault.kind, KillRank | Pause | SlowRail(_) | Slots(_))
        };
        !self.list.iter().all(harmless)
    }

    /// Returns true if a rank may fall silent without its driver being notified.
    #[must_use]
    pub fn silences(&self) -> bool {
        let silent = |fault: &FaultRule| match fault.kind {
            FaultKind::KillRank | FaultKind::KillRail | FaultKind::Partition | FaultKind::Pause => {
                true
            }
            FaultKind::Drop | FaultKind::Corrupt => fault.timing.hits.are_most(),
            _ => false,
        };
        self.list.iter().any(silent)
    }

    /// Returns true if bits may be flipped, so that adapters must check all bits.
    #[must_use]
    pub fn corrupts(&self) -> bool {
        self.list
            .iter()
            .any(|fault| fault.kind == FaultKind::Corrupt)
    }

    /// Returns true if adapters may run out of receive slots.
    #[must_use]
    pub fn exhausts(&self) -> bool {
        let slots = |fault: &FaultRule| matches!(fault.kind, FaultKind::Slots(_));
        self.list.iter().any(slots)
    }

    /// Checks the plan against a cluster of `ranks` ranks and `rails` rails.
    ///
    /// # Errors
    /// Names the fault with a rank or a rail that does not exist.
    pub fn check(&self, ranks: u32, rails: u32) -> Result<(), ConfigError> {
        for fault in &self.list {
            fault.check(ranks, rails)?;
        }
        Ok(())
    }

    /// Decides what happens to a packet.
    #[must_use]
    pub fn judge(&self, packet: &PacketCrossing, seed: u64) -> PacketFate {
        let mut fate = PacketFate::default();
        for (fault, salt) in self.list.iter().zip(1..) {
            if fault.touches(packet) {
                let mut chance = packet.chance(seed, salt);
                if fault.timing.hits.hit(packet.nth, &mut chance) {
                    fault.kind.befall(&mut fate, packet, &mut chance);
                }
            }
        }
        fate
    }

    /// Returns true if a rail carries nothing at this time, in picoseconds.
    #[must_use]
    pub fn rail_is_dead(&self, rail: u32, now: u64) -> bool {
        let dead = |fault: &&FaultRule| {
            fault.kind == FaultKind::KillRail && fault.scope.rail == Some(rail)
        };
        self.list
            .iter()
            .filter(dead)
            .any(|fault| fault.timing.covers(now))
    }

    /// Returns how many times as slow a rail is at this time, in picoseconds. The result is 1 without faults.
    #[must_use]
    pub fn slowness(&self, rail: u32, now: u64) -> u32 {
        let acting = self.list.iter().filter(|fault| fault.timing.covers(now));
        let factor = |fault: &FaultRule| match fault.kind {
            FaultKind::SlowRail(factor) if fault.scope.rail == Some(rail) => Some(factor),
            _ => None,
        };
        acting.filter_map(factor).fold(1, u32::saturating_mul)
    }

    /// Returns how many receive slots the adapter of a rank has at this time, in picoseconds. `None` if they are not limited.
    #[must_use]
    pub fn slots(&self, rank: u32, now: u64) -> Option<u32> {
        let acting = self.list.iter().filter(|fault| fault.timing.covers(now));
        let slots = |fault: &FaultRule| match fault.kind {
            FaultKind::Slots(slots) if fault.scope.rank.is_none_or(|paused| paused == rank) => {
                Some(slots)
            }
            _ => None,
        };
        acting.filter_map(slots).min()
    }

    /// Returns the faults of hosts, in no particular order.
    pub fn host_faults(&self) -> impl Iterator<Item = HostFault> {
        self.list.iter().filter_map(|fault| {
            let pause = match fault.kind {
                FaultKind::Pause => Some(fault.timing.lasting),
                FaultKind::KillRank => None,
                _ => return None,
            };
            let (at, rank) = (fault.timing.at, fault.scope.rank?);
            Some(HostFault { at, rank, pause })
        })
    }
}

impl FaultRule {
    /// Returns true if the fault is about this packet.
    fn touches(&self, packet: &PacketCrossing) -> bool {
        let (from, to) = (&self.scope.from, &self.scope.to);
        let along = from.contains(packet.from) && to.contains(packet.to);
        let applies = match self.kind {
            FaultKind::Partition => along || from.contains(packet.to) && to.contains(packet.from),
            _ => along,
        };
        let rail = self.scope.rail.is_none_or(|rail| rail == packet.rail);
        applies && rail && self.timing.covers(packet.at)
    }

    fn check(&self, ranks: u32, rails: u32) -> Result<(), ConfigError> {
        let missing = match self.kind {
            FaultKind::Pause | FaultKind::KillRank if self.scope.rank.is_none() => Some("rank"),
            FaultKind::KillRail | FaultKind::SlowRail(_) if self.scope.rail.is_none() => {
                Some("rail")
            }
            FaultKind::Pause if self.timing.lasting == u64::MAX => Some("for"),
            FaultKind::SlowRail(0) => Some("factor"),
            FaultKind::Slots(0) => Some("slots"),
            _ => None,
        };
        if let Some(field) = missing {
            let field = format!("faults.{}.{field}", self.kind.name());
            return Err(ConfigError::new(field, "missing"));
        }
        let exists = |field: &str, what: &str, last: Option<u32>, count: u32| match last {
            Some(last) if last >= count => Err(ConfigError::new(
                format!("faults.{}.{field}", self.kind.name()),
                format!(
                    "{what} {last} does not exist on a cluster of {count}: give 0 to {}",
                    count - 1
                ),
            )),
            _ => Ok(()),
        };
        exists("rank", "rank", self.scope.rank, ranks)?;
        exists("from", "rank", self.scope.from.last(), ranks)?;
        exists("to", "rank", self.scope.to.last(), ranks)?;
        exists("rail", "rail", self.scope.rail, rails)
    }
}

impl FaultKind {
    /// Returns the name in files and lines.
    const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Duplicate => "dup",
            Self::Reorder(_) => "reorder",
            Self::Delay(_) => "delay",
            Self::Corrupt => "corrupt",
            Self::Partition => "partition",
            Self::Pause => "pause",
            Self::KillRank => "kill",
            Self::KillRail => "kill-rail",
            Self::SlowRail(_) => "slow-rail",
            Self::Slots(_) => "slots",
        }
    }

    /// Applies the fault to a packet.
    fn befall(self, fate: &mut PacketFate, packet: &PacketCrossing, chance: &mut SeededRandom) {
        match self {
            Self::Drop | Self::Partition | Self::KillRail => fate.lost = true,
            Self::Duplicate => {
                let spread = packet.spacing.saturating_mul(COPY_SPREAD);
                fate.copy_delay = Some(packet.spacing.saturating_add(chance.within(0..spread)));
            }
            Self::Reorder(window) => {
                // A packet that is late by k times the spacing is overtaken by at most k packets.
                let places = chance.within(0..u64::from(window) + 1);
                fate.delay = fate
                    .delay
                    .saturating_add(places.saturating_mul(packet.spacing));
            }
            Self::Delay(by) => fate.delay = fate.delay.saturating_add(by),
            Self::Corrupt => fate.damage = Some(BitDamage(chance.bits())),
            Self::Pause | Self::KillRank | Self::SlowRail(_) | Self::Slots(_) => {}
        }
    }
}

impl FaultTiming {
    /// From the start, forever, and for all packets.
    pub const ALWAYS: Self = Self {
        at: 0,
        lasting: u64::MAX,
        hits: FaultHits::Every,
    };

    /// Returns true if the fault acts at this time.
    const fn covers(&self, now: u64) -> bool {
        now >= self.at && (self.lasting == u64::MAX || now - self.at < self.lasting)
    }
}

impl FaultHits {
    /// Returns true if so many packets may be hit that no retransmission arrives in time.
    const fn are_most(self) -> bool {
        match self {
            Self::Every => true,
            Self::Nth(_) => false,
            Self::Chance(probability) => probability.0 > ALL_PARTS / 2,
        }
    }

    fn hit(self, nth: u64, chance: &mut SeededRandom) -> bool {
        match self {
            Self::Every => true,
            Self::Nth(number) => nth == number,
            Self::Chance(probability) => probability.hit(chance),
        }
    }
}

impl Probability {
    /// Returns a probability between 0 (never) and 1 (always), rounded to a billionth. `None` for any other number.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 1000 million"
    )]
    pub fn new(probability: f64) -> Option<Self> {
        let parts = probability * f64::from(ALL_PARTS) + 0.5;
        (0.0..=1.0)
            .contains(&probability)
            .then_some(Self(parts as u32))
    }

    fn hit(self, chance: &mut SeededRandom) -> bool {
        chance.within(0..u64::from(ALL_PARTS)) < u64::from(self.0)
    }
}

impl RankRanges {
    /// Returns a set of consecutive ranks.
    #[must_use]
    pub fn new(ranks: RangeInclusive<u32>) -> Self {
        Self(vec![ranks])
    }

    /// Returns true if a rank is in the set.
    #[must_use]
    pub fn contains(&self, rank: u32) -> bool {
        self.0.is_empty() || self.0.iter().any(|range| range.contains(&rank))
    }

    fn last(&self) -> Option<u32> {
        self.0.iter().map(|range| *range.end()).max()
    }
}

impl PacketCrossing {
    /// Returns the random numbers for one fault and this packet.
    const fn chance(&self, seed: u64, salt: u64) -> SeededRandom {
        let flow = (self.from as u64) << 32 | self.to as u64;
        let salt = salt << 16 | (self.flow as u64) << 8 | self.rail as u64;
        let seed = SeededRandom::new(seed ^ salt.wrapping_mul(SALT)).bits();
        let seed = SeededRandom::new(seed ^ flow).bits();
        SeededRandom::new(seed ^ self.nth.wrapping_mul(SALT))
    }
}

impl BitDamage {
    /// Flips one to three bits, unless there are no bytes.
    pub fn apply(self, bytes: &mut [u8]) {
        let mut chance = SeededRandom::new(self.0);
        let flips = if bytes.is_empty() { 0 } else { 1 + self.0 % 3 };
        for _ in 0..flips {
            let bit = chance.within(0..8 * bytes.len() as u64);
            if let Some(byte) = usize::try_from(bit / 8)
                .ok()
                .and_then(|at| bytes.get_mut(at))
            {
                *byte ^= 1 << (bit % 8);
            }
        }
    }
}

/// Most spacings by which a copy arrives after the original.
const COPY_SPREAD: u64 = 64;

const ALL_PARTS: u32 = 1_000_000_000;

/// An odd number with well-mixed bits, which spreads consecutive numbers.
const SALT: u64 = 0xd1b5_4a32_d192_ed03;
