//! Words that ranks exchange in a fence: one number, which only grows.

use std::io;

use ripstop_fabric::driver::DownCause;

use crate::{error::ErrorKind, group::WorldRank};

/// Value of a counter of fences, which encodes what the rank before this one has announced in a round.
///
/// A round has two counters, for fences of even and of odd numbers. Drivers promise no order of counts, but a rank announces a
/// fence only after its receiver has passed the last but one. So at most one announcement of a fence is in flight to a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FenceWord(pub(super) u64);

/// Reason why fences fail, with the rank at which it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceFailure {
    /// The rank came to a fence of the other kind, while this rank's fence ends the epoch if this is true.
    Apart(WorldRank, bool),
    /// The rank is down.
    Gone(WorldRank, DownCause),
    /// The rank reports that another rank is down, or came to a fence of the other kind; or it has left the window.
    GaveUp(WorldRank),
    /// There was no memory here for the counters of peers.
    NoMemory,
}

impl FenceWord {
    /// Returns the value after this number of fences, of which `endings` ended an epoch.
    pub(super) fn after(fences: u64, endings: u64) -> Self {
        Self(fences * FENCE + endings % 2)
    }

    /// Returns the addition that announces a failure instead of the next fence, after `announced` fences in this counter.
    pub(super) fn failure(announced: u64) -> u64 {
        GAVE_UP + announced % 2 * AFTER_ODD
    }

    /// Returns the value from which on a counter that has this value may have news for a rank that waits for `fences` in it.
    pub(super) fn next(self, fences: u64) -> u64 {
        self.0 / AFTER_ODD * AFTER_ODD + fences * FENCE
    }

    /// Returns what the counter says to a rank that waits for `fences` announcements in it, `endings` of which end an epoch.
    /// Returns `None` if the last of them is still to come.
    pub(super) fn verdict(self, fences: u64, endings: u64) -> Option<FenceVerdict> {
        let announced = self.0 % AFTER_ODD / FENCE;
        if announced >= fences {
            return Some(match (self.0 ^ endings) % 2 {
                0 => FenceVerdict::Come,
                _ => FenceVerdict::Apart,
            });
        }
        // A failure may overtake the fence before it, and then says that there was one.
        let is_after_odd = self.0 / AFTER_ODD % 2 == 1;
        let fails_now = self.0 >= GAVE_UP && is_after_odd == fences.is_multiple_of(2);
        fails_now.then_some(FenceVerdict::GaveUp)
    }
}

/// What the rank before this one has announced in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceVerdict {
    /// It has come to the same fence.
    Come,
    /// It came to a fence of the other kind.
    Apart,
    /// It reports that fences have failed.
    GaveUp,
}

impl FenceFailure {
    /// Returns the error of a window with this number, and the world rank that the error names.
    pub(super) fn error(self, me: WorldRank, window: u32) -> (WorldRank, ErrorKind) {
        match self {
            Self::Apart(rank, ending) => {
                let (me, other) = (me.0 as usize, rank.0 as usize);
                let mismatch = ErrorKind::Mismatch {
                    rank: me,
                    other,
                    calls: Some(differing_fences(ending, window)),
                };
                (rank, mismatch)
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

/// Returns what a fence is called in errors, by whether it ends the epoch.
pub(crate) const fn fence_name(ending: bool) -> &'static str {
    if ending { "end" } else { "fence" }
}

/// Returns the call of this rank and that of a rank that came to a fence of the other kind.
pub(crate) fn differing_fences(ending: bool, window: u32) -> Box<[String; 2]> {
    Box::new([ending, !ending].map(|ending| format!("{} (window {window})", fence_name(ending))))
}

// Layout of a word, from the most significant bits: whether the fences have failed, whether the failure comes after an odd number
// of fences, fences, and endings modulo 2. All ranks agreed on the fences before the last one, so their endings differ by one at
// most.
const GAVE_UP: u64 = 1 << 62;
const AFTER_ODD: u64 = 1 << 61;
const FENCE: u64 = 2;

#[cfg(test)]
mod tests {
    use super::{FenceVerdict, FenceWord};

    #[test]
    fn a_fence_of_the_same_kind_is_passed_and_one_of_the_other_kind_is_not() {
        let mut before = FenceWord::default();
        let mut endings = 0;
        for fences in 1..1000 {
            assert_eq!(before.verdict(fences, endings), None);
            let other = endings + u64::from(fences % 3 != 0);
            endings += u64::from(fences % 3 == 0);
            let word = FenceWord::after(fences, endings);
            assert!(word.0 > before.0, "counters only grow");
            assert_eq!(word.verdict(fences, endings), Some(FenceVerdict::Come));
            assert_eq!(word.verdict(fences, other), Some(FenceVerdict::Apart));
            before = word;
        }
    }

    #[test]
    fn a_failure_takes_the_place_of_the_next_fence_and_of_none_before() {
        for announced in [1, 2, 7] {
            let failure = FenceWord::failure(announced);
            let overtaking = FenceWord(FenceWord::after(announced - 1, 0).0 + failure);
            assert_eq!(overtaking.verdict(announced, 1), None, "it is in flight");
            let word = FenceWord(FenceWord::after(announced, 1).0 + failure);
            assert_eq!(word.verdict(announced, 1), Some(FenceVerdict::Come));
            assert_eq!(word.verdict(announced + 1, 1), Some(FenceVerdict::GaveUp));
        }
    }

    #[test]
    fn a_failure_wakes_and_so_does_the_fence_that_it_has_overtaken() {
        let before = FenceWord::after(6, 0);
        let failure = FenceWord::failure(7);
        let overtaking = FenceWord(before.0 + failure);
        assert!((before.0 + 1..=overtaking.0).contains(&before.next(7)));
        let both = FenceWord(FenceWord::after(7, 1).0 + failure);
        assert!((overtaking.0 + 1..=both.0).contains(&overtaking.next(7)));
    }

    #[test]
    fn a_window_that_fences_a_million_times_a_second_does_so_for_centuries() {
        let fences = 500 * 365 * 86_400 * 1_000_000 / 2;
        let word = FenceWord::after(fences, 0);
        assert_eq!(word.verdict(fences, 0), Some(FenceVerdict::Come));
        assert_eq!(word.verdict(fences + 1, 0), None);
    }
}
