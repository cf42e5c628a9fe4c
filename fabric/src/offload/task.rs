//! Task lists: what a driver does by itself when counters have come far enough.

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
    /// What it waits for.
    pub when: When,
    /// What else it waits for.
    pub and: Option<When>,
    /// What it does.
    pub then: Action,
}

/// A counter of this rank that has come to `threshold`.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by who makes lists")]
pub struct When {
    /// Of this rank, and [for tasks](super::Counters::for_tasks), as all that tasks of this rank add to.
    pub counter: Counter,
    /// Cumulative: counters are never reset.
    pub threshold: u64,
}

/// What a task does. Each end of one is counted, because nobody is told of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// As [`Command::Put`](crate::driver::Command::Put).
    Put {
        /// Who owns the target.
        to: Peer,
        /// What to write.
        from: LocalRange,
        /// Where.
        target: Target,
        /// A counter of this rank to which 1 is added when the bytes are visible there.
        done: Option<Counter>,
    },
    /// Put a landing into a peer's memory, for a put of its that goes [where it is given](Target::Given).
    Offer {
        /// Who is to put.
        to: Peer,
        /// Where it is to put to.
        landing: Landing,
        /// Where it looks for that.
        place: RemoteRegion,
        /// A counter of the same peer to which 1 is added when the landing is there.
        count: RemoteCounter,
        /// Which put it is for: then the adapter may bring the two together by itself, and put no landing.
        pair: Option<Pair>,
    },
    /// As [`Command::Count`](crate::driver::Command::Count).
    Count {
        /// Who owns the counter.
        to: Peer,
        /// Which one.
        counter: RemoteCounter,
        /// How much.
        by: u64,
    },
    /// Copy within this rank's memory.
    Copy {
        /// What.
        from: LocalRange,
        /// Where to; of the same length, and apart from it.
        into: LocalRange,
        /// A counter of this rank to which 1 is added when it is done.
        done: Option<Counter>,
    },
    /// Combine integers within this rank's memory, element by element: `into = into ⊕ from`.
    Combine {
        /// One operand.
        from: LocalRange,
        /// The other one, and the result; of the same length in whole elements, and apart from it.
        into: LocalRange,
        /// How.
        how: Combination,
        /// A counter of this rank to which 1 is added when it is done.
        done: Option<Counter>,
    },
}

/// Where the put of a task goes.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know every kind")]
pub enum Target {
    /// Known when the task is posted.
    Known {
        /// Of the same length as what is put.
        into: RemoteRegion,
        /// A counter of the same peer to which 1 is added when the bytes are there.
        count: Option<RemoteCounter>,
    },
    /// What a [`Landing`] says that the peer has put there when the task begins.
    Given {
        /// Of this rank.
        region: Region,
        /// Where in it the landing begins, in bytes.
        offset: usize,
        /// What the landing is to say that it is for; another one ends the put in
        /// [`Failure::Unmatched`](crate::driver::Failure::Unmatched).
        word: u64,
        /// Which offer it waits for. The adapter may write the place then.
        pair: Option<Pair>,
    },
}

/// What an offer and the put that it is for say of each other, so that an adapter that matches brings them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "written out by who makes lists")]
pub struct Pair {
    /// A row of such pairs from one rank to another; both know its number.
    pub lane: u64,
    /// Which one of the row. Pairs of a row that are under way at a time differ by less than 4096.
    pub nth: u64,
}

/// Where a peer wants a put, and what is to be counted then, in the words in which it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
#[expect(clippy::exhaustive_structs, reason = "two keys and a word that travel")]
pub struct Landing {
    /// Of the same length as what is put.
    pub into: RemoteRegion,
    /// A counter of the same peer.
    pub count: RemoteCounter,
    /// What it is for: both ends must have the same.
    pub word: u64,
}

impl Landing {
    /// What a peer has put there.
    #[must_use]
    pub fn read(region: &Region, offset: usize) -> Self {
        let mut landing = Self::zeroed();
        region.read(offset, bytemuck::bytes_of_mut(&mut landing));
        landing
    }
}

impl Target {
    /// Where, now. `None`: what the peer has put there is for something else.
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
    /// Whether it has come to pass; then it stays so.
    pub(crate) fn is_met(&self) -> bool {
        self.counter.value() >= self.threshold
    }
}

impl Task {
    /// What it waits for.
    pub fn whens(&self) -> impl Iterator<Item = &When> {
        [Some(&self.when), self.and.as_ref()].into_iter().flatten()
    }

    /// What it waits for still.
    pub(crate) fn unmet(&self) -> impl Iterator<Item = &When> {
        self.whens().filter(|when| !when.is_met())
    }
}
