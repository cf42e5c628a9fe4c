//! Who copies to and from memory that this process maps.

use super::Port;
use crate::buffer::Wire;

/// Who copies what is put to memory of the own node, or got from it.
///
/// It is a hint: it changes when a copy is made and by whom, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// The caller, when it calls: the fastest where it would only wait for the copy.
    #[default]
    Caller,
    /// The progress agent, while the caller computes: a call with 128 KiB or more returns at once. The agent needs a processor
    /// for that, and [`Runtime::agent_cpu`](crate::Runtime::agent_cpu) says how much of it. Shorter blocks, and all of them where
    /// there is no agent, are copied by the caller.
    Agent,
}

impl<T: Wire> Port<T> {
    /// From now on.
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.overlap = overlap;
    }

    /// Whether so many bytes are for the agent.
    #[inline]
    pub(super) fn hands_over(&self, len: usize) -> bool {
        self.overlap == Overlap::Agent && len >= HANDED_MIN && self.comm.shared().agent.is_there()
    }

    /// There is something for the agent to do.
    pub(super) fn hurry(&self, len: usize) {
        if self.hands_over(len) {
            self.comm.shared().agent.hurry();
        }
    }
}

/// Less is copied in the time that it takes to wake the agent.
const HANDED_MIN: usize = 128 << 10;
