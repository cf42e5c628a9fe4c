//! Random numbers: those that can be replayed, and those that no other process can guess.

use std::{io, ops::Range};

use rustix::{
    io::retry_on_intr,
    rand::{GetRandomFlags, getrandom},
};

/// A stream of numbers determined by a seed (splitmix64). For tests, not for security.
#[derive(Clone, Debug)]
pub struct SeededRandom {
    state: u64,
}

impl SeededRandom {
    /// Starts the stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `range`, or its start if the range is empty.
    pub const fn within(&mut self, range: Range<u64>) -> u64 {
        match range.end.saturating_sub(range.start) {
            0 => range.start,
            width => range.start + self.bits() % width,
        }
    }

    /// Returns true with this probability: never for 0 and below, always for 1 and above.
    pub fn chance(&mut self, probability: f64) -> bool {
        let unit = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Fills `bytes` with the system's random bytes, which no other process can guess.
pub(crate) fn fill_unguessable(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = GetRandomFlags::empty();
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], flags))?;
    }
    Ok(())
}
