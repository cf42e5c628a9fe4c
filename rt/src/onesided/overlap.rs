//! Decides which thread copies to and from memory that this process maps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::WindowEnd;
use crate::{buffer::Wire, clock::ClockTime, comm::Comm};

/// Choice of the thread that copies when data is put to memory of the same node, or got from it.
///
/// This is a hint: it changes only when a copy is made, and by which thread. The caller always makes copies below 128
/// KiB, because they take less time than waking the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// Decides by observation.
    ///
    /// The agent copies if the caller computed after its last copies, for at least as long as each copy took, before it
    /// asked for their ends. The caller copies if it was seen to wait, and for a while after the agent found no
    /// processor.
    #[default]
    Auto,
    /// The caller copies during the call, which is fastest if it would only wait for the copy.
    Caller,
    /// The progress agent copies while the caller computes, so a call returns immediately.
    ///
    /// The agent needs a processor for that, and [`RuntimeHandle::agent_cpu`](crate::RuntimeHandle::agent_cpu) returns
    /// how much it used. Without an agent, the caller copies.
    Agent,
}

/// Behavior of the caller after long copies, as far as observed.
#[derive(Debug, Default)]
pub(super) struct CopyHistory {
    /// Number of consecutive copies after which the caller computed. Negative after the agent found no processor.
    computed: AtomicI32,
    /// Time for a KiB when the caller copies, in nanoseconds.
    ns_per_kib: AtomicU64,
}

/// A long copy whose end the caller has not asked for yet.
pub(super) struct ObservedCopy {
    habit: Arc<CopyHistory>,
    comm: Comm,
    /// Time when the call returned.
    since: ClockTime,
    /// Expected or measured duration of the copy.
    copy: Duration,
    by_agent: bool,
}

impl<T: Wire> WindowEnd<T> {
    /// Sets which thread copies from now on.
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.overlap = overlap;
    }

    /// Returns true if the agent should copy this many bytes.
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
        prefers && self.comm.shared().agent.is_started()
    }

    /// Makes the caller `copy` this many bytes, and observes what it does then, if that matters.
    #[inline]
    pub(super) fn copy(&self, len: usize, copy: impl FnOnce()) -> Option<ObservedCopy> {
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

    /// Wakes the agent, which has something to do. Observes what the caller does meanwhile, if that matters.
    pub(super) fn wake_agent(&self, len: usize) -> Option<ObservedCopy> {
        if !self.hands_over(len) {
            return None;
        }
        self.comm.shared().agent.check_now();
        let kib = u64::try_from(len >> 10).unwrap_or(u64::MAX);
        let nanos = self.habit.ns_per_kib.load(Relaxed).saturating_mul(kib);
        self.watch(Duration::from_nanos(nanos), true)
    }

    fn watch(&self, copy: Duration, by_agent: bool) -> Option<ObservedCopy> {
        let shared = self.comm.shared();
        let watched = || ObservedCopy {
            habit: Arc::clone(&self.habit),
            comm: self.comm.clone(),
            since: shared.clock.now(),
            copy,
            by_agent,
        };
        let matters = self.overlap == Overlap::Auto && shared.agent.is_started();
        matters.then(watched)
    }
}

impl ObservedCopy {
    /// Called when the caller asks for the end for the first time. `done` is true if the copy has ended.
    pub(super) fn asked(&self, done: bool) {
        let away = self.comm.shared().clock.now().since(self.since);
        self.habit.note(self.by_agent, done, away >= self.copy);
    }
}

impl CopyHistory {
    /// Records an observation. `away` is true if the caller was away for at least the duration of a copy.
    fn note(&self, by_agent: bool, done: bool, away: bool) {
        let computed = self.computed.load(Relaxed);
        self.computed.store(
            match (by_agent, done) {
                (true, true) => ENOUGH,
                (true, false) if away => -PAUSE,
                (false, _) if away => (computed + 1).min(ENOUGH),
                _ => computed.min(0), // a pause continues
            },
            Relaxed,
        );
    }
}

const HANDED_MIN: usize = 128 << 10;

/// Number of copies that show a habit; a single one proves nothing.
const ENOUGH: i32 = 2;

/// Number of copies until the agent gets another one, after it found no processor. This is a few steps of a simulation.
const PAUSE: i32 = 16;

#[cfg(test)]
mod tests {
    use super::{CopyHistory, ENOUGH, PAUSE, Relaxed};

    impl CopyHistory {
        /// Returns the habit after `count` copies of one kind.
        fn after(&self, count: i32, kind: [bool; 3]) -> i32 {
            let [by_agent, done, away] = kind;
            (0..count).for_each(|_| self.note(by_agent, done, away));
            self.computed.load(Relaxed)
        }
    }

    const COMPUTES: [bool; 3] = [false, true, true];
    const WAITS: [bool; 3] = [false, true, false];

    #[test]
    fn computing_after_copies_repeatedly_is_a_habit_that_one_wait_ends() {
        let habit = CopyHistory::default();
        assert_eq!(habit.after(1, COMPUTES), 1);
        assert_eq!(habit.after(1, WAITS), 0);
        assert_eq!(habit.after(9, COMPUTES), ENOUGH);
        let [handed_and_done, handed_and_waited_for] = [[true, true, true], [true, false, false]];
        assert_eq!(habit.after(1, handed_and_done), ENOUGH);
        assert_eq!(habit.after(1, handed_and_waited_for), 0);
    }

    #[test]
    fn an_agent_that_finds_no_processor_is_left_in_peace_for_some_copies() {
        let habit = CopyHistory::default();
        assert_eq!(habit.after(2, COMPUTES), ENOUGH);
        assert_eq!(habit.after(1, [true, false, true]), -PAUSE);
        assert_eq!(habit.after(1, WAITS), -PAUSE);
        assert_eq!(habit.after(PAUSE + 1, COMPUTES), 1);
    }
}
