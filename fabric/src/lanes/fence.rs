//! Which lanes of a pair work, and which of the others can do no more harm.
//!
//! Each rank says two sets to the other, which only grow: the lanes that it has found not to work, and the lanes that it has
//! *closed*, so that nothing which still comes by them reads or writes its memory. It does not matter how often a word is said,
//! or whether an older one comes later. A lane is fenced when both ranks have closed it: then, and not before, what was under
//! way on it may be repeated elsewhere, and memory that it was to reach may be used for something else.

use super::{LaneSet, home};

/// The lanes of a pair, as one of its ranks sees them: four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fences {
    all: LaneSet,
    /// That either rank has found not to work.
    failed: LaneSet,
    /// That nothing reaches this rank's memory by.
    closed: LaneSet,
    /// That nothing reaches the other's memory by.
    closed_there: LaneSet,
}

/// What a rank says to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "travels as each driver likes")]
pub struct Word {
    /// Lanes that do not work.
    pub failed: LaneSet,
    /// Lanes by which nothing reaches the speaker's memory any more.
    pub closed: LaneSet,
}

impl Fences {
    /// With all these lanes at work.
    #[must_use]
    pub const fn new(all: LaneSet) -> Self {
        Self {
            all,
            failed: LaneSet::EMPTY,
            closed: LaneSet::EMPTY,
            closed_there: LaneSet::EMPTY,
        }
    }

    /// The lanes that work; when there are none, the pair has lost each other.
    #[must_use]
    pub const fn working(&self) -> LaneSet {
        self.all.without(self.failed)
    }

    /// The lane of what is ordered in a context, from now on.
    #[must_use]
    pub fn home(&self, context: u64) -> Option<u32> {
        home(context, self.working())
    }

    /// This rank has found that a lane does not work. Whether that is new: then [`word`](Self::word) is to be said, by a lane
    /// that works.
    pub fn fail(&mut self, lane: u32) -> bool {
        let is_new = self.working().has(lane);
        if is_new {
            self.failed = self.failed.with(lane);
        }
        is_new
    }

    /// The lanes that are to be closed here.
    #[must_use]
    pub const fn to_close(&self) -> LaneSet {
        self.failed.without(self.closed)
    }

    /// A lane that does not work is closed here: nothing by it reaches memory. Whether that is new: then the word is to be
    /// said, and the lane may be fenced by it.
    pub fn close(&mut self, lane: u32) -> bool {
        let is_new = self.to_close().has(lane);
        if is_new {
            self.closed = self.closed.with(lane);
        }
        is_new
    }

    /// What the other rank is to hear.
    #[must_use]
    pub const fn word(&self) -> Word {
        Word {
            failed: self.failed,
            closed: self.closed,
        }
    }

    /// The other's word. Lanes that are fenced by it: they were not before. Whether a lane is to be closed, [`to_close`] says.
    ///
    /// [`to_close`]: Self::to_close
    #[must_use]
    pub fn handle_word(&mut self, word: Word) -> LaneSet {
        let before = self.fenced();
        let closed = word.closed.and(self.all);
        // Who closes a lane has found that it does not work.
        self.failed = self.failed.or(word.failed.and(self.all)).or(closed);
        self.closed_there = self.closed_there.or(closed);
        self.fenced().without(before)
    }

    /// Whether all lanes that do not work are fenced.
    #[must_use]
    pub fn are_settled(&self) -> bool {
        self.failed.without(self.fenced()).is_empty()
    }

    /// The lanes that both have closed.
    #[must_use]
    pub const fn fenced(&self) -> LaneSet {
        self.closed.and(self.closed_there)
    }
}
