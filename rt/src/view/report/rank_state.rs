//! The state of a rank in a word, for tables and metrics.

use super::{super::RankPhase, ObservedRank, ProcessState};

/// State of a rank, as one look shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum RankState {
    /// It has not joined its job yet.
    #[default]
    Starting,
    /// Its threads sleep in the runtime.
    Waiting,
    /// Only its agent sleeps in the runtime.
    Computing,
    /// It has done something since its last snapshot.
    Active,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It is in the kernel and cannot be interrupted.
    InKernel,
    /// It has left its job.
    Left,
    /// Its process has ended, and it had not left its job.
    Ended,
    /// Its view cannot be read.
    Unreadable,
}

impl RankState {
    /// All states.
    pub const ALL: [Self; 9] = [
        Self::Starting,
        Self::Waiting,
        Self::Computing,
        Self::Active,
        Self::Stopped,
        Self::InKernel,
        Self::Left,
        Self::Ended,
        Self::Unreadable,
    ];

    /// Returns the name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Computing => "computing",
            Self::Active => "active",
            Self::Stopped => "stopped",
            Self::InKernel => "in kernel",
            Self::Left => "left",
            Self::Ended => "ended",
            Self::Unreadable => "unreadable",
        }
    }

    /// Returns true if the rank does nothing any more.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Left | Self::Ended)
    }
}

impl ObservedRank {
    /// Returns the state of the rank.
    #[must_use]
    pub fn state(&self) -> RankState {
        match (&self.process, &self.view) {
            (_, Ok(view)) if view.snapshot.phase == RankPhase::Left => RankState::Left,
            (ProcessState::Ended { .. }, _) => RankState::Ended,
            (ProcessState::Stopped, _) => RankState::Stopped,
            (ProcessState::InKernel { .. }, _) => RankState::InKernel,
            (ProcessState::Alive { .. }, Err(_)) => RankState::Unreadable,
            (ProcessState::Alive { .. }, Ok(view)) => match view.snapshot.phase {
                RankPhase::Starting => RankState::Starting,
                _ if !view.is_current => RankState::Active,
                RankPhase::Waiting => RankState::Waiting,
                RankPhase::Elsewhere => RankState::Computing,
                RankPhase::Left => RankState::Left,
            },
        }
    }
}
