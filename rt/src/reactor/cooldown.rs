//! Decides whether to spin, yield the processor, or sleep after a turn without events. Pure state machine.

use std::time::Duration;

use crate::clock::ClockTime;

/// Spins for a moment and then parks. Waking up costs tens of microseconds, so it is worth spinning for an answer that
/// arrives sooner.
///
/// A *wait* begins with the first empty turn and ends with [`reset`](Self::reset). In one wait, the result is `Spin` or
/// `Yield` a bounded number of times, and then always `Park`.
///
/// If the awaited peer runs on this processor, spinning only delays the answer. The peer may be in another container or on
/// another host of namespaces, so nothing says where it runs, and yielding the processor does not reach it. What shows it is that
/// the spinning is in vain and the answer comes soon after this thread sleeps. After a few such waits the thread *rests*: it
/// sleeps without spinning. After some rests it tries the spinning again, more and more rarely as long as that is in vain.
#[derive(Debug)]
pub(crate) struct Cooldown {
    spin_max: Duration,
    /// Moving average of the duration of waits, in nanoseconds. Each wait counts as at most [`SAMPLE_SPINS_MAX`] times
    /// `spin_max`.
    wait_nanos: u64,
    /// Empty turns in this wait.
    turns: u32,
    /// Time of the first clock reading in this wait.
    since: Option<ClockTime>,
    /// Reason why this wait came to sleep. `None` before it sleeps.
    parked: Option<ParkReason>,
    /// Number of waits that were spun in vain and ended soon after. An answer to a spinning thread halves the number.
    vain: u32,
    /// Number of short waits that still sleep without spinning.
    rests: u32,
}

/// Reason why a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParkReason {
    /// The thread has spun for as long as it may.
    Spun,
    /// The thread rests.
    Rests,
    /// Waits are long, or peers share the processor, or the thread may not spin.
    Useless,
}

/// Action before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum CooldownAction {
    /// Make the next turn immediately.
    Spin,
    /// Yield this processor to another thread, then make the next turn.
    Yield,
    /// Arm the driver and sleep.
    Park,
}

/// Returns how long a wait spins before it sleeps, on a machine where it takes `wake_cost` (at most 10 ms is counted) to wake a
/// sleeping thread.
pub(crate) fn longest_spin(wake_cost: Duration) -> Duration {
    wake_cost.min(Duration::from_millis(10)) * SPIN_WAKES_MAX
}

impl Cooldown {
    /// Creates a state machine for a machine where it takes `wake_cost` to wake a sleeping thread.
    pub(crate) fn new(wake_cost: Duration) -> Self {
        Self {
            spin_max: longest_spin(wake_cost),
            wait_nanos: 0,
            turns: 0,
            since: None,
            parked: None,
            vain: 0,
            rests: 0,
        }
    }

    /// Returns the action after an empty turn. `oversubscribed` is true if a peer may need this processor for the next
    /// step. Calls `now` rarely.
    pub(crate) fn after_empty(
        &mut self,
        oversubscribed: bool,
        now: impl FnOnce() -> ClockTime,
    ) -> CooldownAction {
        if self.parked.is_some() {
            return CooldownAction::Park; // the sleep ended without a cause
        }
        self.turns += 1;
        if self.spin_max.is_zero() {
            return self.park(ParkReason::Useless, now());
        }
        if oversubscribed {
            return self.step_aside(now);
        }
        if self.is_resting() {
            return self.park(ParkReason::Rests, now());
        }
        if !self.turns.is_multiple_of(TURNS_PER_LOOK) {
            return CooldownAction::Spin;
        }
        self.look(now())
    }

    /// Returns true between the first empty turn and [`reset`](Self::reset).
    pub(crate) const fn is_waiting(&self) -> bool {
        self.turns > 0
    }

    /// Returns true if waits sleep without spinning, because spinning was in vain.
    pub(crate) const fn is_resting(&self) -> bool {
        self.rests > 0
    }

    /// Ends the wait after a turn with events. Calls `now` only if the wait was not a short one.
    pub(crate) fn reset(&mut self, now: impl FnOnce() -> ClockTime) {
        if !self.is_waiting() {
            return;
        }
        let mut waited = self
            .since
            .map_or(Duration::ZERO, |since| now().since(since));
        self.judge_spinning(waited);
        if self.parked.is_some() {
            // The sleep itself made the wait longer, by about the time that the thread would have spun. Without this
            // correction, waits that include a sleep would always count as long.
            waited = waited.saturating_sub(self.spin_max);
        }
        let sample = nanos(waited.min(self.spin_max * SAMPLE_SPINS_MAX));
        self.wait_nanos = (self.wait_nanos * (SAMPLES - 1) + sample) / SAMPLES;
        (self.turns, self.since, self.parked) = (0, None, None);
    }

    /// Learns from a wait whether spinning is in vain.
    fn judge_spinning(&mut self, waited: Duration) {
        let is_soon = waited <= self.spin_max * SOON_SPINS_MAX;
        match self.parked {
            None => self.vain /= 2,
            Some(ParkReason::Spun) if is_soon => {
                self.vain = (self.vain + 1).min(VAIN_MAX);
                let doublings = self.vain.checked_sub(VAIN_MIN);
                self.rests = doublings.map_or(0, |doublings| RESTS_MIN << doublings);
            }
            Some(ParkReason::Rests) if is_soon => self.rests = self.rests.saturating_sub(1),
            Some(_) => {}
        }
    }

    fn step_aside(&mut self, now: impl FnOnce() -> ClockTime) -> CooldownAction {
        let turns_max = if self.waits_are_long() {
            YIELDS_MIN
        } else {
            YIELDS_MAX
        };
        if self.turns <= turns_max {
            CooldownAction::Yield
        } else {
            self.park(ParkReason::Useless, now())
        }
    }

    fn look(&mut self, now: ClockTime) -> CooldownAction {
        let spun = now.since(*self.since.get_or_insert(now));
        if spun >= self.spin_max || self.turns >= TURNS_MAX {
            return self.park(ParkReason::Spun, now);
        }
        if self.waits_are_long() {
            return self.park(ParkReason::Useless, now);
        }
        CooldownAction::Spin
    }

    fn park(&mut self, why: ParkReason, now: ClockTime) -> CooldownAction {
        self.parked = Some(why);
        let _ = self.since.get_or_insert(now);
        CooldownAction::Park
    }

    fn waits_are_long(&self) -> bool {
        self.wait_nanos > nanos(self.spin_max)
    }
}

/// 40 µs to wake a thread, so up to 80 µs of spinning.
impl Default for Cooldown {
    fn default() -> Self {
        Self::new(WAKE_COST)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("`new` keeps it far below 584 years")
}

/// Measured: 26 to 38 µs to wake a thread on an idle processor of a virtual machine, which is the most expensive case.
const WAKE_COST: Duration = Duration::from_micros(40);

/// Spinning for as long as the sleep would have cost is at most twice as bad as knowing the future. A wake-up also
/// costs the waking thread, so the factor is 2.
const SPIN_WAKES_MAX: u32 = 2;

/// A clock reading costs about as much as an empty turn (25 ns), so this makes it 3 % of the spinning.
const TURNS_PER_LOOK: u32 = 32;

/// Bounds the spinning if the clock stands still (in a simulation). At 25 ns per turn, this is ten times the default
/// `spin_max`.
const TURNS_MAX: u32 = 32_768;

/// Empty turns that yield the processor. With 8 ranks on 2 processors, each of three other ranks runs between two
/// turns, so a message can pass around the ring several times. A yield without another runnable thread costs 0.3 µs.
const YIELDS_MAX: u32 = 60;

/// Same, if recent waits were long: each rank of a processor shared by four gets one chance to run.
const YIELDS_MIN: u32 = 4;

/// Number of waits in the moving average.
const SAMPLES: u64 = 8;

/// Maximum that one long wait may count, in multiples of `spin_max`. After three long waits, waits count as long; after
/// ten to eleven short ones, they count as short again.
const SAMPLE_SPINS_MAX: u32 = 4;

/// A wait ends soon if it is at most so many times as long as `spin_max`: this thread spins for one, and a peer on the same
/// processor may then spin for one in a poll and for one in a wait.
const SOON_SPINS_MAX: u32 = 3;

/// Number of waits, spun in vain, after which a thread rests. One or two occur in any program whose ranks are not in step.
const VAIN_MIN: u32 = 3;

/// Bounds the rests at 1024. A peer that gets a processor of its own is noticed after as many short waits, each of which costs a
/// wake-up: about 40 ms together.
const VAIN_MAX: u32 = 10;

/// Rests between the first two trials of spinning.
const RESTS_MIN: u32 = 8;

#[cfg(test)]
mod tests {
    use super::{
        Cooldown, CooldownAction, RESTS_MIN, SAMPLE_SPINS_MAX, TURNS_MAX, TURNS_PER_LOOK, VAIN_MAX,
        VAIN_MIN, WAKE_COST, YIELDS_MAX, YIELDS_MIN,
    };
    use crate::clock::{Clock, ClockTime};
    use proptest::prelude::{any, prop, proptest};
    use std::time::Duration;

    /// Returns the number of empty turns, of 100 ns each, until the state machine parks.
    fn turns_until_park(cooldown: &mut Cooldown, oversubscribed: bool, clock: &Clock) -> u32 {
        let mut turns = 0;
        while cooldown.after_empty(oversubscribed, || clock.now()) != CooldownAction::Park {
            clock.advance(Duration::from_nanos(100));
            turns += 1;
        }
        turns
    }

    /// Waits for peers on other processors, which answer after `length` whatever this thread does.
    fn waits(cooldown: &mut Cooldown, clock: &Clock, count: u32, length: Duration) {
        for _ in 0..count {
            let start = clock.now();
            let waited = || clock.now().since(start);
            while waited() < length
                && cooldown.after_empty(false, || clock.now()) != CooldownAction::Park
            {
                clock.advance(Duration::from_nanos(100));
            }
            clock.advance(length.saturating_sub(waited()));
            cooldown.reset(|| clock.now());
        }
    }

    /// Waits for a peer that runs only while this thread sleeps, and that then answers after `answer`. Returns true if this
    /// thread has slept without spinning.
    fn wait_on_one_processor(cooldown: &mut Cooldown, clock: &Clock, answer: Duration) -> bool {
        let turns = turns_until_park(cooldown, false, clock);
        clock.advance(answer);
        cooldown.reset(|| clock.now());
        turns == 0
    }

    #[test]
    fn a_peer_on_the_same_processor_is_waited_for_without_spinning_after_three_waits() {
        // The peer answers at once, or spins itself before it sleeps.
        for answer in [Duration::from_micros(5), WAKE_COST * 2] {
            let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
            let rested: Vec<bool> = (0..VAIN_MIN + RESTS_MIN + 1)
                .map(|_| wait_on_one_processor(&mut cooldown, &clock, answer))
                .collect();
            let expected: Vec<bool> = (0..VAIN_MIN + RESTS_MIN + 1)
                .map(|wait| (VAIN_MIN..VAIN_MIN + RESTS_MIN).contains(&wait))
                .collect();
            assert_eq!(rested, expected, "answers after {answer:?}");
        }
    }

    #[test]
    fn spinning_in_vain_is_tried_more_and_more_rarely_but_always_again() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        let mut rests = Vec::new();
        for _ in 0..VAIN_MIN + 9 {
            let is_spun = !wait_on_one_processor(&mut cooldown, &clock, Duration::from_micros(5));
            assert!(is_spun, "a trial after {rests:?} rests");
            let mut count = 0_u32;
            while cooldown.is_resting() {
                assert!(wait_on_one_processor(
                    &mut cooldown,
                    &clock,
                    Duration::from_micros(5)
                ));
                count += 1;
            }
            rests.push(count);
        }
        let most = RESTS_MIN << (VAIN_MAX - VAIN_MIN);
        assert_eq!(rests[..4], [0, 0, RESTS_MIN, 2 * RESTS_MIN]);
        assert_eq!(rests[rests.len() - 2..], [most, most]);
    }

    #[test]
    fn trials_that_are_answered_bring_the_spinning_back() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        for _ in 0..5000 {
            wait_on_one_processor(&mut cooldown, &clock, Duration::from_micros(5));
        }
        while cooldown.is_resting() {
            wait_on_one_processor(&mut cooldown, &clock, Duration::from_micros(5));
        }
        waits(&mut cooldown, &clock, 4, Duration::from_micros(20));
        // What was learned is forgotten: as many waits as at first have to be in vain again.
        for _ in 1..VAIN_MIN {
            assert!(!wait_on_one_processor(&mut cooldown, &clock, WAKE_COST));
            assert!(!cooldown.is_resting());
        }
    }

    #[test]
    fn a_peer_that_computes_for_long_now_and_then_does_not_stop_the_spinning() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        for _ in 0..100 {
            waits(&mut cooldown, &clock, 1, Duration::from_millis(1));
            assert!(!cooldown.is_resting());
            waits(&mut cooldown, &clock, 8, Duration::from_micros(20));
        }
        assert!(turns_until_park(&mut cooldown, false, &clock) > 10 * TURNS_PER_LOOK);
    }

    #[test]
    fn a_lone_peer_is_waited_for_by_spinning_twice_the_wake_cost() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        let _ = turns_until_park(&mut cooldown, false, &clock);
        let (spun, slack) = (
            clock.now().since(ClockTime::default()),
            Duration::from_nanos(100) * 2 * TURNS_PER_LOOK,
        );
        assert!(
            spun >= WAKE_COST * 2 && spun <= WAKE_COST * 2 + slack,
            "spun {spun:?}"
        );
    }

    #[test]
    fn a_crowded_core_is_given_away_a_bounded_number_of_times() {
        assert_eq!(
            turns_until_park(&mut Cooldown::default(), true, &Clock::manual()),
            YIELDS_MAX
        );
    }

    #[test]
    fn one_long_wait_changes_nothing_and_three_make_it_park_early() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        waits(&mut cooldown, &clock, 1, Duration::from_secs(5));
        assert!(turns_until_park(&mut cooldown, false, &clock) > 10 * TURNS_PER_LOOK);
        clock.advance(Duration::from_secs(5));
        cooldown.reset(|| clock.now());
        waits(&mut cooldown, &clock, 1, Duration::from_secs(5));
        assert_eq!(
            turns_until_park(&mut cooldown, false, &clock),
            TURNS_PER_LOOK - 1
        );
    }

    #[test]
    fn a_thread_that_may_not_spin_parks_after_the_first_empty_turn() {
        for oversubscribed in [false, true] {
            let (mut cooldown, clock) = (Cooldown::new(Duration::ZERO), Clock::manual());
            assert_eq!(turns_until_park(&mut cooldown, oversubscribed, &clock), 0);
        }
    }

    #[test]
    fn long_waits_shorten_the_yielding_too() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        waits(&mut cooldown, &clock, 3, Duration::from_secs(5));
        assert_eq!(turns_until_park(&mut cooldown, true, &clock), YIELDS_MIN);
    }

    #[test]
    fn short_waits_bring_the_spinning_back() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        waits(&mut cooldown, &clock, 100, Duration::from_secs(5));
        waits(
            &mut cooldown,
            &clock,
            4 * SAMPLE_SPINS_MAX,
            Duration::from_micros(20),
        );
        assert!(turns_until_park(&mut cooldown, false, &clock) > 10 * TURNS_PER_LOOK);
    }

    #[test]
    fn a_sleep_that_ended_without_cause_is_resumed_at_once() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        let _ = turns_until_park(&mut cooldown, false, &clock);
        assert_eq!(
            cooldown.after_empty(false, || clock.now()),
            CooldownAction::Park
        );
    }

    #[test]
    fn a_turn_that_moved_something_costs_no_look_at_the_clock() {
        let mut cooldown = Cooldown::default();
        cooldown.reset(|| unreachable!("no wait to measure"));
        for _ in 1..TURNS_PER_LOOK {
            assert_eq!(
                cooldown.after_empty(false, || unreachable!("too early")),
                CooldownAction::Spin
            );
        }
        cooldown.reset(|| unreachable!("too short to measure"));
    }

    #[test]
    fn a_clock_that_stands_still_is_no_reason_to_spin_for_ever() {
        let (mut cooldown, clock) = (Cooldown::default(), Clock::manual());
        let turns =
            (1..).find(|_| cooldown.after_empty(false, || clock.now()) == CooldownAction::Park);
        assert_eq!(turns, Some(TURNS_MAX));
    }

    proptest! {
        #[test]
        fn whatever_happened_before_the_spinning_of_one_wait_is_bounded(
            wake_us in 0_u64..200,
            history in prop::collection::vec((0_u64..10_000_000, any::<bool>()), 0..40),
            crowded in prop::collection::vec(any::<bool>(), 1..50),
        ) {
            let (mut cooldown, clock) = (Cooldown::new(Duration::from_micros(wake_us)), Clock::manual());
            for (nanos, oversubscribed) in history {
                let _ = cooldown.after_empty(oversubscribed, || clock.now());
                clock.advance(Duration::from_nanos(nanos));
                cooldown.reset(|| clock.now());
            }
            let (start, step) = (clock.now(), Duration::from_nanos(100));
            for oversubscribed in crowded.iter().cycle() {
                if cooldown.after_empty(*oversubscribed, || clock.now()) == CooldownAction::Park {
                    break;
                }
                clock.advance(step);
            }
            let slack = step * (2 * TURNS_PER_LOOK * 50 + YIELDS_MAX);
            assert!(clock.now().since(start) <= Duration::from_micros(2 * wake_us) + slack);
        }
    }
}
