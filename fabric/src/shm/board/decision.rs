//! Which ranks of the node share memory: the creator of the board decides, and the others wait for that.

use std::{
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use rustix::{
    io::Errno,
    thread::{
        Timespec,
        futex::{self, Flags},
    },
};

use super::{APART, Board, DECISION_AT};

/// Decision of a board's creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "ranks must follow each decision")]
pub enum BoardDecision {
    /// The ranks that have attached use this board.
    Together,
    /// Some ranks cannot reach the board and [are marked](Board::is_apart). The others use another board, whose address is the
    /// note of the creator.
    Split,
}

impl Board {
    /// Marks a rank that cannot reach the board.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn mark_apart(&self, rank: u32) {
        self.word(rank, APART).store(1, Relaxed);
    }

    /// Returns true if the rank was marked before the decision.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    pub fn is_apart(&self, rank: u32) -> bool {
        self.word(rank, APART).load(Relaxed) != 0
    }

    /// Publishes the decision, with all marks and notes before it.
    pub fn decide(&self, decision: BoardDecision) {
        let word = match decision {
            BoardDecision::Together => TOGETHER,
            BoardDecision::Split => SPLIT,
        };
        self.decision_word().store(word, Release);
        let _woken = futex::wake(self.decision_word(), Flags::empty(), self.size);
    }

    /// Waits for the decision. Returns `None` if there is none, and nothing else has changed on the board, for `limit`.
    ///
    /// Arrivals do not wake the caller, because each of n ranks would be woken by each of the others.
    #[must_use]
    pub fn decision(&self, limit: Duration) -> Option<BoardDecision> {
        let limit = Timespec::try_from(limit).ok();
        let word = self.decision_word();
        loop {
            let before = self.changes().load(Acquire);
            match word.load(Acquire) {
                TOGETHER => return Some(BoardDecision::Together),
                SPLIT => return Some(BoardDecision::Split),
                _ => {}
            }
            let waited = futex::wait(word, Flags::empty(), UNDECIDED, limit.as_ref());
            let is_late = matches!(waited, Err(why) if why != Errno::AGAIN && why != Errno::INTR);
            if is_late && self.changes().load(Acquire) == before {
                return None;
            }
        }
    }

    fn decision_word(&self) -> &AtomicU32 {
        self.region.atomic_u32(DECISION_AT)
    }
}

const UNDECIDED: u32 = 0;
const TOGETHER: u32 = 1;
const SPLIT: u32 = 2;
