//! Match bits: what an adapter that matches messages compares (spec P1). Pure.
//!
//! ```text
//!   wide      kind:4 | context:20 | endpoint:8 | tag:32     the adapter also compares which process sends: Portals
//!   narrow    kind:4 | context:16 | source:20  | tag:24     it compares nothing else
//! ```
//!
//! What does not fit is not matched by the adapter. It is never hashed: what a wrong match has written over cannot be undone.

#[cfg(test)]
mod tests;

/// What an application's message is known by, beside who sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers with names")]
pub struct Tag {
    /// The communicator.
    pub context: u32,
    /// The application's number.
    pub tag: u32,
}

/// All that match bits say of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "written out by who sends")]
pub struct Envelope {
    /// What kind of message it is: never ignored.
    pub kind: u8,
    /// [`Layout::Wide`]: which endpoint of the sending process. [`Layout::Narrow`]: which rank sends.
    pub source: u32,
    /// The rest.
    pub tag: Tag,
}

/// What a receive asks for; `None` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "written out by who receives")]
pub struct Want {
    /// Of this kind.
    pub kind: u8,
    /// In this communicator.
    pub context: u32,
    /// From there.
    pub source: Option<u32>,
    /// With this number.
    pub tag: Option<u32>,
}

/// How match bits are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "one for each kind of adapter")]
pub enum Layout {
    /// For adapters that compare the sender too.
    Wide,
    /// For adapters that compare 64 bits and nothing else.
    Narrow,
}

/// Bits to compare, and those of them that may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers with names")]
pub struct Pattern {
    /// What is compared.
    pub bits: u64,
    /// Set where it may differ.
    pub ignored: u64,
}

impl Layout {
    /// The bits of a message, or `None` when it does not fit.
    #[must_use]
    pub const fn bits(self, envelope: Envelope) -> Option<u64> {
        let Envelope { kind, source, tag } = envelope;
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

    /// The message that has these bits.
    #[must_use]
    pub fn envelope(self, bits: u64) -> Envelope {
        let (context_len, source_len, tag_len) = self.lengths();
        let part = |above: u32, len: u32| {
            let part = bits >> above & ones(len);
            u32::try_from(part).expect("32 bits or fewer")
        };
        Envelope {
            kind: u8::try_from(bits >> (64 - KIND_LEN)).expect("four bits"),
            source: part(tag_len, source_len),
            tag: Tag {
                context: part(source_len + tag_len, context_len),
                tag: part(0, tag_len),
            },
        }
    }

    /// What a receive has the adapter compare, or `None` when it asks for what does not fit.
    #[must_use]
    pub fn pattern(self, want: Want) -> Option<Pattern> {
        let (_, source_len, tag_len) = self.lengths();
        let bits = self.bits(Envelope {
            kind: want.kind,
            source: want.source.unwrap_or(0),
            tag: Tag {
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
        Some(Pattern {
            bits,
            ignored: any_source | any_tag,
        })
    }

    /// Bits of the context, the source and the tag.
    const fn lengths(self) -> (u32, u32, u32) {
        match self {
            Self::Wide => (20, 8, 32),
            Self::Narrow => (16, 20, 24),
        }
    }
}

impl Pattern {
    /// Whether an adapter lets a message with these bits in.
    #[must_use]
    pub const fn takes(self, bits: u64) -> bool {
        (self.bits ^ bits) & !self.ignored == 0
    }
}

const fn fits(number: u32, len: u32) -> bool {
    number as u64 & !ones(len) == 0
}

const fn ones(len: u32) -> u64 {
    (1 << len) - 1
}

/// A message between two ranks of the application.
pub const USER: u8 = 0;
const KIND_LEN: u32 = 4;
