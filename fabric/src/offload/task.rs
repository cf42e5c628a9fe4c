//! Task lists: commands that a driver begins by itself when counters have reached thresholds.

use bytemuck::{Pod, Zeroable};

use super::{Combination, Counter, RemoteCounter};
use crate::{
    driver::{LocalRange, Peer},
    memory::{Region, RemoteRegion},
};

/// A command that begins by itself.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by who makes lists")]
pub struct Task {
    /// Condition that it waits for.
    pub when: When,
    /// Second condition that it waits for.
    pub and: Option<When>,
    /// Command.
    pub then: Action,
}

/// Condition that a counter of this rank has reached `threshold`.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by who makes lists")]
pub struct When {
    /// Counter of this rank, made [for tasks](super::Counters::for_tasks), as are all counters that its tasks add to.
    pub counter: Counter,
    /// Cumulative threshold, since counters are never reset.
    pub threshold: u64,
}

/// Command of a task. Its completion is counted, because it is not reported otherwise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Puts like [`Command::Put`](crate::driver::Command::Put).
    Put {
        /// Owner of the target.
        to: Peer,
        /// Bytes to write.
        from: LocalRange,
        /// Destination.
        target: Target,
        /// Counter of this rank to which 1 is added when the bytes are visible there.
        done: Option<Counter>,
    },
    /// Puts a landing into a peer's memory, for a put of that peer that goes [where it is given](Target::Given).
    Offer {
        /// Peer that will put.
        to: Peer,
        /// Destination for that put.
        landing: Landing,
        /// Place where the peer looks for the landing.
        place: RemoteRegion,
        /// Counter of the same peer to which 1 is added when the landing is there.
        count: RemoteCounter,
        /// Put that it is for. With this, the adapter may bring the two together by itself, and put no landing.
        pair: Option<Pair>,
    },
    /// Counts like [`Command::Count`](crate::driver::Command::Count).
    Count {
        /// Owner of the counter.
        to: Peer,
        /// Counter to add to.
        counter: RemoteCounter,
        /// Number to add.
        by: u64,
    },
    /// Copies within this rank's memory.
    Copy {
        /// Bytes to copy.
        from: LocalRange,
        /// Destination, of the same length and apart from `from`.
        into: LocalRange,
        /// Counter of this rank to which 1 is added when it is done.
        done: Option<Counter>,
    },
    /// Combines integers within this rank's memory, element by element: `into = into ⊕ from`.
    Combine {
        /// First operand.
        from: LocalRange,
        /// Second operand, and result; of the same length in whole elements, and apart from `from`.
        into: LocalRange,
        /// Operator and type of the elements.
        how: Combination,
        /// Counter of this rank to which 1 is added when it is done.
        done: Option<Counter>,
    },
}

/// Destination of a task's put.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know every kind")]
pub enum Target {
    /// The destination is known when the task is posted.
    Known {
        /// Memory of the peer, of the same length as the bytes.
        into: RemoteRegion,
        /// Counter of the same peer to which 1 is added when the bytes are there.
        count: Option<RemoteCounter>,
    },
    /// The destination is in a [`Landing`] that the peer has put into this rank's memory when the task begins.
    Given {
        /// Region of this rank that has the landing.
        region: Region,
        /// Offset of the landing in the region, in bytes.
        offset: usize,
        /// Word that the landing must have. With another one, the put ends in
        /// [`Failure::Unmatched`](crate::driver::Failure::Unmatched).
        word: u64,
        /// Offer that it waits for. With this, the adapter may write the landing by itself.
        pair: Option<Pair>,
    },
}

/// Name shared by an offer and the put that it is for, by which an adapter that matches brings them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "written out by who makes lists")]
pub struct Pair {
    /// Number of a row of such pairs from one rank to another. Both ranks know it.
    pub lane: u64,
    /// Place in the row. Pairs of a row that are in flight at a time differ by less than 4096.
    pub nth: u64,
}

/// Destination that a peer wants for a put, and the counter to add to then, in the form in which they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
#[expect(clippy::exhaustive_structs, reason = "two keys and a word that travel")]
pub struct Landing {
    /// Memory of the same length as the bytes.
    pub into: RemoteRegion,
    /// Counter of the same peer.
    pub count: RemoteCounter,
    /// Word that says what it is for. Both ends must have the same.
    pub word: u64,
}

impl Landing {
    /// Reads a landing that a peer has put there.
    #[must_use]
    pub fn read(region: &Region, offset: usize) -> Self {
        let mut landing = Self::zeroed();
        region.read(offset, bytemuck::bytes_of_mut(&mut landing));
        landing
    }
}

impl Target {
    /// Returns the destination as it is now, or `None` if the peer's landing is for something else.
    pub(crate) fn read(&self) -> Option<(RemoteRegion, Option<RemoteCounter>)> {
        match self {
            Self::Known { into, count } => Some((*into, *count)),
            Self::Given {
                region,
                offset,
                word,
                ..
            } => {
                let landing = Landing::read(region, *offset);
                (landing.word == *word).then_some((landing.into, Some(landing.count)))
            }
        }
    }
}

impl When {
    /// Returns true if the condition is met, which then stays so.
    pub(crate) fn is_met(&self) -> bool {
        self.counter.value() >= self.threshold
    }
}

impl Task {
    /// Returns the conditions that it waits for.
    pub fn whens(&self) -> impl Iterator<Item = &When> {
        [Some(&self.when), self.and.as_ref()].into_iter().flatten()
    }

    /// Returns the conditions that are not met yet.
    pub(crate) fn unmet(&self) -> impl Iterator<Item = &When> {
        self.whens().filter(|when| !when.is_met())
    }
}
