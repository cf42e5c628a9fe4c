//! A message of a fixed length that arrives in pieces.

/// The part of a message that has arrived.
#[derive(Clone, Debug)]
pub(super) struct PartialInput<const LEN: usize> {
    bytes: [u8; LEN],
    len: usize,
}

impl<const LEN: usize> PartialInput<LEN> {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; LEN],
            len: 0,
        }
    }

    /// Takes what the message lacks from the start of `bytes`, and returns how many bytes that were.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(LEN - self.len);
        self.bytes[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// Returns how many bytes are missing.
    pub(super) const fn missing(&self) -> usize {
        LEN - self.len
    }

    /// Returns what has arrived.
    pub(super) fn arrived(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the message if it has arrived as a whole.
    pub(super) fn whole(&self) -> Option<&[u8; LEN]> {
        (self.len == LEN).then_some(&self.bytes)
    }
}
