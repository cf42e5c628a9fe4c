//! Counts that this rank and one neighbor keep of each other at one window, shared by the engine and the application's threads.
//!
//! If the neighbor's counters are mapped here, epochs begin and end through these words alone. The engine, its lock and its
//! turns have no part in that.
//!
//! Budget of an epoch whose neighbors come in time: no allocation, no system call, no lock (checked by
//! `tests/budget_windows.rs`).
//!
//! Writers of each field:
//! - `posts`: the thread that has the window
//! - `accesses`, and the neighbor's counter of completions: the thread whose access is in progress
//! - the counts by message, and `down`: the engine

use std::sync::{
    OnceLock,
    atomic::{
        AtomicBool, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

use ripstop_fabric::offload::LocalCounter;

use super::counter_pairs::LocalCounterPair;

/// Counts of this rank and one neighbor.
#[derive(Default)]
pub(crate) struct EpochCounters {
    /// This rank's counters, to which the neighbor adds.
    local_pair: OnceLock<LocalCounterPair>,
    /// The neighbor's counters, to which this rank adds, as this process maps them.
    mapped_pair: OnceLock<MappedCounterPair>,
    /// Exposures that this rank has opened to the neighbor.
    posts: AtomicU64,
    /// This rank's exposures that the neighbor has completed, as far as messages say.
    noted_completed: AtomicU64,
    /// Exposures that the neighbor has opened to this rank, as far as messages say.
    noted_posted: AtomicU64,
    /// Twice the number of the neighbor's exposures that this rank has accessed, plus one while the last access is in progress.
    accesses: AtomicU64,
    /// This rank's operations in flight on the neighbor's memory that go through the engine.
    in_flight: AtomicU32,
    /// True while this rank holds the lock of the neighbor's memory.
    inside: AtomicBool,
    /// True once the neighbor is down. Threads then go to the engine, which returns the error.
    down: AtomicBool,
    /// True once the runtime is closed and may begin no further access.
    ended: AtomicBool,
}

/// Bit of `accesses` that is set while the last access is in progress.
const UNDER_WAY: u64 = 1;
/// Amount added to `accesses` when an access begins.
const BEGIN: u64 = 2 + UNDER_WAY;

/// A neighbor's counters, mapped so that this process can add to them.
pub(super) struct MappedCounterPair {
    pub(super) posted: LocalCounter,
    pub(super) completed: LocalCounter,
}

/// Result of notifying a neighbor without the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum NotifyResult {
    /// The neighbor will see the new count.
    Delivered,
    /// The neighbor may be asleep and must be woken.
    NeedsWakeup,
    /// The neighbor was not notified; the engine must do that.
    NotSent,
}

/// Calls that an application makes without the engine.
impl EpochCounters {
    /// Opens this end to the neighbor once more.
    #[inline]
    pub(crate) fn post(&self) -> NotifyResult {
        let Some(theirs) = self.mapped() else {
            return NotifyResult::NotSent;
        };
        // Count first: the neighbor may access this rank's memory as soon as it sees the increment, and `WindowAccessGuard`
        // checks this count then.
        self.add_post();
        let said = theirs.posted.add_one().into();
        // Prefetch the counter that this rank adds to next, while the neighbor is busy with its access.
        theirs.completed.prefetch();
        said
    }

    /// Ends the access that [`begin`](Self::begin) has begun.
    #[inline]
    pub(crate) fn complete(&self) -> NotifyResult {
        let theirs = self.mapped().filter(|_| self.is_quiet());
        let Some(theirs) = theirs else {
            return NotifyResult::NotSent;
        };
        let said = theirs.completed.add_one().into();
        theirs.posted.prefetch();
        // This comes last, because another thread may begin its access then, and `add_one` is not atomic.
        self.end_access();
        said
    }

    #[inline]
    fn mapped(&self) -> Option<&MappedCounterPair> {
        self.mapped_pair.get().filter(|_| !self.down.load(Relaxed))
    }
}

/// Calls of both the engine and the application.
impl EpochCounters {
    /// Returns true if the neighbor has opened an exposure to this rank that this rank has not accessed yet.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.posted() > self.accesses_begun()
    }

    /// Returns true if the neighbor has completed all accesses for which this rank has opened its end.
    #[inline]
    pub(crate) fn is_completed(&self) -> bool {
        self.completed() >= self.posts()
    }

    /// Begins an access and returns true, if the neighbor has posted and no access is in progress.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        let before = self.accesses.load(Relaxed);
        if before & UNDER_WAY != 0 || self.posted() <= before / 2 {
            return false;
        }
        // Another thread may have begun an access since the load, or may be closing the runtime. With sequential consistency
        // either that thread sees this access, or this thread sees `ended` below.
        let begun = self
            .accesses
            .compare_exchange(before, before + BEGIN, SeqCst, Relaxed);
        if begun.is_err() {
            return false;
        }
        let goes_on = !self.ended.load(SeqCst);
        if !goes_on {
            self.unbegin();
        }
        goes_on
    }

    /// Undoes `begin`, before anything was done in the access.
    pub(crate) fn unbegin(&self) {
        self.accesses.fetch_sub(BEGIN, Release);
    }

    /// Returns true if this rank's access of this number has ended. Another thread's access may have begun since.
    #[inline]
    pub(crate) fn is_over(&self, access: u64) -> bool {
        self.accesses.load(SeqCst) != 2 * access + UNDER_WAY
    }

    /// Returns true if this rank's access of this number has ended and there is no error to report about it.
    #[inline]
    pub(crate) fn has_ended(&self, access: u64) -> bool {
        self.is_over(access) && !self.down.load(Relaxed)
    }

    /// Returns true if none of this rank's operations that go through the engine is in flight on the neighbor's memory.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.load(Acquire) == 0
    }

    /// Returns true if this rank holds the lock of the neighbor's memory.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Acquire)
    }

    /// Returns the number of exposures that this rank has opened to the neighbor.
    #[inline]
    pub(crate) fn posts(&self) -> u64 {
        self.posts.load(Relaxed)
    }

    /// Returns the number of this rank's last access.
    #[inline]
    pub(crate) fn accesses_begun(&self) -> u64 {
        self.accesses.load(Relaxed) / 2
    }

    /// Returns the number of exposures that the neighbor has opened to this rank.
    #[inline]
    pub(super) fn posted(&self) -> u64 {
        let counted = self.local_pair.get().map_or(0, |ours| ours.posted.value());
        self.noted_posted().saturating_add(counted)
    }

    /// Returns the number of this rank's exposures that the neighbor has completed.
    #[inline]
    pub(super) fn completed(&self) -> u64 {
        let counted = self
            .local_pair
            .get()
            .map_or(0, |ours| ours.completed.value());
        self.noted_completed().saturating_add(counted)
    }
}

/// Calls of the engine, made under its lock. Exception: the application's threads call `is_down` without it, and `add_post` and
/// `end_access` by [`post`](EpochCounters::post) and [`complete`](EpochCounters::complete).
impl EpochCounters {
    pub(super) fn local_pair(&self) -> Option<&LocalCounterPair> {
        self.local_pair.get()
    }

    pub(super) fn set_local_pair(&self, ours: LocalCounterPair) {
        let _earlier = self.local_pair.set(ours);
    }

    /// Sets the neighbor's counters, to which all later notifications go.
    pub(super) fn map(&self, theirs: MappedCounterPair) {
        let _earlier = self.mapped_pair.set(theirs);
    }

    pub(super) fn mapped_pair(&self) -> Option<&MappedCounterPair> {
        self.mapped_pair.get()
    }

    /// Counts one more exposure and returns the new count.
    pub(super) fn add_post(&self) -> u64 {
        let posts = self.posts() + 1;
        self.posts.store(posts, Relaxed);
        posts
    }

    pub(super) fn is_accessing(&self) -> bool {
        self.accesses.load(SeqCst) & UNDER_WAY != 0
    }

    /// Ends the access in progress, after the neighbor was notified or if it cannot be notified.
    #[inline]
    pub(super) fn end_access(&self) {
        // Only the thread with the access changes this word while the access is in progress.
        let now = self.accesses.load(Relaxed);
        self.accesses.store(now & !UNDER_WAY, Release);
    }

    pub(super) fn noted_posted(&self) -> u64 {
        self.noted_posted.load(Acquire)
    }

    pub(super) fn noted_completed(&self) -> u64 {
        self.noted_completed.load(Acquire)
    }

    /// Records a count that came by message. Counts are absolute, so an old one changes nothing. The release order makes data
    /// that was stored before the message visible to a thread that reads the count without the lock.
    pub(super) fn note_posted(&self, count: u64) {
        self.noted_posted.fetch_max(count, Release);
    }

    pub(super) fn note_completed(&self, count: u64) {
        self.noted_completed.fetch_max(count, Release);
    }

    /// Counts all missing completions as done, because the neighbor will not complete them.
    pub(super) fn give_up(&self) {
        let missing = self.posts().saturating_sub(self.completed());
        self.noted_completed.fetch_add(missing, Release);
    }

    pub(super) fn operation_begins(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Ends an operation and returns true if it was the last in flight.
    pub(super) fn operation_ends(&self) -> bool {
        self.in_flight.fetch_sub(1, Release) == 1
    }

    pub(super) fn set_inside(&self, inside: bool) {
        self.inside.store(inside, Release);
    }

    /// Returns true if the neighbor is down.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, SeqCst);
    }

    pub(super) fn set_down(&self) {
        self.down.store(true, Relaxed);
    }
}

impl From<bool> for NotifyResult {
    fn from(wake: bool) -> Self {
        if wake {
            Self::NeedsWakeup
        } else {
            Self::Delivered
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EpochCounters, NotifyResult};

    #[test]
    fn an_access_begins_once_for_each_exposure_and_ends_before_the_next() {
        let counters = EpochCounters::default();
        assert!(!counters.begin());
        counters.note_posted(2);
        assert!(counters.begin() && !counters.begin());
        counters.unbegin();
        assert!(counters.begin() && counters.is_accessing());
        counters.end_access();
        assert!(counters.begin());
        counters.end_access();
        assert!(!counters.begin(), "both exposures were accessed");
    }

    #[test]
    fn an_access_is_over_though_the_next_is_in_flight() {
        let counters = EpochCounters::default();
        counters.note_posted(2);
        assert!(counters.begin() && !counters.has_ended(1));
        counters.end_access();
        assert!(counters.begin() && counters.has_ended(1) && !counters.has_ended(2));
    }

    #[test]
    fn what_was_given_up_does_not_hold_up_the_next_exposure() {
        let counters = EpochCounters::default();
        counters.add_post();
        assert!(!counters.is_completed());
        counters.give_up();
        assert!(counters.is_completed());
        counters.add_post();
        assert!(!counters.is_completed());
        counters.note_completed(2);
        assert!(counters.is_completed());
    }

    #[test]
    fn without_counters_of_the_neighbor_nothing_is_said() {
        let counters = EpochCounters::default();
        assert_eq!(
            [counters.post(), counters.complete()],
            [NotifyResult::NotSent; 2]
        );
        assert_eq!(counters.posts(), 0);
    }
}
