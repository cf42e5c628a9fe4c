//! Words that ranks exchange in a fence: one number, which only grows.

use std::io;

use ripstop_fabric::driver::DownCause;

use crate::{error::ErrorKind, group::WorldRank};

/// Value of a rank's counter in a round, which encodes what the rank before it has announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FenceWord(pub(super) u64);

/// Reason why fences fail, with the rank at which it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceFailure {
    /// The rank came to a fence of the other kind, or reports that another rank did.
    Apart(WorldRank),
    /// The rank is down.
    Gone(WorldRank, DownCause),
    /// The rank reports that another rank is down.
    GaveUp(WorldRank),
    /// There was no memory here for the counters of peers.
    NoMemory,
}

impl FenceWord {
    pub(super) fn new(come: u64, endings: u64, failed: Option<FenceFailure>) -> Self {
        let code = match failed {
            None => 0,
            Some(FenceFailure::Apart(_)) => APART,
            Some(FenceFailure::Gone(..) | FenceFailure::GaveUp(_) | FenceFailure::NoMemory) => {
                GAVE_UP
            }
        };
        Self(come * COME + code * CODE + endings % CODE)
    }

    pub(super) fn come(self) -> u64 {
        self.0 / COME
    }

    pub(super) fn code(self) -> u64 {
        self.0 % COME / CODE
    }

    /// Returns true if the rank that sent this word lets this rank pass fence number `come`.
    pub(super) fn agrees(self, come: u64, endings: u64) -> bool {
        // The sender may be further ahead, but only if it agreed with every rank so far. A failure adds one to the count of
        // fences, too, and is no fence.
        let passed = self.come() - u64::from(self.code() > 0);
        let more = (self.0 % CODE).wrapping_sub(endings) % CODE;
        passed >= come && more <= passed - come
    }
}

impl FenceFailure {
    /// Returns the error and the world rank that it names.
    pub(super) fn error(self, me: WorldRank) -> (WorldRank, ErrorKind) {
        match self {
            Self::Apart(rank) => {
                let (me, other) = (me.0 as usize, rank.0 as usize);
                (
                    rank,
                    ErrorKind::Mismatch {
                        rank: me,
                        other,
                        calls: None,
                    },
                )
            }
            Self::Gone(rank, down) => (rank, ErrorKind::of_down(rank, down)),
            Self::GaveUp(rank) => {
                let other = rank.0 as usize;
                (rank, ErrorKind::Aborted { rank: other })
            }
            Self::NoMemory => {
                let why = "no memory for the counters of fences, or too many descriptors are open";
                let why = io::Error::new(io::ErrorKind::OutOfMemory, why);
                (me, ErrorKind::Transport(why.into()))
            }
        }
    }
}

// Layout of a word, from the most significant bits: fences come to (2⁵⁴, enough for 500 years at a million a second), failure
// code, and endings modulo 2⁸. Only differences of endings matter, and a rank is at most a few fences ahead of another.
pub(super) const COME: u64 = 1 << 10;
const CODE: u64 = 1 << 8;
const APART: u64 = 1;
pub(super) const GAVE_UP: u64 = 2;

#[cfg(test)]
mod tests {
    use super::{CODE, FenceFailure, FenceWord, WorldRank};

    #[test]
    fn a_later_word_agrees_with_a_passed_fence_and_a_failed_word_does_not() {
        let word = |come, endings, failed| FenceWord::new(come, endings, failed);
        assert!(word(7, 3, None).agrees(7, 3));
        assert!(word(8, 4, None).agrees(7, 3) && word(8, 3, None).agrees(7, 3));
        assert!(!word(8, 4, Some(FenceFailure::Apart(WorldRank(1)))).agrees(7, 3));
        assert!(!word(7, 4, None).agrees(7, 3) && !word(7, 3, None).agrees(7, 4));
        for failed in [
            FenceFailure::Apart(WorldRank(1)),
            FenceFailure::GaveUp(WorldRank(1)),
        ] {
            assert!(!word(7, 3, Some(failed)).agrees(7, 3));
            assert!(word(8, 3, Some(failed)).agrees(7, 3), "it failed later");
        }
    }

    #[test]
    fn words_only_grow_also_when_endings_start_anew() {
        let last = FenceWord::new(CODE, CODE - 1, None);
        let next = FenceWord::new(CODE + 1, CODE, None);
        assert!(next.0 > last.0);
        assert!(next.agrees(CODE + 1, CODE));
        assert!(next.agrees(CODE, CODE - 1));
    }

    #[test]
    fn a_window_that_fences_a_million_times_a_second_does_so_for_centuries() {
        let come = 500 * 365 * 86_400 * 1_000_000;
        let word = FenceWord::new(come, come, None);
        assert_eq!((word.come(), word.code()), (come, 0));
        assert!(FenceWord::new(come + 1, come, None).agrees(come, come));
    }
}
