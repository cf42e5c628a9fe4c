//! Named slots: slots for short messages, in which the receiver looks for each message by name.

/// Name of a message in a slot. One rank sends another at most one message of each name.
///
/// The caller chooses both numbers, and the driver only compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers of the caller")]
pub struct SlotName {
    /// First number: all messages of one context of the caller share it.
    pub ctx: u32,
    /// Second number: it grows from message to message of one context.
    pub tag: u32,
}

/// Longest message in a slot, in bytes. A driver may refuse shorter ones.
pub const SLOT_MESSAGE_MAX: usize = 64 << 10;

/// Result of taking a message from a slot.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "whose message it was, and what became of it"
)]
pub struct SlotReceipt {
    /// Number that the sender stored with the message, to be compared by the receiver.
    pub sig: u64,
    /// True if messages of this peer were not taken in order: an earlier one is still in its slot, or was taken after a
    /// later one.
    pub overtook: bool,
    /// True if the message was handed out and was what the receiver expected.
    pub filled: bool,
}
