//! Behavior that differs between library families, where the specification leaves it open or a library departs from it.

/// Library whose behavior programs expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LibraryFamily {
    /// The reference implementation.
    Sandia,
    /// Bull's implementation.
    Bull,
}

impl LibraryFamily {
    /// Returns true if a search for more than one message ends with an event that no more were found. Programs for the reference
    /// implementation expect no such event, and programs for Bull's wait for it.
    pub(super) const fn closes_searches(self) -> bool {
        matches!(self, Self::Bull)
    }

    /// Returns true if the option that hides communication events also hides search events.
    pub(super) const fn hides_searches(self) -> bool {
        matches!(self, Self::Sandia)
    }

    /// Returns true if an entry for one user is skipped by messages of other users.
    ///
    /// If false, such a message matches and counts as a permission violation of its sender. An unexpected message can then be
    /// claimed by any entry that matches it, as the specification says, because its permission was checked on arrival.
    pub(super) const fn matches_users(self) -> bool {
        matches!(self, Self::Bull)
    }
}
