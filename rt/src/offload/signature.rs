//! What the ranks of a collective must agree on.

use crate::buffer::{TypeSig, Wire};

/// A hash of a collective's operation, and of what all ranks must agree on: the root, the element type, counts.
///
/// It rides on every message of the collective, and two that differ end it with an error on every rank.
///
/// ```
/// use ripstop_rt::offload::Signature;
/// let ours = Signature::of("bcast").with(0).with_type::<f64>();
/// assert_ne!(ours, Signature::of("bcast").with(1).with_type::<f64>());
/// assert_ne!(ours, Signature::of("bcast").with(0).with_type::<u64>());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature(pub(crate) TypeSig);

impl Signature {
    /// That of an operation, by its name.
    #[must_use]
    pub const fn of(name: &str) -> Self {
        Self(TypeSig::of_name(name))
    }

    /// With a number that all ranks must have.
    #[must_use]
    pub const fn with(self, number: u64) -> Self {
        Self(self.0.and(number))
    }

    /// With another one that all ranks must have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        self.with(other.0.0)
    }

    /// With a type that all ranks must have.
    #[must_use]
    pub const fn with_type<T: Wire>(self) -> Self {
        self.with(T::SIG.0)
    }
}
