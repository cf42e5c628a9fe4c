//! Task lists: commands that a driver begins by itself when counters have reached thresholds.

use bytemuck::{Pod, Zeroable};

use super::{LocalCounter, RemoteCounter, TypedOperator};
use crate::{
    driver::{LocalRange, WorldRank},
    memory::{MemoryRegion, RemoteRegion},
};

/// A command that begins by itself.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by the code that makes lists"
)]
pub struct TriggeredTask {
    /// Condition that the task waits for.
    pub condition: CounterCondition,
    /// Second condition that the task waits for.
    pub second_condition: Option<CounterCondition>,
    /// Command.
    pub action: TaskAction,
}

/// Condition that a counter of this rank has reached `threshold`.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by the code that makes lists"
)]
pub struct CounterCondition {
    /// Counter of this rank, made [for tasks](super::LocalCounters::for_tasks), as are all counters that its tasks add to.
    pub counter: LocalCounter,
    /// Cumulative threshold, since counters are never reset.
    pub threshold: u64,
}

/// Command of a task. Its completion is counted, because it is not reported otherwise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TaskAction {
    /// Puts like [`DriverCommand::Put`](crate::driver::DriverCommand::Put).
    Put {
        /// Owner of the target.
        to: WorldRank,
        /// Bytes to write.
        from: LocalRange,
        /// Destination.
        target: PutTarget,
        /// Counter of this rank to which 1 is added when the bytes are visible there.
        done: Option<LocalCounter>,
    },
    /// Puts a landing into a peer's memory, for a put of that peer that goes [where it is given](PutTarget::FromLanding).
    PublishLanding {
        /// Peer that will put.
        to: WorldRank,
        /// Destination for that put.
        landing: PutLanding,
        /// Place where the peer looks for the landing.
        place: RemoteRegion,
        /// Counter of the same peer to which 1 is added when the landing is there.
        count: RemoteCounter,
        /// Put that the landing is for. With this, the adapter may bring the two together by itself, and put no landing.
        pair: Option<PairKey>,
    },
    /// Counts like [`DriverCommand::Count`](crate::driver::DriverCommand::Count).
    Count {
        /// Owner of the counter.
        to: WorldRank,
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
        done: Option<LocalCounter>,
    },
    /// Combines integers within this rank's memory, element by element: `into = into ⊕ from`.
    Combine {
        /// First operand.
        from: LocalRange,
        /// Second operand, and result; of the same length in whole elements, and apart from `from`.
        into: LocalRange,
        /// Operator and type of the elements.
        how: TypedOperator,
        /// Counter of this rank to which 1 is added when it is done.
        done: Option<LocalCounter>,
    },
}

/// Destination of a task's put.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know every kind")]
pub enum PutTarget {
    /// The destination is known when the task is posted.
    Known {
        /// Memory of the peer, of the same length as the bytes.
        into: RemoteRegion,
        /// Counter of the same peer to which 1 is added when the bytes are there.
        count: Option<RemoteCounter>,
    },
    /// The destination is in a [`PutLanding`] that the peer has put into this rank's memory when the task begins.
    FromLanding {
        /// Region of this rank that has the landing.
        region: MemoryRegion,
        /// Offset of the landing in the region, in bytes.
        offset: usize,
        /// Word that the landing must have. With another one, the put ends in
        /// [`CommandFailure::Unmatched`](crate::driver::CommandFailure::Unmatched).
        word: u64,
        /// Published landing that the put waits for. With this, the adapter may write the landing by itself.
        pair: Option<PairKey>,
    },
}

/// Name shared by a published landing and the put that it is for, by which an adapter that matches brings them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by the code that makes lists"
)]
pub struct PairKey {
    /// Number of a row of such pairs from one rank to another. Both ranks know it.
    pub sequence: u64,
    /// Place in the row. Pairs of a row that are in flight at a time differ by less than 4096.
    pub nth: u64,
}

/// Destination that a peer wants for a put, and the counter to add to then, in the form in which they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
#[expect(clippy::exhaustive_structs, reason = "two keys and a word that travel")]
pub struct PutLanding {
    /// Memory of the same length as the bytes.
    pub into: RemoteRegion,
    /// Counter of the same peer.
    pub count: RemoteCounter,
    /// Word that says what the landing is for. Both ends must have the same.
    pub word: u64,
}

impl PutLanding {
    /// Reads a landing that a peer has put there.
    #[must_use]
    pub fn read(region: &MemoryRegion, offset: usize) -> Self {
        let mut landing = Self::zeroed();
        region.read(offset, bytemuck::bytes_of_mut(&mut landing));
        landing
    }
}

impl PutTarget {
    /// Returns the destination as it is now, or `None` if the peer's landing is for something else.
    pub(crate) fn resolve(&self) -> Option<(RemoteRegion, Option<RemoteCounter>)> {
        match self {
            Self::Known { into, count } => Some((*into, *count)),
            Self::FromLanding {
                region,
                offset,
                word,
                ..
            } => {
                let landing = PutLanding::read(region, *offset);
                (landing.word == *word).then_some((landing.into, Some(landing.count)))
            }
        }
    }
}

impl CounterCondition {
    /// Returns true if the condition is met, which then stays so.
    pub(crate) fn is_met(&self) -> bool {
        self.counter.value() >= self.threshold
    }
}

impl TriggeredTask {
    /// Returns the conditions that the task waits for.
    pub fn conditions(&self) -> impl Iterator<Item = &CounterCondition> {
        [Some(&self.condition), self.second_condition.as_ref()]
            .into_iter()
            .flatten()
    }

    /// Returns the conditions that are not met yet.
    pub(crate) fn unmet_conditions(&self) -> impl Iterator<Item = &CounterCondition> {
        self.conditions().filter(|when| !when.is_met())
    }
}
