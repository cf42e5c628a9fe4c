//! The result of a turn (one pass of progress), and what a thread sleeps on after it.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicU32},
};

use crate::memory::{MemoryRegion, RegionWord};

/// Result of one turn of [`Driver::progress`](super::Driver::progress).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct TurnProgress {
    /// Arrivals and completions handed to the sink, plus copies advanced.
    pub events: u32,
}

/// Answer to [`Driver::arm`](super::Driver::arm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "a third answer would change every caller"
)]
pub enum ArmResult {
    /// The thread may sleep. An event will wake it.
    Ready,
    /// Something arrived meanwhile. Call `progress` again.
    Busy,
}

/// An event source to sleep on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WakeSource {
    /// A word in memory shared with other processes. Sleep while its value is `armed`.
    Futex {
        /// The word, and the region that keeps it mapped.
        word: FutexWord,
        /// Value of the word while nothing has happened.
        armed: u32,
    },
    /// A file descriptor. Sleep until it is readable; the driver drains it.
    Fd(Arc<OwnedFd>),
    /// Virtual time. There is nothing to sleep on, because the simulator of this rank decides when it makes turns.
    Virtual,
}

/// A shared word that stays mapped as long as this value lives.
#[derive(Clone, Debug)]
pub struct FutexWord(RegionWord);

impl FutexWord {
    /// Names the word at `offset` bytes into `region`.
    ///
    /// # Panics
    /// Panics if the word is not inside the region or not aligned.
    #[must_use]
    pub fn new(region: &MemoryRegion, offset: usize) -> Self {
        Self(region.word(offset))
    }

    /// Returns the word.
    #[inline]
    #[must_use]
    pub fn get(&self) -> &AtomicU32 {
        &self.0
    }
}
