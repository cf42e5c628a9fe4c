//! Match bits: what an adapter that matches messages compares. The functions are pure.
//!
//! ```text
//!   wide      kind:4 | context:20 | endpoint:8 | tag:32     the adapter also compares which process sends: Portals
//!   narrow    kind:4 | context:16 | source:20  | tag:24     it compares nothing else
//! ```
//!
//! A message whose fields do not fit is not matched by the adapter. Fields are never hashed, because memory overwritten by a
//! wrong match cannot be restored.

#[cfg(test)]
mod tests;

/// Identifies an application's message, together with its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers with names")]
pub struct MatchTag {
    /// Number that the caller's messages of one kind share, such as the context of a communicator.
    pub context: u32,
    /// The application's tag.
    pub tag: u32,
}

/// All fields of a message's match bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "written out by the sender")]
pub struct TagEnvelope {
    /// Kind of message, which is never ignored.
    pub kind: u8,
    /// With [`TagLayout::Wide`], the endpoint of the sending process; with [`TagLayout::Narrow`], the sending rank.
    pub source: u32,
    /// Context and tag.
    pub tag: MatchTag,
}

/// Messages that a receive accepts. `None` means any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "written out by the receiver")]
pub struct TagSelector {
    /// Kind of message.
    pub kind: u8,
    /// Context of the message.
    pub context: u32,
    /// Sender of the message.
    pub source: Option<u32>,
    /// Tag of the message.
    pub tag: Option<u32>,
}

/// Layout of match bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "one for each kind of adapter")]
pub enum TagLayout {
    /// For adapters that also compare the sender.
    Wide,
    /// For adapters that compare 64 bits and nothing else.
    Narrow,
}

/// The bits of the messages that a receive accepts, and which of them may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers with names")]
pub struct TagPattern {
    /// Bits that a message must have, except where `ignored` has ones.
    pub bits: u64,
    /// Has a one for each bit that may differ.
    pub ignored: u64,
}

impl TagLayout {
    /// Returns the bits of a message, or `None` if one of its fields does not fit.
    #[must_use]
    pub const fn bits(self, envelope: TagEnvelope) -> Option<u64> {
        let TagEnvelope { kind, source, tag } = envelope;
        let (context_len, source_len, tag_len) = self.lengths();
        if kind as u32 >> KIND_LEN != 0
            || !fits(tag.context, context_len)
            || !fits(source, source_len)
            || !fits(tag.tag, tag_len)
        {
            return None;
        }
        let bits = (kind as u64) << (64 - KIND_LEN)
            | (tag.context as u64) << (source_len + tag_len)
            | (source as u64) << tag_len
            | tag.tag as u64;
        Some(bits)
    }

    /// Returns the fields of the message that has these bits.
    #[must_use]
    pub fn envelope(self, bits: u64) -> TagEnvelope {
        let (context_len, source_len, tag_len) = self.lengths();
        let part = |above: u32, len: u32| {
            let part = bits >> above & ones(len);
            u32::try_from(part).expect("32 bits or fewer")
        };
        TagEnvelope {
            kind: u8::try_from(bits >> (64 - KIND_LEN)).expect("four bits"),
            source: part(tag_len, source_len),
            tag: MatchTag {
                context: part(source_len + tag_len, context_len),
                tag: part(0, tag_len),
            },
        }
    }

    /// Returns what the adapter must compare for a receive, or `None` if the receive's fields do not fit.
    #[must_use]
    pub fn pattern(self, want: TagSelector) -> Option<TagPattern> {
        let (_, source_len, tag_len) = self.lengths();
        let bits = self.bits(TagEnvelope {
            kind: want.kind,
            source: want.source.unwrap_or(0),
            tag: MatchTag {
                context: want.context,
                tag: want.tag.unwrap_or(0),
            },
        })?;
        let any_source = if want.source.is_none() {
            ones(source_len) << tag_len
        } else {
            0
        };
        let any_tag = if want.tag.is_none() { ones(tag_len) } else { 0 };
        Some(TagPattern {
            bits,
            ignored: any_source | any_tag,
        })
    }

    /// Returns the lengths of context, source and tag in bits.
    const fn lengths(self) -> (u32, u32, u32) {
        match self {
            Self::Wide => (20, 8, 32),
            Self::Narrow => (16, 20, 24),
        }
    }
}

impl TagPattern {
    /// Returns true if an adapter accepts a message with these bits.
    #[must_use]
    pub const fn matches(self, bits: u64) -> bool {
        (self.bits ^ bits) & !self.ignored == 0
    }
}

const fn fits(number: u32, len: u32) -> bool {
    number as u64 & !ones(len) == 0
}

const fn ones(len: u32) -> u64 {
    (1 << len) - 1
}

/// Kind of a message between two ranks of the application.
pub const USER: u8 = 0;
const KIND_LEN: u32 = 4;
