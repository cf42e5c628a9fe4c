//! Cells: short messages of collectives, each in a place where its receiver looks for it.

/// Which collective a message in a cell belongs to. From one rank to another there is one message of each name at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a communicator, and a collective on it"
)]
pub struct CellName {
    /// The communicator's context.
    pub ctx: u32,
    /// The number of the collective.
    pub tag: u32,
}

/// The longest message in a cell, in bytes: with what says whose it is, it fills a cache line.
pub const CELL_MAX: usize = 40;

/// What was in a cell.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The type signature that the sender named.
    pub sig: u64,
    /// An earlier message of the same peer still lies in its cell, or was taken after a later one.
    pub overtook: bool,
    len: usize,
    words: [[u8; 8]; CELL_MAX / 8],
}

impl Taken {
    /// An empty message of this length.
    pub(crate) fn new(sig: u64, len: usize) -> Self {
        assert!(len <= CELL_MAX, "a message of {len} bytes in a cell");
        Self {
            sig,
            overtook: false,
            len,
            words: [[0; 8]; CELL_MAX / 8],
        }
    }

    /// The words that the message fills.
    pub(crate) fn words_mut(&mut self) -> impl Iterator<Item = &mut [u8; 8]> {
        self.words.iter_mut().take(self.len.div_ceil(8))
    }

    /// The message.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.words.as_flattened()[..self.len]
    }
}
