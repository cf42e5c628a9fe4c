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

/// The longest message in a cell, in bytes. A driver may refuse shorter ones.
pub const CELL_MAX: usize = 64 << 10;

/// What was in a cell.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "whose message it was, and what became of it"
)]
pub struct Taken {
    /// The type signature that the sender named.
    pub sig: u64,
    /// An earlier message of the same peer still lies in its cell, or was taken after a later one.
    pub overtook: bool,
    /// It was handed out, and was what the receiver waits for.
    pub filled: bool,
}
