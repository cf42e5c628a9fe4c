//! The ways of a step.

use crate::wave::{Layers, Schedule};

/// How ghosts are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    TwoSided,
    TwoSidedSplit,
}

impl Mode {
    pub(crate) const ALL: [Self; 2] = [Self::TwoSided, Self::TwoSidedSplit];

    /// The modes that a name stands for.
    ///
    /// # Errors
    /// A sentence with the names that there are.
    pub(crate) fn named(name: &str) -> Result<Vec<Self>, String> {
        if name == "all" {
            return Ok(Self::ALL.to_vec());
        }
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.map(|mode| vec![mode]).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("--mode {name}: choose {names} or all")
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TwoSided => "two-sided",
            Self::TwoSidedSplit => "two-sided-split",
        }
    }

    pub(crate) fn schedule(self) -> Schedule {
        match self {
            Self::TwoSided => Schedule::Plain,
            Self::TwoSidedSplit => Schedule::Split,
        }
    }

    /// The ghosts that are exchanged, where the arguments leave the choice.
    pub(crate) fn layers(self, needed_only: bool) -> Layers {
        if needed_only {
            Layers::NEEDED
        } else {
            Layers::FULL
        }
    }
}
