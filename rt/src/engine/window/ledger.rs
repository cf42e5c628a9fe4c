//! What this rank and a neighbour have counted of each other at one window, for the engine and for the threads of the
//! application. Where the neighbour's counters are mapped here, epochs begin and end by these words alone, and the engine, its
//! lock and its turns have no part in it.
//!
//! Budget of an epoch with neighbours that come in time: no allocation, no system call, no lock; `tests/budget_windows.rs`
//! watches it.
//!
//! Who may change what: `posts` the thread that has the window, `accesses` and the counter of completions whoever has begun the
//! access that is under way, the notes and `down` the engine.

use std::sync::{
    OnceLock,
    atomic::{
        AtomicBool, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

use ripstop_fabric::offload::Counter;

use super::tally::Ours;

/// The counts of two neighbours.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Where the neighbour counts.
    ours: OnceLock<Ours>,
    /// Where we count, as this process maps it.
    theirs: OnceLock<Mapped>,
    /// Exposures that we opened to it.
    posts: AtomicU64,
    /// How many of them it has completed, as far as notes say.
    noted_completed: AtomicU64,
    /// Exposures that it opened to us, as far as notes say.
    noted_posted: AtomicU64,
    /// Twice how many of them we have accessed, and one more while the last access is under way.
    accesses: AtomicU64,
    /// Our operations under way on its memory that the engine carries.
    under_way: AtomicU32,
    /// Our lock of its memory is held.
    inside: AtomicBool,
    /// It is gone, and somebody may have to be told so.
    down: AtomicBool,
    /// The runtime is closed, and accesses nothing more.
    ended: AtomicBool,
}

/// Of `accesses`: the last is under way.
const UNDER_WAY: u64 = 1;
/// What an access adds to `accesses` when it begins.
const BEGIN: u64 = 2 + UNDER_WAY;

/// Counters of a neighbour that this process adds to.
pub(super) struct Mapped {
    pub(super) posted: Counter,
    pub(super) completed: Counter,
}

/// What was said to a neighbour without the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Said {
    /// It will see it.
    Heard,
    /// It may sleep, and is to be woken.
    Wake,
    /// Nothing: that is for the engine.
    Unsaid,
}

/// What an application does without the engine.
impl Ledger {
    /// Opens this end once more.
    #[inline]
    pub(crate) fn post(&self) -> Said {
        let Some(theirs) = self.mapped() else {
            return Said::Unsaid;
        };
        self.add_post();
        let said = theirs.posted.step().into();
        // While the neighbour looks at what we posted, and not at this.
        theirs.completed.expect();
        said
    }

    /// Ends the access that `begin` has begun.
    #[inline]
    pub(crate) fn complete(&self) -> Said {
        let theirs = self.mapped().filter(|_| self.is_quiet());
        let Some(theirs) = theirs else {
            return Said::Unsaid;
        };
        let said = theirs.completed.step().into();
        theirs.posted.expect();
        self.end_access();
        said
    }

    #[inline]
    fn mapped(&self) -> Option<&Mapped> {
        self.theirs.get().filter(|_| !self.down.load(Relaxed))
    }
}

/// What both do.
impl Ledger {
    /// Exposures that the neighbour opened to us and we have not accessed.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.posted() > self.starts()
    }

    /// Whether it has completed all accesses that we opened our end for.
    #[inline]
    pub(crate) fn is_completed(&self) -> bool {
        self.completed() >= self.posts()
    }

    /// Begins an access, if the neighbour has posted and there is none.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        let before = self.accesses.load(Relaxed);
        if before & UNDER_WAY != 0 || self.posted() <= before / 2 {
            return false;
        }
        // Another thread may have accessed it between the two, or have ended the runtime: whoever does that sees this access, or
        // is seen here.
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

    /// Takes `begin` back: nothing has been done yet.
    pub(crate) fn unbegin(&self) {
        self.accesses.fetch_sub(BEGIN, Release);
    }

    /// Whether this access of ours has ended. Another thread's may have begun since.
    #[inline]
    pub(crate) fn is_over(&self, access: u64) -> bool {
        self.accesses.load(SeqCst) != 2 * access + UNDER_WAY
    }

    /// Whether this access of ours has ended, and nothing is to be said about it.
    #[inline]
    pub(crate) fn has_ended(&self, access: u64) -> bool {
        self.is_over(access) && !self.down.load(Relaxed)
    }

    /// Whether no operation of ours that the engine carries is under way there.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way.load(Acquire) == 0
    }

    /// Whether our lock of its memory is held.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Acquire)
    }

    #[inline]
    pub(super) fn posts(&self) -> u64 {
        self.posts.load(Relaxed)
    }

    /// The number of the last access.
    #[inline]
    pub(crate) fn starts(&self) -> u64 {
        self.accesses.load(Relaxed) / 2
    }

    /// Exposures that it opened to us.
    #[inline]
    pub(super) fn posted(&self) -> u64 {
        let counted = self.ours.get().map_or(0, |ours| ours.posted.value());
        self.noted_posted().saturating_add(counted)
    }

    /// How many of ours it has completed.
    #[inline]
    pub(super) fn completed(&self) -> u64 {
        let counted = self.ours.get().map_or(0, |ours| ours.completed.value());
        self.noted_completed().saturating_add(counted)
    }
}

/// What the engine does, which is locked.
impl Ledger {
    pub(super) fn ours(&self) -> Option<&Ours> {
        self.ours.get()
    }

    pub(super) fn set_ours(&self, ours: Ours) {
        let _earlier = self.ours.set(ours);
    }

    /// From here on what is said goes to these counters.
    pub(super) fn map(&self, theirs: Mapped) {
        let _earlier = self.theirs.set(theirs);
    }

    pub(super) fn theirs(&self) -> Option<&Mapped> {
        self.theirs.get()
    }

    /// Returns what they are then.
    pub(super) fn add_post(&self) -> u64 {
        let posts = self.posts() + 1;
        self.posts.store(posts, Relaxed);
        posts
    }

    pub(super) fn is_accessing(&self) -> bool {
        self.accesses.load(SeqCst) & UNDER_WAY != 0
    }

    /// The neighbour was told, or cannot be.
    #[inline]
    pub(super) fn end_access(&self) {
        // Nobody else changes it while an access is under way.
        let now = self.accesses.load(Relaxed);
        self.accesses.store(now & !UNDER_WAY, Release);
    }

    pub(super) fn noted_posted(&self) -> u64 {
        self.noted_posted.load(Acquire)
    }

    pub(super) fn noted_completed(&self) -> u64 {
        self.noted_completed.load(Acquire)
    }

    /// Notes are absolute: an old one changes nothing. Who reads one without the lock sees what was stored before it.
    pub(super) fn note_posted(&self, count: u64) {
        self.noted_posted.fetch_max(count, Release);
    }

    pub(super) fn note_completed(&self, count: u64) {
        self.noted_completed.fetch_max(count, Release);
    }

    /// It will not complete what is missing.
    pub(super) fn give_up(&self) {
        let missing = self.posts().saturating_sub(self.completed());
        self.noted_completed.fetch_add(missing, Release);
    }

    pub(super) fn operation_begins(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    /// Whether it was the last.
    pub(super) fn operation_ends(&self) -> bool {
        self.under_way.fetch_sub(1, Release) == 1
    }

    pub(super) fn set_inside(&self, inside: bool) {
        self.inside.store(inside, Release);
    }

    /// Whether the neighbour is gone.
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

impl From<bool> for Said {
    fn from(wake: bool) -> Self {
        if wake { Self::Wake } else { Self::Heard }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ledger, Said};

    #[test]
    fn an_access_begins_once_for_each_exposure_and_ends_before_the_next() {
        let ledger = Ledger::default();
        assert!(!ledger.begin());
        ledger.note_posted(2);
        assert!(ledger.begin() && !ledger.begin());
        ledger.unbegin();
        assert!(ledger.begin() && ledger.is_accessing());
        ledger.end_access();
        assert!(ledger.begin());
        ledger.end_access();
        assert!(!ledger.begin(), "both exposures were accessed");
    }

    #[test]
    fn an_access_is_over_though_the_next_is_under_way() {
        let ledger = Ledger::default();
        ledger.note_posted(2);
        assert!(ledger.begin() && !ledger.has_ended(1));
        ledger.end_access();
        assert!(ledger.begin() && ledger.has_ended(1) && !ledger.has_ended(2));
    }

    #[test]
    fn what_was_given_up_does_not_hold_up_the_next_exposure() {
        let ledger = Ledger::default();
        ledger.add_post();
        assert!(!ledger.is_completed());
        ledger.give_up();
        assert!(ledger.is_completed());
        ledger.add_post();
        assert!(!ledger.is_completed());
        ledger.note_completed(2);
        assert!(ledger.is_completed());
    }

    #[test]
    fn without_counters_of_the_neighbour_nothing_is_said() {
        let ledger = Ledger::default();
        assert_eq!([ledger.post(), ledger.complete()], [Said::Unsaid; 2]);
        assert_eq!(ledger.posts(), 0);
    }
}
