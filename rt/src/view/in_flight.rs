//! What a rank waits for, as its own program sees it.

use std::fmt;

use super::{PublishedWait, report::words::describe};

/// An operation that is in flight on this rank. [`RuntimeHandle::waiting`](crate::RuntimeHandle::waiting) lists them.
///
/// Its text says what it is, its peer, tag, communicator and source line, as in the report of `ripstop stuck`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationInFlight {
    wait: PublishedWait,
}

impl OperationInFlight {
    pub(crate) const fn new(wait: PublishedWait) -> Self {
        Self { wait }
    }

    /// Returns the rank of the peer among all ranks; `None` for any rank, and for collectives.
    #[must_use]
    pub fn peer(&self) -> Option<usize> {
        self.wait.peer.map(|rank| rank as usize)
    }

    /// Returns the source line that began the operation, as `file:line`. It is empty where the runtime does not know it.
    #[must_use]
    pub fn at(&self) -> &str {
        &self.wait.at
    }

    /// Returns true if a future waits for the operation now.
    #[must_use]
    pub const fn is_awaited(&self) -> bool {
        self.wait.is_awaited
    }
}

impl fmt::Display for OperationInFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fmt(f)
    }
}

impl fmt::Display for PublishedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(self, None))
    }
}
