//! Who copies to and from memory that this process maps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::Port;
use crate::{buffer::Wire, clock::Time, comm::Comm};

/// Who copies what is put to memory of the own node, or got from it.
///
/// It is a hint: it changes when a copy is made and by whom, and nothing else. Copies below 128 KiB are always the caller's:
/// less is copied in the time that it takes to wake it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// The agent, once the caller was seen to compute after its last copies and before it asked for their ends, for at least as
    /// long as each of them took; the caller, when it was seen to wait, and for a while when the agent found no processor.
    #[default]
    Auto,
    /// The caller, when it calls: the fastest where it would only wait for the copy.
    Caller,
    /// The progress agent, while the caller computes: a call returns at once. The agent needs a processor for that, and
    /// [`Runtime::agent_cpu`](crate::Runtime::agent_cpu) says how much of it. Where there is no agent, the caller copies.
    Agent,
}

/// What the caller of long copies does after them, as far as was seen.
#[derive(Debug, Default)]
pub(super) struct Habit {
    /// Copies in a row after which it computed. Below zero after the agent found no processor.
    computed: AtomicI32,
    /// What a KiB takes when the caller copies.
    ns_per_kib: AtomicU64,
}

/// A long copy whose end the caller has not asked for yet.
pub(super) struct Watched {
    habit: Arc<Habit>,
    comm: Comm,
    /// When the call returned.
    since: Time,
    /// What it takes, or took, to copy.
    copy: Duration,
    by_agent: bool,
}

impl<T: Wire> Port<T> {
    /// From now on.
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.overlap = overlap;
    }

    /// Whether so many bytes are for the agent.
    #[inline]
    pub(super) fn hands_over(&self, len: usize) -> bool {
        len >= HANDED_MIN && self.prefers_agent()
    }

    fn prefers_agent(&self) -> bool {
        let prefers = match self.overlap {
            Overlap::Auto => self.habit.computed.load(Relaxed) >= ENOUGH,
            Overlap::Caller => false,
            Overlap::Agent => true,
        };
        prefers && self.comm.shared().agent.is_there()
    }

    /// Has the caller `copy` so many bytes, and watches what it does then, if that matters.
    #[inline]
    pub(super) fn copy(&self, len: usize, copy: impl FnOnce()) -> Option<Watched> {
        if len < HANDED_MIN || self.overlap != Overlap::Auto {
            copy();
            return None;
        }
        let clock = &self.comm.shared().clock;
        let start = clock.now();
        copy();
        let took = clock.now().since(start);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let kib = u64::try_from(len >> 10).unwrap_or(u64::MAX);
        self.habit.ns_per_kib.store(nanos / kib.max(1), Relaxed);
        self.watch(took, false)
    }

    /// There is something for the agent to do. Watches what the caller does meanwhile, if that matters.
    pub(super) fn hurry(&self, len: usize) -> Option<Watched> {
        if !self.hands_over(len) {
            return None;
        }
        self.comm.shared().agent.hurry();
        let kib = u64::try_from(len >> 10).unwrap_or(u64::MAX);
        let nanos = self.habit.ns_per_kib.load(Relaxed).saturating_mul(kib);
        self.watch(Duration::from_nanos(nanos), true)
    }

    fn watch(&self, copy: Duration, by_agent: bool) -> Option<Watched> {
        let shared = self.comm.shared();
        let watched = || Watched {
            habit: Arc::clone(&self.habit),
            comm: self.comm.clone(),
            since: shared.clock.now(),
            copy,
            by_agent,
        };
        let matters = self.overlap == Overlap::Auto && shared.agent.is_there();
        matters.then(watched)
    }
}

impl Watched {
    /// The caller asks for its end for the first time; `done` says whether that has come.
    pub(super) fn asked(&self, done: bool) {
        let away = self.comm.shared().clock.now().since(self.since);
        self.habit.note(self.by_agent, done, away >= self.copy);
    }
}

impl Habit {
    /// The caller was `away` for as long as a copy takes, or not.
    fn note(&self, by_agent: bool, done: bool, away: bool) {
        let computed = self.computed.load(Relaxed);
        self.computed.store(
            match (by_agent, done) {
                (true, true) => ENOUGH,
                (true, false) if away => -PAUSE,
                (false, _) if away => (computed + 1).min(ENOUGH),
                _ => computed.min(0), // a pause goes on
            },
            Relaxed,
        );
    }
}

const HANDED_MIN: usize = 128 << 10;

/// Copies that show a habit: one may be followed by anything.
const ENOUGH: i32 = 2;

/// Copies until the agent is given another one, after it found no processor: few steps of a simulation.
const PAUSE: i32 = 16;

#[cfg(test)]
mod tests {
    use super::{ENOUGH, Habit, PAUSE, Relaxed};

    impl Habit {
        /// What it comes to after so many copies of one kind.
        fn after(&self, count: i32, kind: [bool; 3]) -> i32 {
            let [by_agent, done, away] = kind;
            (0..count).for_each(|_| self.note(by_agent, done, away));
            self.computed.load(Relaxed)
        }
    }

    const COMPUTES: [bool; 3] = [false, true, true];
    const WAITS: [bool; 3] = [false, true, false];

    #[test]
    fn who_computes_after_its_copies_again_and_again_has_a_habit_and_who_waits_once_has_none() {
        let habit = Habit::default();
        assert_eq!(habit.after(1, COMPUTES), 1);
        assert_eq!(habit.after(1, WAITS), 0);
        assert_eq!(habit.after(9, COMPUTES), ENOUGH);
        let [handed_and_done, handed_and_waited_for] = [[true, true, true], [true, false, false]];
        assert_eq!(habit.after(1, handed_and_done), ENOUGH);
        assert_eq!(habit.after(1, handed_and_waited_for), 0);
    }

    #[test]
    fn an_agent_that_finds_no_processor_is_left_in_peace_for_some_copies() {
        let habit = Habit::default();
        assert_eq!(habit.after(2, COMPUTES), ENOUGH);
        assert_eq!(habit.after(1, [true, false, true]), -PAUSE);
        assert_eq!(habit.after(1, WAITS), -PAUSE);
        assert_eq!(habit.after(PAUSE + 1, COMPUTES), 1);
    }
}
