//! What a turn has done, and what to sleep on after it.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicU32},
};

use crate::memory::Region;

/// What one turn of [`Driver::progress`](super::Driver::progress) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Arrivals and completions handed to the sink, and copies moved on.
    pub events: u32,
}

/// The answer to [`Driver::arm`](super::Driver::arm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "a third answer would change every caller"
)]
pub enum Armed {
    /// Sleep: an event will end it.
    Ready,
    /// Something came: call `progress` again.
    Busy,
}

/// Something to sleep on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WaitOn {
    /// A word in memory that another process shares: sleep while it is `armed`.
    Futex {
        /// The word, and what keeps it mapped.
        word: FutexWord,
        /// Its value while nothing has happened.
        armed: u32,
    },
    /// A descriptor: sleep until it is readable. The driver drains it.
    Fd(Arc<OwnedFd>),
    /// Virtual time: there is nothing to sleep on, because whoever simulates this rank gives it its turns.
    Virtual,
}

/// A shared word that stays mapped as long as this value lives.
#[derive(Clone, Debug)]
pub struct FutexWord {
    region: Region,
    offset: usize,
}

impl FutexWord {
    /// The word at `offset` bytes into `region`.
    ///
    /// # Panics
    /// When the word is not inside the region or not aligned.
    #[must_use]
    pub fn new(region: Region, offset: usize) -> Self {
        let _ = region.atomic_u32(offset);
        Self { region, offset }
    }

    /// The word.
    #[must_use]
    pub fn get(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.offset)
    }
}
