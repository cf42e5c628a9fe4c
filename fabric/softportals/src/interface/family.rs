//! What the families' libraries do each in its own way, where the specification leaves it open or they depart from it.

/// Whose library programs expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// The reference.
    Sandia,
    /// Bull's.
    Bull,
}

impl Family {
    /// A search that is not for one message tells at its end that it finds no more. Programs for the reference expect nothing
    /// behind what was found, and programs for the other wait for that.
    pub(super) const fn closes_searches(self) -> bool {
        matches!(self, Self::Bull)
    }

    /// What hides events of communication hides those of searches.
    pub(super) const fn hides_searches(self) -> bool {
        matches!(self, Self::Sandia)
    }

    /// An entry for one user does not match others' messages, and is passed over. Else it is the violation of who sent them; and
    /// unexpected messages are everybody's who matches them, as the specification has it: their permission was checked when they
    /// came.
    pub(super) const fn matches_users(self) -> bool {
        matches!(self, Self::Bull)
    }
}
