//! The ways to communicate in a step.

use crate::wave::{ExchangedLayers, StepSchedule};

/// Means by which ghosts are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwpMode {
    TwoSided,
    TwoSidedSplit,
    Fence,
    Pscw,
    PscwSplit,
    PscwNeeded,
}

impl AwpMode {
    pub(crate) const ALL: [Self; 6] = [
        Self::TwoSided,
        Self::TwoSidedSplit,
        Self::Fence,
        Self::Pscw,
        Self::PscwSplit,
        Self::PscwNeeded,
    ];

    /// Returns the names of arguments, each with the modes that it stands for.
    pub(crate) fn choices() -> Vec<(&'static str, Vec<Self>)> {
        let each = Self::ALL.map(|mode| (mode.name(), vec![mode]));
        each.into_iter()
            .chain([("all", Self::ALL.to_vec())])
            .collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TwoSided => "two-sided",
            Self::TwoSidedSplit => "two-sided-split",
            Self::Fence => "fence",
            Self::Pscw => "pscw",
            Self::PscwSplit => "pscw-split",
            Self::PscwNeeded => "pscw-needed",
        }
    }

    pub(crate) fn schedule(self) -> StepSchedule {
        match self {
            Self::TwoSided | Self::Fence | Self::Pscw => StepSchedule::Plain,
            Self::TwoSidedSplit | Self::PscwSplit | Self::PscwNeeded => StepSchedule::Split,
        }
    }

    /// Returns the ghosts that are exchanged, if the mode leaves the choice to the arguments.
    pub(crate) fn layers(self, needed_only: bool) -> ExchangedLayers {
        if needed_only || self == Self::PscwNeeded {
            ExchangedLayers::NEEDED
        } else {
            ExchangedLayers::FULL
        }
    }
}
