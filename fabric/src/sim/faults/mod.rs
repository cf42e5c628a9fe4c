//! What goes wrong, and when.

/// A plan of faults. The default is that nothing goes wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {}
