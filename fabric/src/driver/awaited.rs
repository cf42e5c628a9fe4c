//! A short message that its receiver knows before it arrives, except for its bytes.

use super::LocalRange;

/// The message that a caller waits for: its header, and where its body goes.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by the caller")]
pub struct AwaitedMessage {
    /// What is known of its header.
    pub header: AwaitedHeader,
    /// Where the body goes, which has exactly this length. Nothing uses the range after the call.
    pub body: LocalRange,
}

/// Header of a message that a caller waits for. Only some bits of its first word are known.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedHeader {
    words: [u64; 3],
    /// Bits of the first word that must be as in `words`.
    known: u64,
}

/// What was found where a message was awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers handle every outcome")]
pub enum AwaitedLook {
    /// Nothing has arrived from the peer.
    Nothing,
    /// Something else comes first, or the driver cannot tell. It was not handed out.
    Other,
    /// The message had arrived, and its body was copied. This is the first word of its header.
    Copied(u64),
}

impl AwaitedHeader {
    /// Length of a header in bytes.
    pub const LEN: usize = 24;

    /// Describes a header by its bytes, of whose first eight only the bits that are set in `known` matter.
    #[must_use]
    #[inline]
    pub fn new(header: [u8; Self::LEN], known: u64) -> Self {
        let words = bytemuck::cast(header);
        Self { words, known }
    }

    /// Returns the first word of a header if it is the awaited one.
    #[must_use]
    #[inline(always)]
    pub fn first_word_of(&self, header: [u8; Self::LEN]) -> Option<u64> {
        let [first, second, third]: [u64; 3] = bytemuck::cast(header);
        let differs =
            (first ^ self.words[0]) & self.known | second ^ self.words[1] | third ^ self.words[2];
        (differs == 0).then_some(first)
    }
}
