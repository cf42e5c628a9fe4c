//! Name of a collective, which all its ranks give it without talking to each other.

/// Names a collective: the context of its communicator, and its number in the order in which that communicator's ranks call
/// collectives. It is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CollectiveId {
    /// Context of the communicator's collectives, which is odd. Headers of agreements have its even context.
    pub(crate) context: u32,
    /// Number of the call, or of an agreement's round. It wraps around, so it is compared modulo 2^32.
    pub(crate) sequence: u32,
}

impl CollectiveId {
    pub(crate) const fn new(context: u32, sequence: u32) -> Self {
        Self { context, sequence }
    }
}
