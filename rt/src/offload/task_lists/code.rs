//! Codes in the driver's reports about a program.

use crate::offload::lower::LoweredAction;

/// Subject of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListToken {
    /// One of the two lists.
    List(usize),
    /// Tasks of a list that found no room and were posted one by one.
    Single,
    /// A held task may begin.
    Held,
    /// The program has ended.
    End,
    /// This step belongs to the host, and may begin.
    Step(usize),
    /// This step has ended, and the host passes that on.
    Spread(usize),
    /// All receives of this group have ended, and the program wants a report.
    RecvGroup(usize),
}

impl ListToken {
    /// Returns the code of a host's duty; `None` for a driver's task.
    pub(super) const fn of(action: LoweredAction) -> Option<Self> {
        match action {
            LoweredAction::Host { step, .. } => Some(Self::Step(step)),
            LoweredAction::Spread { step } => Some(Self::Spread(step)),
            _ => None,
        }
    }

    /// Returns the lower half of a token.
    pub(super) fn pack(self) -> u32 {
        let word = match self {
            Self::List(list) => list,
            Self::Single => 2,
            Self::Held => 3,
            Self::End => 4,
            Self::Step(step) => FIRST_STEP + 3 * step,
            Self::Spread(step) => FIRST_STEP + 3 * step + 1,
            Self::RecvGroup(group) => FIRST_STEP + 3 * group + 2,
        };
        u32::try_from(word).expect("a program has less than 2^30 steps")
    }

    pub(crate) const fn unpack(word: u32) -> Self {
        match word as usize {
            list @ 0..2 => Self::List(list),
            2 => Self::Single,
            3 => Self::Held,
            4 => Self::End,
            word => {
                let nth = (word - FIRST_STEP) / 3;
                match (word - FIRST_STEP) % 3 {
                    0 => Self::Step(nth),
                    1 => Self::Spread(nth),
                    _ => Self::RecvGroup(nth),
                }
            }
        }
    }

    /// Returns the index among the [`FAMILIES`].
    pub(crate) fn family(self) -> Option<usize> {
        FAMILIES.iter().position(|family| *family == self)
    }
}

/// Codes of posted tasks.
pub(crate) const FAMILIES: [ListToken; 3] =
    [ListToken::List(0), ListToken::List(1), ListToken::Single];
const FIRST_STEP: usize = 5;
