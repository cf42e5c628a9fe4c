//! The signature of a collective, on which all its ranks must agree.

use crate::buffer::{TypeSig, Wire};

/// A hash of a collective's operation and of everything that all ranks must agree on: the root, the element type,
/// counts.
///
/// Every message of the collective carries it. If two differ, the collective fails on every rank.
///
/// ```
/// use ripstop_rt::internal::offload::CollectiveSignature;
/// let ours = CollectiveSignature::of("bcast").with(0).with_type::<f64>();
/// assert_ne!(ours, CollectiveSignature::of("bcast").with(1).with_type::<f64>());
/// assert_ne!(ours, CollectiveSignature::of("bcast").with(0).with_type::<u64>());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectiveSignature(pub(crate) TypeSig);

impl CollectiveSignature {
    /// Returns the signature of an operation, by its name.
    #[must_use]
    pub const fn of(name: &str) -> Self {
        Self(TypeSig::of_name(name))
    }

    /// Adds a number on which all ranks must agree.
    #[must_use]
    pub const fn with(self, number: u64) -> Self {
        Self(self.0.and(number))
    }

    /// Adds another signature on which all ranks must agree.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        self.with(other.0.0)
    }

    /// Adds a type on which all ranks must agree.
    #[must_use]
    pub const fn with_type<T: Wire>(self) -> Self {
        self.with(T::SIG.0)
    }
}
