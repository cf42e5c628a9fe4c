//! Cells: slots for short messages of collectives, in which the receiver looks for each message by name.

/// Names the collective that a cell message belongs to. One rank sends another at most one message of each name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a communicator, and a collective on it"
)]
pub struct CellName {
    /// Context of the communicator.
    pub ctx: u32,
    /// Number of the collective on that communicator.
    pub tag: u32,
}

/// Longest message in a cell, in bytes. A driver may refuse shorter ones.
pub const CELL_MAX: usize = 64 << 10;

/// Result of taking a message from a cell.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "whose message it was, and what became of it"
)]
pub struct Taken {
    /// Type signature that the sender stated.
    pub sig: u64,
    /// True if messages of this peer were not taken in order: an earlier one is still in its cell, or was taken after a later
    /// one.
    pub overtook: bool,
    /// True if the message was handed out and was what the receiver expected.
    pub filled: bool,
}
