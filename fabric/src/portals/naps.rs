//! When to ask again for what nobody tells of. Pure.
//!
//! A library does not say when it has room, or lets go of something; and a peer does not say that it has an entry by now. Whoever
//! waits for that sleeps, for a moment at first and then for longer and longer: so it sleeps no longer than it has waited anyway,
//! and 4 ms at the most. Who makes turns without a sleep asks in them.

/// The naps of a rank.
#[derive(Debug, Default)]
pub(super) struct Naps {
    /// Those in a row that lasted to their end.
    count: u32,
    /// When the one that has begun is over, in picoseconds.
    until: Option<u64>,
    /// Turns since the last one in which was asked for what costs a packet.
    turns: u32,
    /// In this turn is asked for that.
    asks: bool,
    /// So many turns could have been made in the nap that this one has ended.
    slept: u32,
    /// The same, until a refusal has counted for them.
    uncounted: u32,
}

impl Naps {
    /// A turn begins. `now` is asked for only when a nap has begun.
    pub(super) fn begin_turn(&mut self, now: impl FnOnce() -> u64) {
        self.slept = 0;
        if self.until.is_some_and(|until| now() >= until) {
            self.until = None;
            self.slept = NAP_US << self.count;
            self.count = (self.count + 1).min(LONGER_MAX);
        }
        self.uncounted = self.slept;
        self.turns += 1;
        self.asks = self.slept > 0 || self.turns >= PATIENCE;
        if self.asks {
            self.turns = 0;
        }
    }

    /// Something is waited for. When the nap is over that begins now, or has begun already.
    pub(super) fn begin(&mut self, now: u64) -> u64 {
        let len = PS_PER_US * u64::from(NAP_US << self.count);
        *self.until.get_or_insert_with(|| now.saturating_add(len))
    }

    /// Whether something was waited for, and nobody has said that this is over.
    pub(super) const fn have_begun(&self) -> bool {
        self.count > 0 || self.until.is_some()
    }

    /// Nothing is waited for.
    pub(super) const fn end(&mut self) {
        self.count = 0;
        self.until = None;
    }

    /// Whether this is a turn to ask for what costs a packet, or a call that will be refused again.
    pub(super) const fn asks(&self) -> bool {
        self.asks
    }

    /// For how many turns counts what is refused in this one.
    pub(super) const fn weight(&self) -> u32 {
        self.slept + 1
    }

    /// The same for what is asked for only in turns that [ask](Self::asks).
    pub(super) const fn weight_of_asking(&self) -> u32 {
        self.slept + PATIENCE
    }

    /// The same as [`weight`](Self::weight) for the first of all that is refused in this turn; the others count for one.
    pub(super) fn weight_once(&mut self) -> u32 {
        std::mem::take(&mut self.uncounted) + 1
    }
}

/// Sixty-four microseconds, which is what a sleep costs. A turn takes about one.
const NAP_US: u32 = 64;
/// Four milliseconds: what lasts longer waits for a peer, which may be dead or stopped.
const LONGER_MAX: u32 = 6;
const PS_PER_US: u64 = 1_000_000;
/// Turns between two looks for an entry at a peer, which costs both a packet; in which something ends that has what there is room
/// for.
const PATIENCE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::{Naps, PATIENCE, PS_PER_US};

    #[test]
    fn naps_are_longer_and_longer_until_nothing_is_waited_for() {
        let mut naps = Naps::default();
        let mut now = 5 * PS_PER_US;
        for us in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            let until = naps.begin(now);
            assert_eq!(until - now, us * PS_PER_US);
            naps.begin_turn(|| until - 1);
            assert!(!naps.asks() && naps.weight() == 1, "it is not over");
            assert_eq!(naps.begin(now + 1), until, "one begins in another");
            naps.begin_turn(|| until);
            assert!(naps.asks());
            assert_eq!(u64::from(naps.weight()), us + 1);
            assert_eq!(u64::from(naps.weight_once()), us + 1);
            assert_eq!(naps.weight_once(), 1, "counted twice");
            now = until;
        }
        naps.end();
        assert!(!naps.have_begun());
        assert_eq!(naps.begin(now) - now, 64 * PS_PER_US);
    }

    #[test]
    fn who_does_not_sleep_asks_in_a_turn_now_and_then_without_a_look_at_the_clock() {
        let mut naps = Naps::default();
        let asked = (0..10 * PATIENCE).filter(|_| {
            naps.begin_turn(|| panic!("nothing has begun"));
            naps.asks()
        });
        assert_eq!(asked.count(), 10);
    }
}
