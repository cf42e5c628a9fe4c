//! Fences: which lanes of a pair work, and which of the failed ones can do no more harm.
//!
//! Each rank sends the other two sets, which only grow: the lanes that it has found not to work, and the lanes that it has
//! *closed*, so that nothing still arriving on them can access its memory. Words may be repeated, and older ones may arrive
//! later. A lane is fenced when both ranks have closed it. Only then may its transfers in flight be repeated elsewhere, and their
//! memory be used for something else.

use super::{LaneSet, home};

/// The lanes of a pair as one of its ranks sees them, in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneFences {
    all: LaneSet,
    /// Lanes that either rank has found not to work.
    failed: LaneSet,
    /// Lanes that can no longer reach this rank's memory.
    closed: LaneSet,
    /// Lanes that can no longer reach the other rank's memory.
    closed_there: LaneSet,
}

/// A rank's report to the other rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "travels as each driver likes")]
pub struct LaneReport {
    /// Lanes that do not work.
    pub failed: LaneSet,
    /// Lanes that can no longer reach the reporting rank's memory.
    pub closed: LaneSet,
}

impl LaneFences {
    /// Creates the fences of a pair in which all these lanes work.
    #[must_use]
    pub const fn new(all: LaneSet) -> Self {
        Self {
            all,
            failed: LaneSet::EMPTY,
            closed: LaneSet::EMPTY,
            closed_there: LaneSet::EMPTY,
        }
    }

    /// Returns the lanes that work. If there are none, the two ranks cannot reach each other any more.
    #[must_use]
    pub const fn working(&self) -> LaneSet {
        self.all.without(self.failed)
    }

    /// Returns the lane for ordered traffic of a context, from now on.
    #[must_use]
    pub fn home(&self, context: u64) -> Option<u32> {
        home(context, self.working())
    }

    /// Records that this rank has found a lane not to work. Returns true if that is new: then send [`report`](Self::report) on a
    /// lane that works.
    pub fn fail(&mut self, lane: u32) -> bool {
        let is_new = self.working().has(lane);
        if is_new {
            self.failed = self.failed.with(lane);
        }
        is_new
    }

    /// Returns the lanes that this rank must close.
    #[must_use]
    pub const fn to_close(&self) -> LaneSet {
        self.failed.without(self.closed)
    }

    /// Records that a failed lane is closed here, so that it cannot reach this rank's memory. Returns true if that is new: then
    /// send the word, and the lane may be fenced now.
    pub fn close(&mut self, lane: u32) -> bool {
        let is_new = self.to_close().has(lane);
        if is_new {
            self.closed = self.closed.with(lane);
        }
        is_new
    }

    /// Returns the report for the other rank.
    #[must_use]
    pub const fn report(&self) -> LaneReport {
        LaneReport {
            failed: self.failed,
            closed: self.closed,
        }
    }

    /// Handles the other rank's report. Returns the lanes that are fenced by it and were not before. After this, [`to_close`] may
    /// have new lanes.
    ///
    /// [`to_close`]: Self::to_close
    #[must_use]
    pub fn handle_report(&mut self, word: LaneReport) -> LaneSet {
        let before = self.fenced();
        let closed = word.closed.and(self.all);
        // A rank that has closed a lane has found that it does not work.
        self.failed = self.failed.or(word.failed.and(self.all)).or(closed);
        self.closed_there = self.closed_there.or(closed);
        self.fenced().without(before)
    }

    /// Returns true if all failed lanes are fenced.
    #[must_use]
    pub fn are_settled(&self) -> bool {
        self.failed.without(self.fenced()).is_empty()
    }

    /// Returns the lanes that both ranks have closed.
    #[must_use]
    pub const fn fenced(&self) -> LaneSet {
        self.closed.and(self.closed_there)
    }
}
